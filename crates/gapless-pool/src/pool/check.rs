//! Checks every invariant of the pool by looking at everything: for tests, after every step.

use super::view::{BlockState, BlockView};
use super::{Place, Pool, PoolKey, SegmentCounts};
use crate::blocks::State;
use crate::device::Device;
use crate::ids::{HeapId, PageId};
use crate::shard::Amount;
use rustc_hash::FxHashMap;

impl<D: Device> Pool<D> {
    /// Checks every invariant, and describes the first that does not hold.
    ///
    /// # Errors
    /// If an invariant does not hold.
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
        let mut lanes = vec![(Amount::default(), [Amount::default(); 2]); self.lanes.len()];
        let mut returning = [Amount::default(); 2];
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
            let (live, in_windows) = &mut lanes[a.lane.index()];
            if a.is_live() {
                live.add(a.size);
            }
            if let Place::Window { .. } = a.place {
                in_windows[a.place.class(a.size)].add(a.size);
            }
            if a.is_lent_only {
                returning[a.place.class(a.size)].add(a.size);
            }
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
        let counted: Vec<_> = self.lanes.shards().map(|shard| (shard.live, shard.in_windows)).collect();
        if lanes != counted || returning != self.returning {
            return Err(format!("lanes have {lanes:?}, {counted:?} counted; {returning:?} return"));
        }
        if callers != self.stats.allocations.current {
            return Err(format!("{callers} allocations, {} counted", self.stats.allocations.current));
        }
        self.check_classes()
    }

    /// Each page counts the windows that have it mapped, and a window of a private pool only has pages of its lane.
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
            // Pages that are kept for good count once more.
            if page.windows < count || page.handle.is_none() {
                let (addr, known) = (page.addr, page.windows);
                return Err(format!("the page at {addr:#x} counts {known} windows, {count} have it mapped"));
            }
        }
        Ok(())
    }

    /// The counters of each class agree with the segments: `allocated`, `requested` and `active` are the sums over the
    /// blocks of its segments, and `reserved` is the sum of the segments except for pages that leave.
    fn check_classes(&self) -> Result<(), String> {
        let mut shown = [[0; 4]; 2];
        let mut counts = SegmentCounts::default();
        let mut by_pool: FxHashMap<PoolKey, [u64; 2]> = FxHashMap::default();
        for segment in self.segments() {
            let class = usize::from(segment.is_large);
            counts.segments[class] += 1;
            if segment.blocks.len() > 1 {
                let is_free =
                    |block: &&BlockView| matches!(block.state, BlockState::Free | BlockState::Returning);
                for block in segment.blocks.iter().filter(is_free) {
                    counts.split[class] += 1;
                    counts.split_bytes[class] += block.size;
                }
            }
            if segment.pool.is_private() {
                by_pool.entry(segment.pool).or_default()[class] += segment.size;
            }
            let [allocated, requested, active, reserved] = &mut shown[usize::from(segment.is_large)];
            *reserved += segment.size;
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
                *allocated += if block.state == BlockState::Allocated { block.size } else { 0 };
                *requested += block.requested;
                *active += block.size;
            }
        }
        if counts != self.segment_counts() {
            return Err(format!("{:?} are counted, segments show {counts:?}", self.segment_counts()));
        }
        let mut counted = self.reserved_by_pool();
        counted.retain(|(_, bytes)| *bytes != [0, 0]);
        if counted.len() != by_pool.len() || counted.iter().any(|(pool, b)| by_pool.get(pool) != Some(b)) {
            return Err(format!("{counted:?} are counted in pools, segments show {by_pool:?}"));
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
