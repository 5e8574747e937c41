//! Every invariant of the pool, checked by looking at everything: for tests, after every step.

use super::view::BlockState;
use super::{Place, Pool};
use crate::blocks::State;
use crate::device::Device;
use crate::ids::{HeapId, PageId};
use rustc_hash::FxHashMap;

impl<D: Device> Pool<D> {
    /// Checks every invariant; what is wrong, in words.
    ///
    /// # Errors
    /// When one does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut held = 0;
        let mut live = 0;
        for heap in self.heaps() {
            heap.check()?;
            held += heap.pages().iter().filter(|p| p.handle.is_some()).map(|p| p.size).sum::<u64>();
            live += heap.blocks().filter(|b| b.state == State::Live).map(|b| b.size).sum::<u64>();
        }
        live += self.supplied.check()?;
        held += self.supplied.held();
        self.lanes.check()?;
        self.fences.check()?;
        self.windows.check()?;
        self.check_windows()?;
        self.pending.check()?;
        self.check_sleepers()?;
        if held + self.leaving.bytes != self.stats.reserved.current {
            let (leaving, counted) = (self.leaving.bytes, self.stats.reserved.current);
            return Err(format!("{held} bytes in pages, {leaving} leave, {counted} counted"));
        }
        let (mut sum, mut callers) = (0, 0);
        for id in self.ids() {
            let a = self.allocation(id);
            let addr = a.addr;
            if self.find(addr) != Some(id) {
                return Err(format!("the allocation at {addr:#x} is not found there"));
            }
            if !a.is_asleep() {
                sum += a.size;
            }
            callers += u64::from(a.is_live());
            let blocks: u64 = match &a.place {
                Place::Home { heap, block } | Place::Asleep { heap, block } => {
                    let block = self.heap(*heap).block(*block);
                    if (block.state == State::Asleep) != a.is_asleep() {
                        return Err(format!("the allocation at {addr:#x} and its block do not both sleep"));
                    }
                    block.size
                }
                Place::Window { parts, .. } => parts.iter().map(|(h, b)| self.heap(*h).block(*b).size).sum(),
                Place::Supplied { .. } => self.supplied.size_of(addr),
            };
            if blocks != a.size {
                return Err(format!("the allocation of {} at {addr:#x} has blocks of {blocks}", a.size));
            }
        }
        if sum != self.stats.active.current || live != sum {
            return Err(format!(
                "{sum} active in allocations, {live} in blocks, {} counted",
                self.stats.active.current
            ));
        }
        if callers != self.stats.allocations.current {
            return Err(format!("{callers} allocations, {} counted", self.stats.allocations.current));
        }
        self.check_classes()
    }

    /// A page counts every window that has it mapped, and a window of a private pool has pages of its own lane alone.
    fn check_windows(&self) -> Result<(), String> {
        let mut counts: FxHashMap<(HeapId, PageId), u32> = FxHashMap::default();
        for window in self.windows.iter() {
            for &(heap, page) in window.pages() {
                *counts.entry((heap, page)).or_default() += 1;
                let is_own = heap == window.lane().large();
                if !is_own
                    && [heap.lane(), window.lane()].iter().any(|lane| self.lanes[*lane].pool.is_private())
                {
                    return Err(format!("the window at {:#x} has pages of another pool", window.base()));
                }
            }
        }
        for ((heap, page), count) in counts {
            let page = self.heap(heap).page(page);
            // Those that are kept for good count once more.
            if page.windows < count || page.handle.is_none() {
                let (addr, known) = (page.addr, page.windows);
                return Err(format!("the page at {addr:#x} counts {known} windows, {count} have it mapped"));
            }
        }
        Ok(())
    }

    /// What is counted as small and as large is what the segments show: `allocated`, `requested` and `active` of a
    /// class are the sums over the blocks of its segments, and `reserved` is the sum of the segments but for pages that
    /// leave.
    fn check_classes(&self) -> Result<(), String> {
        let mut shown = [[0; 4]; 2];
        for segment in self.segments() {
            let [allocated, requested, active, reserved] = &mut shown[usize::from(segment.is_large)];
            *reserved += segment.size;
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
                *allocated += if block.state == BlockState::Allocated { block.size } else { 0 };
                *requested += block.requested;
                *active += block.size;
            }
        }
        let counted = self
            .stats
            .classes
            .map(|c| [c.allocated.current, c.requested.current, c.active.current, c.reserved.current]);
        let is_so = |class: usize| {
            let is_reserved =
                self.leaving.bytes > 0 || self.holds_asleep() || counted[class][3] == shown[class][3];
            counted[class][..3] == shown[class][..3] && is_reserved
        };
        if !(is_so(0) && is_so(1)) {
            return Err(format!("classes are counted as {counted:?}, segments show {shown:?}"));
        }
        Ok(())
    }
}
