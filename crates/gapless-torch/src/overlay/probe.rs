//! Tries a build before its table is changed for good: in a forked child, before CUDA starts (`_selftest.py`).
//!
//! There are two tables for trials. In the first, every function throws its own place, so a call from Python shows the
//! place for which PyTorch's callers were compiled. The second answers statistics and snapshots with a different number
//! in every field, written like the real ones. Python's dictionaries then show if each number arrives in its field.

use super::layout::{
    AnnotationEntry, BlockInfo, DeviceStats, MempoolId, SegmentInfo, SnapshotInfo, Stat, StatArray, layouts,
    set_layouts, write_newer_parts, write_stats,
};
use super::rows::HEADER;
use super::traces::{write_annotation, write_trace_entry};
use super::{This, ready, snapshot};
use crate::cxx::{CxxVec, SharedPtr};
use crate::exception::{self, Kind};
use crate::history::{Action, Annotation, Entry};
use gapless_pool::{PoolKey, StreamHandle};
use std::ffi::c_void;
use std::sync::Arc;

/// Throws its own place in the table. An exception suits every signature.
unsafe extern "C-unwind" fn stub<const AT: usize>() {
    // SAFETY: C++ called through the table and handles exceptions; no card is locked.
    unsafe { exception::throw(Kind::Error, format!("gapless probe {AT}.")) };
}

macro_rules! stubs {
    ($($at:literal)*) => {
        [$(stub::<$at> as *const () as usize),*]
    };
}

/// The most words that a table can have in a trial.
fn stubs() -> [usize; 80] {
    stubs! {
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
        40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76
        77 78 79
    }
}

/// Installs a table for trials. Only for a process that ends before the allocator is used.
///
/// # Errors
/// If the build is unknown or differs from its row.
pub fn install(version: &str, commit: &str, answers: bool) -> Result<(), String> {
    let ready = ready(version, commit)?;
    let stubs = stubs();
    let (Some(stats), Some(snapshot)) = (ready.word_of("getDeviceStats"), ready.word_of("snapshot")) else {
        return Err("the table has no place for statistics or snapshots".to_owned());
    };
    if ready.words > stubs.len() {
        return Err(format!("a table of {} words cannot be tried", ready.words));
    }
    set_layouts(ready.layouts);
    // SAFETY: a stub throws, which suits every place. The answers take the arguments of their places; the snapshot of
    // older builds has one argument less, which ours does not read.
    unsafe {
        ready.put(|table| {
            if answers {
                table[stats] = known_stats as *const () as usize;
                table[snapshot] = known_snapshot as *const () as usize;
            } else {
                for word in HEADER..ready.words {
                    if !ready.kept.contains(&word) {
                        table[word] = stubs[word];
                    }
                }
            }
        });
    }
    Ok(())
}

/// Counts up from `first`, so that every number differs.
fn counting(first: i64) -> impl FnMut() -> i64 {
    let mut next = first - 1;
    move || {
        next += 1;
        next
    }
}

fn stat(next: &mut impl FnMut() -> i64) -> Stat {
    Stat { current: next(), peak: next(), allocated: next(), freed: next() }
}

fn array(next: &mut impl FnMut() -> i64) -> StatArray {
    [stat(next), stat(next), stat(next)]
}

/// `getDeviceStats(device)`: numbers from 1000 on, in the order of the fields; those of two pools from 2000 and 3000.
unsafe extern "C-unwind" fn known_stats(out: *mut DeviceStats, _: This, _: i8) -> *mut DeviceStats {
    let next = &mut counting(1000);
    let stats = DeviceStats {
        allocation: array(next),
        segment: array(next),
        active: array(next),
        inactive_split: array(next),
        allocated_bytes: array(next),
        reserved_bytes: array(next),
        active_bytes: array(next),
        inactive_split_bytes: array(next),
        requested_bytes: array(next),
        num_alloc_retries: next(),
        num_ooms: next(),
        oversize_allocations: stat(next),
        oversize_segments: stat(next),
        num_sync_all_streams: next(),
        num_device_alloc: next(),
        num_device_free: next(),
        num_oom_rejections: next(),
        max_split_size: next(),
    };
    let pools = [([7, 8], array(&mut counting(2000))), ([9, 10], array(&mut counting(3000)))];
    // SAFETY: C++ passes `out` as the place for the result, with room for this build's structure.
    unsafe { write_stats(out, &stats, &pools, layouts()) };
    out
}

/// `snapshot(pool, with history)`: one segment of two blocks, one entry, one annotation.
unsafe extern "C-unwind" fn known_snapshot(
    out: *mut SnapshotInfo,
    _: This,
    _: MempoolId,
) -> *mut SnapshotInfo {
    let block = |size: usize, allocated, active| BlockInfo {
        size,
        requested_size: size - 1,
        gc_counter: 0,
        allocated,
        active,
        context: SharedPtr::NULL,
    };
    let entry = Entry {
        action: Action::FreeCompleted,
        addr: 4001,
        size: 4002,
        stream: StreamHandle(4003),
        pool: PoolKey(11, 12),
        time: 4004,
        stack: None,
        compiled: Some(Arc::from("a compiled region")),
        metadata: Some(Arc::from("metadata of a program")),
        at_address: false,
    };
    let pairs = vec![("name".to_owned(), "step".to_owned()), ("stage".to_owned(), "START".to_owned())];
    let annotation = Annotation { device: 0, time: 4005, pairs };
    // SAFETY: C++ called and handles exceptions; `out` is its place for the result. Everything in it is built like the
    // real snapshot.
    unsafe {
        let segment = SegmentInfo {
            device: 0,
            registration_counter: 5000,
            address: 5001,
            total_size: 5002,
            requested_size: 5003,
            allocated_size: 5004,
            active_size: 5005,
            stream: 5006 as *mut c_void,
            is_large: true,
            is_expandable: true,
            pool: MempoolId { first: 13, second: 14 },
            blocks: CxxVec::of(vec![block(5010, true, true), block(5020, false, false)]),
            context: SharedPtr::NULL,
        };
        (&raw mut (*out).segments).write(CxxVec::of(vec![segment]));
        let write = |place, entry: &Entry| write_trace_entry(place, 0, entry);
        let entries = CxxVec::build_with_stride([&entry].into_iter(), layouts().trace_entry(), write);
        (&raw mut (*out).device_traces).write(CxxVec::of(vec![entries]));
        let write =
            |place: *mut AnnotationEntry, annotation: &Annotation| write_annotation(place, annotation);
        (&raw mut (*out).external_annotations).write(CxxVec::build([&annotation].into_iter(), write));
        snapshot::write_config(&raw mut (*out).config, None);
        write_newer_parts(out, [usize::MAX; 2], layouts());
    }
    out
}
