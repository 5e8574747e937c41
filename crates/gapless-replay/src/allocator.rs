//! The trait of every allocator model: a deterministic machine that serves a script's requests from a device.
//!
//! Promises each model keeps, and `tests/conformance.rs` checks: live blocks never overlap and are aligned; reserved
//! bytes never exceed the card; the statistics equal the sums of the blocks and segments; the same input gives the
//! same output; a request that fails leaves the allocator in a state from which the next one can be served.

pub use gapless_pool::Gauge;
use gapless_trace::{Bytes, DeviceAddr, PoolId, StreamId};

/// Names one allocation of a script: dense, from 0, in order of birth.
pub type Slot = u32;

/// Source of a request: a stream, and the pool that the program routed it to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    pub stream: StreamId,
    pub pool: PoolId,
}

/// Position of a lane in the script's list.
pub type LaneIndex = u16;

/// Something that serves requests.
pub trait Allocator {
    /// Serves `size` bytes on `lane`. `slot` is free: never used, or given back and completed.
    ///
    /// # Errors
    /// When there is no memory for it; `slot` then stays free.
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom>;

    /// The caller gave `slot` back while another stream may still use it.
    fn free_requested(&mut self, slot: Slot);

    /// No stream uses `slot` any more; it was given back before.
    fn free_completed(&mut self, slot: Slot);

    /// The caller gave `slot` back, and no other stream used it.
    fn free(&mut self, slot: Slot) {
        self.free_requested(slot);
        self.free_completed(slot);
    }

    /// The program asked to give cached memory back to the device: all of it, or that of one pool.
    fn empty_cache(&mut self, _pool: Option<PoolId>) {}

    /// The program dropped `pool`: its cached memory may be given back from now on.
    fn release_pool(&mut self, _pool: PoolId) {}

    fn stats(&self) -> &Stats;

    /// The state of the heap now, by looking at every block: for the few moments that are shown, not for every event.
    fn inventory(&self) -> Inventory;
}

/// Counts of an allocator, with the meaning of PyTorch's statistics of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks in callers' hands.
    pub allocations: Gauge,
    /// Their sizes.
    pub allocated: Gauge,
    /// Bytes requested, until the block can be used again.
    pub requested: Gauge,
    /// Blocks that cannot be used again yet: in callers' hands, or pending.
    pub active_blocks: Gauge,
    pub active: Gauge,
    /// Segments taken from the device in one piece (mapped pages do not count).
    pub segments: Gauge,
    pub reserved: Gauge,
    /// Free blocks in split segments.
    pub inactive_split_blocks: Gauge,
    pub inactive_split: Gauge,
    /// Allocations and segments at or above the largest size that is split.
    pub oversize_allocations: Gauge,
    pub oversize_segments: Gauge,
    /// Calls that took memory from the device, and that gave it back.
    pub device_allocs: u64,
    pub device_frees: u64,
    /// Requests that were served only after the caches were given back.
    pub retries: u64,
    pub ooms: u64,
    /// Waits for all streams.
    pub syncs: u64,
    /// Estimated time in the driver, in nanoseconds (see `cost.rs`).
    pub driver_ns: u64,
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oom {
    /// Bytes that the caller asked for.
    pub requested: Bytes,
    /// Bytes that the allocator asked the device for.
    pub asked: Bytes,
    /// Bytes that the card, or the cap, still had.
    pub free: Bytes,
}

/// The heap at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Segments and mapped stretches.
    pub segments: u32,
    pub reserved: Bytes,
    pub active: Bytes,
    /// Free bytes in segments that also hold active blocks: they cannot be given back.
    pub stranded: Bytes,
    pub largest_hole: Bytes,
    pub holes: u32,
    /// Active blocks as (slot, address, size), by address.
    pub blocks: Vec<(Slot, DeviceAddr, Bytes)>,
    /// Segments as (address, size), by address.
    pub spans: Vec<(DeviceAddr, Bytes)>,
}

impl Inventory {
    /// The inventory of `spans` (segments as address and size, by address) that hold `blocks` (active ones, by
    /// address).
    #[must_use]
    pub fn of(spans: Vec<(DeviceAddr, Bytes)>, blocks: Vec<(Slot, DeviceAddr, Bytes)>) -> Inventory {
        let mut inventory = Inventory { segments: spans.len() as u32, ..Inventory::default() };
        let mut next = 0;
        for &(addr, size) in &spans {
            inventory.reserved += size;
            let end = addr.0 + size.0;
            let (mut at, mut active, mut free) = (addr.0, 0, 0);
            let mut hole = |from: u64, to: u64| {
                if to > from {
                    free += to - from;
                    inventory.holes += 1;
                    inventory.largest_hole = inventory.largest_hole.max(Bytes(to - from));
                }
            };
            while let Some(&(_, start, bytes)) = blocks.get(next).filter(|b| b.1.0 < end) {
                hole(at, start.0);
                active += bytes.0;
                at = start.0 + bytes.0;
                next += 1;
            }
            hole(at, end);
            inventory.active += Bytes(active);
            if active > 0 {
                inventory.stranded += Bytes(free);
            }
        }
        inventory.blocks = blocks;
        inventory.spans = spans;
        inventory
    }
}
