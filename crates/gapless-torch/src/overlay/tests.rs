//! Compares the rows with the functions and structures of this library.

use super::layout::{
    AnnotationEntry, BlockInfo, CheckpointDelta, ConfigInfo, DataPtr, DeviceStats, Layouts, SegmentInfo,
    Stat, StatArray, StreamSegmentSize, TraceEntry, write_stats,
};
use super::rows::{HEADER, ROWS, Row, parts};
use super::{entries, known, word};
use std::mem::offset_of;

#[test]
fn a_build_is_known_by_version_and_commit() {
    let commit = "70d99e998b4955e0049d13a98d77ae1b14db1f45";
    assert!(known("2.11.0+cu130", commit).is_some() && known("2.11.0+cu128", commit).is_some());
    assert!(known("2.11.0", commit).is_some() && known("2.12.1", commit).is_none());
    for (version, commit) in [("2.11.1", commit), ("2.11.0", "70d99e9"), ("2.11.0", ""), ("", "")] {
        assert!(known(version, commit).is_none(), "{version} {commit}");
    }
}

#[test]
fn a_symbol_is_taken_apart() {
    assert_eq!(parts("_ZN3c109Allocator5cloneEPKvm"), ("clone", "PKvm"));
    assert_eq!(parts("_ZNK3c109Allocator18is_simple_data_ptrERKNS_7DataPtrE").0, "is_simple_data_ptr");
    assert_eq!(parts("_ZN5torch4cuda4nameB5cxx11Ev"), ("name", "v"));
    assert_eq!(parts("_ZN3c109AllocatorD2Ev"), ("~", ""));
    for odd in ["", "_ZN", "_ZN9", "main", "_ZN99999999999999999999x"] {
        let _ = parts(odd);
    }
}

fn names(row: &Row) -> Vec<&'static str> {
    row.functions.iter().map(|function| function.parts().0).collect()
}

#[test]
fn rows_are_in_order_and_each_release_only_adds_functions() {
    let numbers = |row: &Row| row.version.split('.').map(|n| n.parse().unwrap()).collect::<Vec<u32>>();
    for pair in ROWS.windows(2) {
        assert!(numbers(&pair[0]) < numbers(&pair[1]), "{} before {}", pair[0].version, pair[1].version);
        let (old, new) = (names(&pair[0]), names(&pair[1]));
        assert!(old.iter().all(|name| new.contains(name)), "{} lost a function", pair[1].version);
        // 2.9 moved some of them to a base class.
        if pair[1].version == "2.9.0" {
            continue;
        }
        let mut rest = new.iter();
        let is_kept = |name: &&str| rest.any(|other| other == name);
        assert!(old.iter().all(is_kept), "{} has functions in another order", pair[1].version);
    }
    for row in ROWS {
        assert!(
            row.commit.len() == 40 && row.commit.bytes().all(|b| b.is_ascii_hexdigit()),
            "{}",
            row.version
        );
        assert_eq!(names(row)[..4], ["~", "~", "allocate", "is_simple_data_ptr"], "{}", row.version);
        assert_eq!(names(row).last(), Some(&"name"), "{}", row.version);
        let exported = row.functions.iter().filter(|function| function.is_exported).count();
        assert!((32..=34).contains(&exported), "{}: {exported}", row.version);
    }
}

/// Functions that every known build has, so that the overlay is complete.
const ALWAYS: [&str; 34] = [
    "allocate",
    "raw_deleter",
    "raw_alloc",
    "raw_alloc_with_stream",
    "raw_delete",
    "emptyCache",
    "getMemoryFraction",
    "setMemoryFraction",
    "cacheInfo",
    "shareIpcHandle",
    "getIpcDevPtr",
    "enablePeerAccess",
    "memcpyAsync",
    "getDeviceStats",
    "resetAccumulatedStats",
    "resetPeakStats",
    "snapshot",
    "getPoolUseCount",
    "createOrIncrefPool",
    "setUseOnOOM",
    "checkPoolLiveAllocations",
    "isHistoryEnabled",
    "recordHistory",
    "recordAnnotation",
    "pushCompileContext",
    "popCompileContext",
    "attachOutOfMemoryObserver",
    "attachAllocatorTraceTracker",
    "getCheckpointState",
    "setCheckpointPoolState",
    // Functions that are never replaced.
    "init",
    "initialized",
    "releasePool",
    "name",
];

#[test]
fn every_build_has_its_entries_at_their_own_places() {
    for row in ROWS {
        let entries = entries::all(row).unwrap_or_else(|why| panic!("{}: {why}", row.version));
        for entry in &entries {
            assert_eq!(row.functions[entry.word - HEADER].parts().0, entry.name, "{}", row.version);
        }
        for name in &ALWAYS[..30] {
            assert!(entries.iter().any(|entry| entry.name == *name), "{} has no {name}", row.version);
        }
        for name in &ALWAYS[30..] {
            assert!(row.word_of(name).is_some(), "{} has no {name}", row.version);
            assert!(entries.iter().all(|entry| entry.name != *name), "{}: {name}", row.version);
        }
        let mut words: Vec<usize> = entries.iter().map(|entry| entry.word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), entries.len(), "{}", row.version);
    }
    // From the specification of the newest release.
    let newest = ROWS.iter().find(|row| row.version == "2.15.0").expect("a row");
    let at = |name| word(newest.version, newest.commit, name);
    assert_eq!((newest.words(), at("markCaptureBegin"), at("annotateMemory")), (59, Some(30), Some(49)));
    assert_eq!((at("snapshot"), at("allocateWithAddress"), at("init")), (Some(27), Some(57), Some(18)));
}

#[test]
fn other_arguments_are_not_taken() {
    use super::rows::{Function, hidden};
    const FUNCTIONS: &[Function] = &[hidden("_ZN3c109Allocator8allocateEmm")];
    let row = Row { functions: FUNCTIONS, ..ROWS[0] };
    assert!(entries::all(&row).is_err());
}

/// Fields of a structure that follow each other, each with its size.
fn in_a_row(fields: &[(&'static str, usize)]) -> (usize, Vec<(&'static str, usize)>) {
    let mut at = 0;
    let mut places = Vec::new();
    for (name, size) in fields {
        places.push((*name, at));
        at += size;
    }
    (at, places)
}

fn stats_of(layouts: Layouts) -> (usize, Vec<(&'static str, usize)>) {
    let array = size_of::<StatArray>();
    let all = [
        ("allocation", array, true),
        ("segment", array, true),
        ("active", array, true),
        ("inactive_split", array, true),
        ("allocated_bytes", array, true),
        ("reserved_bytes", array, true),
        ("reserved_bytes_by_private_pools", 32, layouts.pools),
        ("active_bytes", array, true),
        ("inactive_split_bytes", array, true),
        ("requested_bytes", array, true),
        ("num_alloc_retries", 8, true),
        ("num_ooms", 8, true),
        ("oversize_allocations", size_of::<Stat>(), true),
        ("oversize_segments", size_of::<Stat>(), true),
        ("num_sync_all_streams", 8, true),
        ("num_device_alloc", 8, true),
        ("num_device_free", 8, true),
        ("num_oom_rejections", 8, layouts.refusals),
        ("max_split_size", 8, true),
    ];
    in_a_row(
        &all.iter().filter(|(_, _, there)| *there).map(|(name, size, _)| (*name, *size)).collect::<Vec<_>>(),
    )
}

/// The size and fields that this library assumes for a structure of a row.
fn expected(name: &str, layouts: Layouts) -> Option<(usize, Vec<(&'static str, usize)>)> {
    macro_rules! fields {
        ($kind:ty: $($name:literal = $field:ident),* $(,)?) => {
            Some((size_of::<$kind>(), vec![$(($name, offset_of!($kind, $field))),*]))
        };
    }
    match name {
        "Stat" => fields!(Stat: "current" = current, "peak" = peak, "allocated" = allocated, "freed" = freed),
        "DeviceStats" => Some(stats_of(layouts)),
        "PoolMap" => Some((
            32,
            vec![
                ("entries", 0),
                ("num_slots_minus_one", 8),
                ("hash_policy", 16),
                ("max_lookups", 17),
                ("_max_load_factor", 20),
                ("num_elements", 24),
            ],
        )),
        "PoolEntry" => Some((120, vec![("distance_from_desired", 0), ("", 8)])),
        "BlockInfo" => fields!(BlockInfo:
            "size" = size, "requested_size" = requested_size, "gc_counter" = gc_counter,
            "allocated" = allocated, "active" = active, "context_when_allocated" = context),
        "SegmentInfo" => fields!(SegmentInfo:
            "device" = device, "registration_counter" = registration_counter, "address" = address,
            "total_size" = total_size, "requested_size" = requested_size, "allocated_size" = allocated_size,
            "active_size" = active_size, "stream" = stream, "is_large" = is_large,
            "is_expandable" = is_expandable, "owner_private_pool_id" = pool, "blocks" = blocks,
            "context_when_allocated" = context),
        "TraceEntry" => {
            let (_, mut fields): (usize, Vec<_>) = fields!(TraceEntry:
                "action_" = action, "device_" = device, "addr_" = addr, "context_" = context,
                "stream_" = stream, "size_" = size, "mempool_" = pool, "time_" = time,
                "compile_context_" = compile_context, "user_metadata_" = user_metadata)?;
            if !layouts.user_metadata {
                fields.pop();
            }
            if layouts.internal_metadata {
                fields.push(("internal_metadata_", size_of::<TraceEntry>()));
            }
            Some((layouts.trace_entry(), fields))
        }
        "AnnotationEntry" => {
            fields!(AnnotationEntry: "device_" = device, "time_" = time, "metadata_" = metadata)
        }
        "AllocatorConfigInfo" => {
            let (size, mut fields): (usize, Vec<_>) = fields!(ConfigInfo:
                "garbage_collection_threshold" = garbage_collection_threshold,
                "max_split_size" = max_split_size,
                "pinned_num_register_threads" = pinned_num_register_threads,
                "expandable_segments" = expandable_segments,
                "release_lock_on_malloc" = release_lock_on_malloc,
                "pinned_use_host_register" = pinned_use_host_register,
                "graph_capture_record_stream_reuse" = graph_capture_record_stream_reuse,
                "last_allocator_settings" = last_allocator_settings,
                "roundup_power2_divisions" = roundup_power2_divisions)?;
            if layouts.pinned_limits {
                fields.extend([("max_round_threshold", size), ("max_cached_size", size + 8)]);
            }
            Some((size + if layouts.pinned_limits { 16 } else { 0 }, fields))
        }
        "SnapshotInfo" => {
            let config = size_of::<ConfigInfo>() + if layouts.pinned_limits { 16 } else { 0 };
            let mut fields = vec![
                ("segments", 24),
                ("device_traces", 24),
                ("external_annotations", 24),
                ("config_metadata", config),
            ];
            if layouts.host {
                fields.extend([("host_segments", 24), ("host_traces", 24)]);
            }
            Some(in_a_row(&fields))
        }
        "CheckpointDelta" => fields!(CheckpointDelta: "ptrs_freed" = freed, "dataptrs_allocd" = allocated),
        "ShareableHandle" => Some((40, vec![("offset", 0), ("handle", 8)])),
        "StreamSegmentSize" => fields!(StreamSegmentSize:
            "stream" = stream, "is_small_pool" = is_small, "total_size" = total_size),
        "DataPtr" => {
            Some((size_of::<DataPtr>(), vec![("ptr_", 0), ("device_", offset_of!(DataPtr, device))]))
        }
        "UniqueVoidPtr" => Some((24, vec![("data_", 0), ("ctx_", 8)])),
        "CUDAStream" => Some((16, vec![("stream_", 0)])),
        _ => None,
    }
}

/// Fields in a gap of older builds: writing them does no harm.
const IN_A_GAP: [&str; 2] = ["registration_counter", "graph_capture_record_stream_reuse"];

#[test]
fn every_structure_of_every_build_is_laid_out_as_it_is_written_here() {
    for row in ROWS {
        let layouts = Layouts::of(row).unwrap_or_else(|| panic!("{}: an unknown size", row.version));
        for structure in row.structures {
            let (version, name) = (row.version, structure.name);
            let (size, mut fields) = expected(name, layouts).unwrap_or_else(|| panic!("{version}: {name}"));
            let has = |name: &str| structure.fields.iter().any(|(field, _)| *field == name);
            fields.retain(|(field, _)| has(field) || !IN_A_GAP.contains(field));
            assert_eq!((structure.size, structure.fields), (size, fields.as_slice()), "{version}: {name}");
        }
    }
}

#[test]
fn a_row_with_a_structure_of_another_size_is_refused() {
    use super::rows::Structure;
    const STRUCTURES: &[Structure] = &[Structure { name: "DeviceStats", size: 992, fields: &[] }];
    assert!(Layouts::of(&Row { structures: STRUCTURES, ..ROWS[0] }).is_none());
}

#[test]
fn statistics_are_written_where_each_build_has_them() {
    let stats =
        DeviceStats { num_ooms: 7, num_oom_rejections: 8, max_split_size: -1, ..DeviceStats::default() };
    for row in ROWS {
        let layouts = Layouts::of(row).expect("a known layout");
        if layouts.pools {
            // Its map comes from PyTorch's own C++ library, which is not loaded here.
            continue;
        }
        let (size, fields) = stats_of(layouts);
        let mut room = vec![0x55_i64; size / 8 + 1];
        // SAFETY: room for the structure and one word more.
        unsafe { write_stats(room.as_mut_ptr().cast(), &stats, &[], layouts) };
        let at = |name| fields.iter().find(|(field, _)| *field == name).map(|(_, at)| room[at / 8]);
        assert_eq!((at("num_ooms"), at("max_split_size")), (Some(7), Some(-1)), "{}", row.version);
        assert_eq!(at("num_oom_rejections"), layouts.refusals.then_some(8), "{}", row.version);
        assert_eq!(room.last(), Some(&0x55), "{}: nothing is written behind it", row.version);
    }
}
