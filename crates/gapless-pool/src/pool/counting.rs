//! The counters. Each change is counted in the totals and in its class, small or large ([`Place::class`]).
//!
//! A small block may be a **guest** in a heap of large ones. It counts as small, and so do its bytes, because views
//! show it as a small segment of its own. So the reserved bytes of each class are what its segments hold.
//!
//! A request may also be charged to a budget. This file checks the room before the request and ends the charge.

use super::{AllocationId, Place, Pool, PoolKey};
use crate::allocations::Allocation;
use crate::budget::{Budget, Room};
use crate::device::{Device, DeviceError, Refusal, StreamHandle};
use crate::ids::{HeapId, LaneId};
use crate::stats::{ClassStats, Gauge};

impl<D: Device> Pool<D> {
    /// Bytes of a small block in heaps of large blocks.
    #[inline]
    fn guest_bytes(&self, place: &Place, size: u64) -> u64 {
        let is_large = HeapId::is_large;
        match place {
            _ if place.class(size) == 1 => 0,
            Place::Home { heap, .. } => {
                if is_large(*heap) {
                    size
                } else {
                    0
                }
            }
            Place::Window { parts, .. } => {
                let guests = parts.iter().filter(|(heap, _)| is_large(*heap));
                guests.map(|(heap, block)| self.heap(*heap).block(*block).size).sum()
            }
            Place::Supplied { .. } | Place::Asleep { .. } => 0,
        }
    }

    /// Counts an allocation that was just made at `place`.
    #[inline]
    pub(super) fn count_out(&mut self, lane: LaneId, place: &Place, requested: u64, size: u64) {
        let (class, guest) = (place.class(size), self.guest_bytes(place, size));
        self.stats.move_reserved(guest, 1, 0);
        let shard = self.lanes.shard_mut(lane);
        shard.tally.took(class, size, requested);
        shard.live.add(size);
        if let Place::Window { .. } = place {
            shard.in_windows[class].add(size);
        }
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

    /// Counts a free by the caller. Other streams may still use the block.
    #[inline]
    pub(super) fn count_free(&mut self, id: AllocationId) {
        let Allocation { size, lane, ref place, .. } = *self.allocation(id);
        let class = place.class(size);
        self.lanes.shard_mut(lane).live.sub(size);
        let s = &mut self.stats;
        s.allocations.sub(1);
        s.allocated.sub(size);
        let c = &mut s.classes[class];
        c.allocations.sub(1);
        c.allocated.sub(size);
    }

    /// Takes a lent block that its borrower freed out of `requested`, although it still waits for a fence: PyTorch's
    /// own allocator has no such wait.
    pub(super) fn count_returning(&mut self, id: AllocationId) {
        let Allocation { addr, size, requested, lane, ref place, .. } = *self.allocation(id);
        let class = place.class(size);
        match *place {
            Place::Home { heap, block } => {
                self.heap_mut(heap).show_returning(block, true);
                self.fences.loans_mut(lane).home.add(addr, size);
            }
            _ => drop(self.fences.loans_mut(lane).windows.insert((size, addr))),
        }
        self.returning[class].add(size);
        self.stats.requested.sub(requested);
        self.stats.classes[class].requested.sub(requested);
    }

    /// Counts a block that became free; for `is_returning` see [`Pool::count_returning`].
    #[inline]
    pub(super) fn count_completed(
        &mut self,
        lane: LaneId,
        place: &Place,
        requested: u64,
        size: u64,
        is_returning: bool,
    ) {
        let (class, guest) = (place.class(size), self.guest_bytes(place, size));
        self.stats.move_reserved(guest, 0, 1);
        let shard = self.lanes.shard_mut(lane);
        shard.tally.gave(class, size, requested);
        if let Place::Window { .. } = place {
            shard.in_windows[class].sub(size);
        }
        if is_returning {
            self.returning[class].sub(size);
            match *place {
                Place::Home { heap, block } => {
                    self.heap_mut(heap).show_returning(block, false);
                    let addr = self.heap(heap).block(block).addr;
                    self.fences.loans_mut(lane).home.remove(addr, size);
                }
                Place::Window { window, .. } => {
                    let addr = self.windows.get(window).addr();
                    self.fences.loans_mut(lane).windows.remove(&(size, addr));
                }
                Place::Supplied { .. } | Place::Asleep { .. } => {}
            }
        }
        let requested = if is_returning { 0 } else { requested };
        let s = &mut self.stats;
        s.requested.sub(requested);
        s.active_blocks.sub(1);
        s.active.sub(size);
        let c = &mut s.classes[class];
        c.requested.sub(requested);
        c.active_blocks.sub(1);
        c.active.sub(size);
    }

    /// Counts the rest of a split lent block, which stays active as a block of its own.
    pub(super) fn count_kept(&mut self, lane: LaneId, place: &Place, size: u64) {
        let (class, guest) = (place.class(size), self.guest_bytes(place, size));
        self.stats.move_reserved(guest, 1, 0);
        self.lanes.shard_mut(lane).tally.took(class, size, 0);
        let ClassStats { active_blocks, active, .. } = &mut self.stats.classes[class];
        for (gauge, more) in [
            (active_blocks, 1),
            (active, size),
            (&mut self.stats.active_blocks, 1),
            (&mut self.stats.active, size),
        ] {
            gauge.current += more;
            // The sum did not change, but a part of a large block may be a small block.
            gauge.peak = gauge.peak.max(gauge.current);
        }
    }

    /// Counts a page that came into a heap.
    pub(super) fn count_page_in(&mut self, heap: HeapId, size: u64) {
        self.count_held(heap.class(), size);
    }

    /// Counts memory that is held: a page, or a segment of a supplier.
    pub(super) fn count_held(&mut self, class: usize, size: u64) {
        self.stats.reserved.add(size);
        self.stats.pages.add(1);
        let held = self.stats.reserved.current;
        debug_assert!(self.options.limit.is_none_or(|limit| held <= limit), "growth keeps to the limit");
        let c = &mut self.stats.classes[class];
        c.reserved.add(size);
        c.pages.add(1);
    }

    pub(super) fn count_page_out(&mut self, heap: HeapId, size: u64) {
        self.count_let_go(heap.class(), size);
    }

    pub(super) fn count_let_go(&mut self, class: usize, size: u64) {
        self.stats.reserved.sub(size);
        self.stats.pages.sub(1);
        let c = &mut self.stats.classes[class];
        c.reserved.sub(size);
        c.pages.sub(1);
    }

    /// The highest number of active bytes since the last call, independent of peaks. Exact if one shard was busy; if
    /// several were, the sum of their peaks, which may be higher.
    pub fn take_crest(&mut self) -> u64 {
        std::mem::replace(&mut self.crest, self.stats.active.current).max(self.stats.active.current)
    }

    /// Sets all peaks to the present values.
    pub fn reset_peaks(&mut self) {
        for shard in self.lanes.shards_mut() {
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

    // ---- budgets ----

    /// Checks that `size` bytes may be charged to a budget. If they exceed its soft limit, free memory goes back to the
    /// device: at once if no work uses it any more, else with the first request after that work is done.
    #[inline]
    pub(super) fn ask(
        &mut self,
        budget: Option<&'static Budget>,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
    ) -> Result<(), DeviceError> {
        budget.map_or(Ok(()), |budget| self.ask_for(budget, size, stream, pool))
    }

    #[cold]
    fn ask_for(
        &mut self,
        budget: &'static Budget,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
    ) -> Result<(), DeviceError> {
        match budget.room(size) {
            Room::Enough => Ok(()),
            Room::Pressed => {
                if let Some(lane) = self.lanes.find(stream, pool) {
                    self.lanes.shard_mut(lane).turn_is_wanted = true;
                    self.turn(lane, stream);
                }
                self.trim_behind_work();
                if self.keeps_free_pages() {
                    self.owe();
                    budget.owe();
                }
                Ok(())
            }
            Room::PressedAgain => {
                if !self.pay_owed() {
                    budget.owe();
                }
                Ok(())
            }
            Room::None => {
                self.stats.ooms += 1;
                Err(DeviceError::Refused(Refusal::Budget))
            }
        }
    }

    /// Ends the charge of an allocation that the caller freed, although other streams may still use it.
    pub(super) fn uncharge(&mut self, id: AllocationId) {
        let allocation = self.allocation_mut(id);
        let size = allocation.size;
        if let Some(budget) = allocation.budget.take() {
            budget.give(size);
        }
    }
}
