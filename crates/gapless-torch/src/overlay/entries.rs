//! Which function of this library stands where in the table.

use super::builds::Slots;
use super::{checkpoint, memory, peers, pools, recording, snapshot};
use crate::stats;

/// Every entry with its place.
pub(super) fn all(slots: &Slots) -> Vec<(usize, usize)> {
    macro_rules! entries {
        ($($slot:ident: $function:path,)*) => {
            vec![$((slots.$slot, $function as *const () as usize)),*]
        };
    }
    let mut list = entries! {
        allocate: memory::allocate,
        raw_deleter: memory::raw_deleter,
        raw_alloc: memory::raw_alloc,
        raw_alloc_with_stream: memory::raw_alloc_with_stream,
        raw_delete: memory::raw_delete,
        empty_cache: memory::empty_cache,
        memory_fraction: memory::memory_fraction,
        set_memory_fraction: memory::set_memory_fraction,
        cache_info: memory::cache_info,
        share_handle: memory::share_handle,
        open_handle: memory::open_handle,
        enable_peer: peers::enable,
        memcpy: peers::memcpy,
        device_stats: stats::device_stats,
        reset_accumulated: stats::reset_accumulated,
        reset_peak: stats::reset_peak,
        expandable_sizes: snapshot::expandable_sizes,
        snapshot: snapshot::snapshot,
        pool_use_count: pools::use_count,
        create_pool: pools::create,
        use_on_oom: pools::set_use_on_oom,
        no_split: pools::set_no_split,
        pool_live: pools::has_live_allocations,
        is_history_enabled: recording::is_enabled,
        record_history: recording::record_history,
        record_annotation: recording::annotate,
        push_compile_context: recording::enter_compiled,
        pop_compile_context: recording::leave_compiled,
        set_user_metadata: recording::set_metadata,
        user_metadata: recording::metadata,
        observe_failures: recording::observe_failures,
        track: recording::track,
        checkpoint: checkpoint::save,
        set_checkpoint: checkpoint::restore,
    };
    list.extend(slots.stack_of.map(|slot| (slot, recording::stack_of as *const () as usize)));
    list.extend(slots.observe_refusals.map(|slot| (slot, recording::observe_refusals as *const () as usize)));
    list
}
