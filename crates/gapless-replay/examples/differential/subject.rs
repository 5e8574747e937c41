//! The compared figures: the allocator as both the real library and a model of it show it.
//!
//! A model implements [`Subject`] over a device with the policies of torch-bench/standin/device.h. Figures that a model
//! does not keep are left out of `fields`, and are then not compared.

use crate::ops::Pool;
use std::collections::BTreeMap;
use std::fmt;

/// The operations that a pool takes: those whose stream is in the set; `None` takes all.
pub(crate) type Filter = Option<Vec<u64>>;

pub(crate) trait Subject {
    /// `None` if there is no memory. Never called with size 0.
    fn malloc(&mut self, size: u64, stream: u64) -> Option<u64>;
    fn free(&mut self, addr: u64);
    fn record_stream(&mut self, addr: u64, stream: u64);
    /// The incomplete events that the oldest `count` operations recorded on `stream` complete: seen when the allocator
    /// polls next.
    fn complete(&mut self, stream: u64, count: u64);
    /// The thread's stream, the streams that capture, and the captures that the allocator is told of.
    fn set_current(&mut self, stream: u64);
    fn set_captures(&mut self, stream: u64, on: bool);
    /// `false`, and nothing happens, if none has begun.
    fn mark_capture(&mut self, begins: bool) -> bool;
    /// On the thread's stream; `None` if no free block holds it.
    fn malloc_at(&mut self, size: u64, addr: u64) -> Option<u64>;
    fn annotate(&mut self, addr: u64);
    fn set_reserve_class(&mut self, stream: u64, class: &str);
    fn begin_pool(&mut self, pool: Pool, accepts: Filter);
    fn end_pool(&mut self, pool: Pool);
    fn release_pool(&mut self, pool: Pool);
    fn empty_cache(&mut self, pool: Pool);
    fn set_fraction(&mut self, fraction: f64);
    fn reset_peak(&mut self);
    fn reset_accumulated(&mut self);
    /// Positions in [`Stats`] that this model keeps.
    fn fields(&self) -> Vec<usize>;
    fn stats(&self, out: &mut Stats);
    /// Reserved bytes of private pools, as [`PoolStats`] has them. Rows that are all zero may be there or not.
    fn pool_stats(&self, out: &mut PoolStats);
    /// Entries since the last call, `snapshot` ones left out.
    fn take_trace(&mut self) -> Vec<Entry>;
    /// By address.
    fn snapshot(&mut self) -> Vec<Segment>;
    /// The real allocator's entries of the operation that comes next, polls included. A model may take only order from
    /// them, which in the library is that of a hash table: the streams that are polled first, the deferred free that
    /// completes first, the pool that is given back first. From 2.12 on that matters: of two free neighbours the one
    /// freed last keeps its rank.
    fn order_of(&mut self, _real: &[Entry]) {}
}

/// The reserved bytes of private pools by id: for all, small and large each current, peak, allocated, freed.
pub(crate) type PoolStats = BTreeMap<Pool, [u64; 12]>;

/// The statistics as one row. Groups of three kinds (all, small, large) of four parts, then two single quantities, then
/// counters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stats(pub(crate) [u64; FIELDS]);

pub(crate) const FIELDS: usize = GROUPS.len() * 12 + SINGLES.len() * 4 + COUNTERS.len();

pub(crate) const GROUPS: [&str; 9] = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
];
pub(crate) const SINGLES: [&str; 2] = ["oversize_allocations", "oversize_segments"];
/// The last two are the device's: bytes taken from it, and events that are incomplete.
pub(crate) const COUNTERS: [&str; 7] = [
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "device_used",
    "device_pending",
];
const KINDS: [&str; 3] = ["all", "small", "large"];
const PARTS: [&str; 4] = ["current", "peak", "allocated", "freed"];

impl Stats {
    pub(crate) const ZERO: Stats = Stats([0; FIELDS]);

    /// The field's name, as `reserved_bytes.all.peak`.
    pub(crate) fn name(field: usize) -> String {
        let singles = GROUPS.len() * 12;
        let counters = singles + SINGLES.len() * 4;
        if field < singles {
            format!("{}.{}.{}", GROUPS[field / 12], KINDS[field / 4 % 3], PARTS[field % 4])
        } else if field < counters {
            format!("{}.{}", SINGLES[(field - singles) / 4], PARTS[field % 4])
        } else {
            COUNTERS[field - counters].to_owned()
        }
    }

    /// The position of the field with this name.
    pub(crate) fn position(name: &str) -> usize {
        (0..FIELDS)
            .find(|&field| Stats::name(field) == name)
            .unwrap_or_else(|| panic!("no statistic is called {name}"))
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.0.iter().enumerate().filter(|(_, v)| **v != 0);
        f.debug_map().entries(set.map(|(field, value)| (Stats::name(field), value))).finish()
    }
}

/// One entry of the allocator's trace; or, from `POLL` on, its questions to the device about events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) action: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
}

impl Entry {
    pub(crate) const FREE_COMPLETED: u64 = 2;
    pub(crate) const SEGMENT_FREE: u64 = 4;
    pub(crate) const SEGMENT_UNMAP: u64 = 6;
    pub(crate) const SNAPSHOT: u64 = 7;
    /// `size` is 1 if the event was complete.
    pub(crate) const POLL: u64 = 100;
    const ACTIONS: [&str; 10] = [
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "snapshot",
        "oom",
        "annotate",
    ];
    const ASKED: [&str; 4] = ["poll", "event_sync", "stream_sync", "device_sync"];
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.action as usize;
        let asked = || index.checked_sub(Entry::POLL as usize).and_then(|i| Entry::ASKED.get(i));
        let name = Entry::ACTIONS.get(index).or_else(asked).copied().unwrap_or("unknown action");
        write!(f, "{name} {:#x} size {} stream {:#x}", self.address, self.size, self.stream)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) total: u64,
    pub(crate) requested: u64,
    pub(crate) allocated: u64,
    pub(crate) active: u64,
    pub(crate) stream: u64,
    pub(crate) pool: Pool,
    pub(crate) large: bool,
    pub(crate) expandable: bool,
    pub(crate) blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) size: u64,
    /// 0 for blocks that are not active: the library shows the last request.
    pub(crate) requested: u64,
    pub(crate) allocated: bool,
    pub(crate) active: bool,
}
