//! The counters: each change is counted in all, and for the class of the place where it lies ([`Place::class`]).
//!
//! [`Place::class`]: crate::allocations::Place::class

use super::{AllocationId, Pool};
use crate::allocations::Allocation;
use crate::device::Device;
use crate::stats::{ClassStats, Gauge};

impl<D: Device> Pool<D> {
    #[inline]
    pub(super) fn count_out(&mut self, lane: u32, class: usize, requested: u64, size: u64) {
        self.shards[lane as usize].tally.took(class, size, requested);
        let s = &mut self.stats;
        s.allocations.add(1);
        s.allocated.add(size);
        s.requested.add(requested);
        s.active_blocks.add(1);
        s.active.add(size);
        self.crest = self.crest.max(s.active.current);
        let c = &mut s.classes[class];
        c.allocations.add(1);
        c.allocated.add(size);
        c.requested.add(requested);
        c.active_blocks.add(1);
        c.active.add(size);
    }

    /// The caller gave a block back; other streams may still use it.
    #[inline]
    pub(super) fn count_free(&mut self, id: AllocationId) {
        let Allocation { size, ref place, .. } = *self.allocation(id);
        let class = place.class();
        let s = &mut self.stats;
        s.allocations.sub(1);
        s.allocated.sub(size);
        let c = &mut s.classes[class];
        c.allocations.sub(1);
        c.allocated.sub(size);
    }

    /// What the program asked for is not its own any more, although the block waits for a fence: PyTorch's own
    /// allocator has no such wait.
    pub(super) fn count_unrequested(&mut self, id: AllocationId) {
        let Allocation { requested, ref place, .. } = *self.allocation(id);
        let class = place.class();
        self.stats.requested.sub(requested);
        self.stats.classes[class].requested.sub(requested);
    }

    /// A block is free; `is_unrequested`: what was asked for was counted before.
    #[inline]
    pub(super) fn count_completed(
        &mut self,
        lane: u32,
        class: usize,
        requested: u64,
        size: u64,
        is_unrequested: bool,
    ) {
        self.shards[lane as usize].tally.gave(class, size, requested);
        let requested = if is_unrequested { 0 } else { requested };
        let s = &mut self.stats;
        s.requested.sub(requested);
        s.active_blocks.sub(1);
        s.active.sub(size);
        let c = &mut s.classes[class];
        c.requested.sub(requested);
        c.active_blocks.sub(1);
        c.active.sub(size);
    }

    /// A page came into a heap. Heaps come in pairs: small, large.
    pub(super) fn count_page_in(&mut self, heap: u32, size: u64) {
        self.count_held(heap as usize % 2, size);
    }

    /// More memory is held: a page, or a segment of a supplier.
    pub(super) fn count_held(&mut self, class: usize, size: u64) {
        self.stats.reserved.add(size);
        self.stats.pages.add(1);
        let held = self.stats.reserved.current;
        debug_assert!(self.options.limit.is_none_or(|limit| held <= limit), "growth keeps to the limit");
        let c = &mut self.stats.classes[class];
        c.reserved.add(size);
        c.pages.add(1);
    }

    pub(super) fn count_page_out(&mut self, heap: u32, size: u64) {
        self.count_let_go(heap as usize % 2, size);
    }

    pub(super) fn count_let_go(&mut self, class: usize, size: u64) {
        self.stats.reserved.sub(size);
        self.stats.pages.sub(1);
        let c = &mut self.stats.classes[class];
        c.reserved.sub(size);
        c.pages.sub(1);
    }

    /// The most that was active since this was last called, whatever happens to peaks. Exact where one shard was busy;
    /// where several were, the sum of what each had at most, which is no less.
    pub fn take_crest(&mut self) -> u64 {
        std::mem::replace(&mut self.crest, self.stats.active.current).max(self.stats.active.current)
    }

    /// Peaks start again from what is there now.
    pub fn reset_peaks(&mut self) {
        for shard in &mut self.shards {
            shard.tally.reset();
            if let Some(steps) = &mut shard.steps {
                steps.reset_peak();
            }
        }
        let reset = |gauge: &mut Gauge| gauge.peak = gauge.current;
        let s = &mut self.stats;
        for gauge in [
            &mut s.allocations,
            &mut s.allocated,
            &mut s.requested,
            &mut s.active_blocks,
            &mut s.active,
            &mut s.reserved,
            &mut s.pages,
        ] {
            reset(gauge);
        }
        for ClassStats { allocations, allocated, requested, active_blocks, active, reserved, pages } in
            &mut s.classes
        {
            for gauge in [allocations, allocated, requested, active_blocks, active, reserved, pages] {
                reset(gauge);
            }
        }
    }
}
