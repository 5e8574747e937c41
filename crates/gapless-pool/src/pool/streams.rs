//! The lane of a stream in a pool: made on first use, with addresses of its own, and handed on when it is empty.
//! Threads borrow the shards of lanes through [`Fronts`](crate::Fronts).

use super::lanes::Lane;
use super::{Pool, PoolKey};
use crate::device::{Device, DeviceError, StreamHandle};
use crate::heap::{GRANULE, Page};
use crate::ids::LaneId;
use crate::mutants::{self, Mutant};
use crate::shard::{Ranges, Shard};

/// The number of lanes with plenty of addresses, and of lanes with enough for the whole card: a process has 128 TiB of
/// addresses, and cards have up to 288 GiB.
const PLENTY: usize = 32;
const ENOUGH: usize = 128;
/// From this number of lanes on, empty lanes are handed on to new streams.
const MANY: usize = 64;
/// A lane's ranges are sized for a card of at least this much.
const LEAST: u64 = 1 << 30;
/// A range is never smaller than this. The first lane takes at most the first part of the addresses that the process
/// may still have, and each later lane the second part, because the program and windows need some too.
const FEWEST: u64 = 64 << 20;
const FIRST_PART: u64 = 2;
const LATER_PART: u64 = 8;

impl<D: Device> Pool<D> {
    /// The lane of a stream in a pool, made on first use.
    pub(super) fn lane(&mut self, stream: StreamHandle, pool: PoolKey) -> Result<LaneId, DeviceError> {
        if let Some(lane) = self.lanes.find(stream, pool) {
            return Ok(lane);
        }
        let owner = Lane { stream, pool };
        let lane = if let Some(lane) = self.abandoned_lane() {
            self.lanes.hand_on(lane, owner);
            lane
        } else {
            let (addr, ranges) = self.reserve_ranges()?;
            let fence = self.fences.add_lane();
            self.lanes.add(owner, addr, ranges, fence)
        };
        self.set_steps(lane);
        Ok(lane)
    }

    /// The memory of the card. The pool asks only once, because drivers answer slowly.
    pub(super) fn card(&mut self) -> u64 {
        if self.card == 0 {
            self.card = self.device.memory().1;
        }
        self.card
    }

    /// Reserves addresses for a lane: fewer if there are many lanes, or if the program has taken most of them.
    fn reserve_ranges(&mut self) -> Result<(u64, Ranges), DeviceError> {
        let total = self.card().max(LEAST).div_ceil(LEAST) * LEAST;
        let part = |of: u64, part: u64| (of / part).div_ceil(GRANULE) * GRANULE;
        let mut ranges = match self.lanes.len() {
            ..PLENTY => Ranges { small: total, large: 2 * total },
            PLENTY..ENOUGH => Ranges { small: part(total, 4), large: total },
            _ => Ranges { small: part(total, 16), large: part(total, 4) },
        };
        let room = self.device.address_room();
        let most = room / if self.lanes.len() == 0 { FIRST_PART } else { LATER_PART };
        if ranges.small + ranges.large > most {
            let small = ranges.small.min(part(most, 8));
            ranges = Ranges { small, large: ranges.large.min(part(most.saturating_sub(small), 1)) };
        }
        loop {
            ranges = Ranges { small: ranges.small.max(FEWEST), large: ranges.large.max(FEWEST) };
            match self.device.reserve(ranges.small + ranges.large) {
                Ok(addr) => return Ok((addr, ranges)),
                Err(error) if ranges.small + ranges.large == 2 * FEWEST => return Err(error),
                Err(_) => ranges = Ranges { small: part(ranges.small, 2), large: part(ranges.large, 2) },
            }
        }
    }

    /// A lane that is empty, whose addresses can be used again: one of a released pool; or, if there are many lanes,
    /// one of a stream that has nothing allocated, as most streams that no longer exist.
    fn abandoned_lane(&mut self) -> Option<LaneId> {
        let empty = |pool: &Self, lane: LaneId| {
            let shard = pool.lanes.shard(lane);
            shard.allocations.is_empty()
                && !pool.leaving.has(lane)
                && !pool.supplied.holds_of(shard.pool)
                && shard.heaps.iter().all(|heap| heap.pages().iter().all(Page::is_hole))
        };
        if !self.released.is_empty() {
            let mut released = self.lanes.iter().filter(|(_, owner)| self.released.contains(&owner.pool));
            if let Some((lane, _)) = released.find(|&(lane, _)| empty(self, lane)) {
                return Some(lane);
            }
        }
        if self.lanes.len() < MANY || mutants::is(Mutant::AddressesLeak) {
            return None;
        }
        self.look_at_fences();
        let unused = self.lanes.ids().find(|&lane| self.is_unused(lane))?;
        self.drop_idle_windows_of(unused);
        for heap in [unused.small(), unused.large()] {
            self.give_back_pages(heap, u64::MAX);
        }
        empty(self, unused).then_some(unused)
    }

    /// True if a stream's lane of the default pool has nothing allocated, and no work uses its memory.
    fn is_unused(&self, lane: LaneId) -> bool {
        let shard = self.lanes.shard(lane);
        let done = self.fences.done(lane);
        let settled = |page: &Page| {
            (page.handle.is_none() && !page.is_asleep)
                || (page.is_free() && page.windows == 0 && page.freed <= done)
        };
        !shard.pool.is_private()
            && shard.allocations.is_empty()
            && shard.heaps.iter().all(|heap| heap.pages().iter().all(settled))
            && self.ids().all(|id| self.allocation(id).lane != lane)
    }

    // ---- shards set apart for threads, and put back: for [`Fronts`](crate::Fronts) ----

    pub(crate) fn shard_count(&self) -> usize {
        self.lanes.len()
    }

    /// Exchanges the first shards for those of `others` that are `wanted`.
    pub(crate) fn exchange_shards<'a>(
        &mut self,
        others: impl Iterator<Item = &'a mut Box<Shard>>,
        wanted: impl Fn(&Shard) -> bool,
    ) {
        self.lanes.exchange(others, wanted);
    }

    /// Adds to the statistics what shards did on their own.
    pub(crate) fn settle(&mut self) {
        let rise: u64 = self.lanes.shards().map(|shard| shard.tally.rise()).sum();
        self.crest = self.crest.max(self.stats.active.current + rise);
        for shard in self.lanes.shards_mut() {
            shard.tally.settle(&mut self.stats);
        }
        debug_assert!(self.stats.allocated.current <= self.stats.allocated.peak, "shards kept to their room");
    }

    /// Before the shards are set apart: divides the room below the peaks among them, and tells them if frees are
    /// pending.
    pub(crate) fn prepare_shards(&mut self) {
        self.lanes.prepare(&self.stats, !self.pending.is_empty());
    }

    /// True if the pool keeps a log of changes.
    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some()
    }
}
