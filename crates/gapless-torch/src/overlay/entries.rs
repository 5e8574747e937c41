//! The functions of this library that replace functions of the table.
//!
//! They are chosen by name, and by arguments as the C++ ABI writes them: if releases gave a function other arguments,
//! there is an entry for each. A function that only some releases have is replaced in those. A function without an
//! entry stays PyTorch's own.

use super::rows::Row;
use super::{checkpoint, memory, peers, pools, recording, sharing, snapshot, stats};

/// A function of ours, and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) word: usize,
    pub(super) function: usize,
}

/// `std::string`, as a part of the arguments.
macro_rules! string {
    () => {
        "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    };
}

macro_rules! entries {
    ($($name:literal($arguments:expr) => $function:path,)*) => {
        [$(($name, $arguments, $function as *const () as usize)),*]
    };
}

/// Every entry: the name, the arguments, the function.
fn known() -> [(&'static str, &'static str, usize); 48] {
    entries! {
        "allocate"("m") => memory::allocate,
        "raw_deleter"("v") => memory::raw_deleter,
        "raw_alloc"("m") => memory::raw_alloc,
        "raw_alloc_with_stream"("mP11CUstream_st") => memory::raw_alloc_with_stream,
        "raw_delete"("Pv") => memory::raw_delete,
        "allocateWithAddress"("mPv") => memory::allocate_at,
        "emptyCache"("St4pairIyyE") => memory::empty_cache,
        "getMemoryFraction"("a") => memory::memory_fraction,
        "setMemoryFraction"("da") => memory::set_memory_fraction,
        "cacheInfo"("aPm") => memory::cache_info,
        "enable"("b") => memory::enable,
        "isEnabled"("v") => memory::is_enabled,
        "shareIpcHandle"("Pv") => sharing::share,
        "getIpcDevPtr"(string!()) => sharing::open,
        "enablePeerAccess"("aa") => peers::enable,
        "memcpyAsync"("PviPKvimP11CUstream_stb") => peers::memcpy,
        "getDeviceStats"("a") => stats::device_stats,
        "resetAccumulatedStats"("a") => stats::reset_accumulated,
        "resetPeakStats"("a") => stats::reset_peak,
        "getExpandableSegmentSizes"("a") => snapshot::expandable_sizes,
        "snapshot"("St4pairIyyEb") => snapshot::snapshot,
        "snapshot"("St4pairIyyE") => snapshot::whole_snapshot,
        "markCaptureBegin"("a") => pools::capture_begins,
        "markCaptureEnd"("a") => pools::capture_ends,
        "getPoolUseCount"("aSt4pairIyyE") => pools::use_count,
        "createOrIncrefPool"("aSt4pairIyyESt10shared_ptrIS2_E") => pools::create,
        "createOrIncrefPool"("aSt4pairIyyEPS2_") => pools::create_plain,
        "setUseOnOOM"("aSt4pairIyyEb") => pools::set_use_on_oom,
        "setUseOnOOM"("aSt4pairIyyE") => pools::use_on_oom,
        "setNoSplit"("aSt4pairIyyE") => pools::set_no_split,
        "checkPoolLiveAllocations"(
            "aSt4pairIyyERKSt13unordered_setIPvSt4hashIS6_ESt8equal_toIS6_ESaIS6_EE"
        ) => pools::has_live_allocations,
        "isHistoryEnabled"("v") => recording::is_enabled,
        "recordHistory"(concat!(
            "bPFSt10shared_ptrIN3c1015GatheredContextEEvEmNS4_22CachingDeviceAllocator13RecordContextEbRKSt6vectorI",
            string!(),
            "SaISH_EE"
        )) => recording::record_history,
        "recordHistory"(
            "bPFSt10shared_ptrIN3c1015GatheredContextEEvEmNS4_4cuda20CUDACachingAllocator13RecordContextEb"
        ) => recording::record_all,
        "recordAnnotation"(concat!("RKSt6vectorISt4pairI", string!(), "SA_ESaISB_EE")) => recording::annotate,
        "pushCompileContext"(concat!("R", string!())) => recording::enter_compiled,
        "popCompileContext"("v") => recording::leave_compiled,
        "supportsUserMetadata"("v") => recording::has_metadata,
        "setUserMetadata"(concat!("RK", string!())) => recording::set_metadata,
        "getUserMetadata"("v") => recording::metadata,
        "annotateMemory"(concat!("PKvRK", string!())) => recording::annotate_memory,
        "attachOutOfMemoryObserver"("St8functionIFvlmmmEE") => recording::observe_failures,
        "attachOomRejectionObserver"("St8functionIFvlmmmEE") => recording::observe_refusals,
        "getContextForPointer"("PKv") => recording::stack_of,
        "attachAllocatorTraceTracker"(
            "St8functionIFvRKN3c1022CachingDeviceAllocator10TraceEntryEEE"
        ) => recording::track,
        "attachAllocatorTraceTracker"(
            "St8functionIFvRKN3c104cuda20CUDACachingAllocator10TraceEntryEEE"
        ) => recording::track,
        "getCheckpointState"("aSt4pairIyyE") => checkpoint::save,
        "setCheckpointPoolState"(
            "aSt10shared_ptrIN3c104cuda20CUDACachingAllocator14AllocatorStateEE"
        ) => checkpoint::restore,
    }
}

/// The entries of a build, each with its place.
///
/// # Errors
/// If the build has a function with arguments that ours does not take.
pub(super) fn all(row: &Row) -> Result<Vec<Entry>, String> {
    let mut list: Vec<Entry> = Vec::new();
    let known = known();
    for (name, _, _) in known {
        if list.iter().any(|entry| entry.name == name) {
            continue;
        }
        let Some((word, takes)) = row.word_of(name) else { continue };
        let fits = known.iter().find(|(other, arguments, _)| *other == name && *arguments == takes);
        let Some((_, _, function)) = fits else {
            return Err(format!("torch's {name} takes other arguments ({takes}) than ours"));
        };
        list.push(Entry { name, word, function: *function });
    }
    Ok(list)
}
