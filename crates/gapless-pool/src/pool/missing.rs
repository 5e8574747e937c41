//! Requests for which no free block fits, served with as little new memory as possible. If that fails too, the
//! [`ladder`](super::ladder) begins.

use super::pieces::{Reach, Source};
use super::{Place, Pool, SMALL, TRIES};
use crate::device::{Device, DeviceError};
use crate::heap::GRANULE;
use crate::ids::{Fence, HeapId, LaneId};
use crate::shard::Shard;

/// The least slack, and the slack for each lane that holds something, because the lane's two heaps end in half-empty
/// pages. Below that, saving memory costs more than it gains: a lane that lives on loans locks the whole pool for each
/// request, and takes memory that its lender then has to borrow elsewhere.
const LEAST_SLACK: u64 = 16 << 20;
const LANE_SLACK: u64 = 2 * GRANULE;
/// Small requests from this size on go into holes between large blocks before they get a new page, because a page has
/// room for few of them.
const IN_HOLES: u64 = 128 << 10;

/// The owner of free memory that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    #[cfg(test)]
    Own,
    /// Other lanes, if no work uses the memory any more.
    Lent,
    /// Other lanes, as if all work were done.
    LentLater,
}

impl<D: Device> Pool<D> {
    #[cold]
    pub(super) fn miss(&mut self, lane: LaneId, heap: HeapId, size: u64) -> Result<Place, DeviceError> {
        self.clock += 1;
        self.turn_ahead(lane);
        self.look_at_fences();
        self.retire();
        if self.lanes[lane].pool.is_private() {
            return self.miss_in_private(lane, heap, size);
        }
        if let Some(place) = self.take_back(lane, size) {
            return Ok(place);
        }
        if size <= SMALL {
            let missing = self.missing_at_home(heap, size);
            if let Some(place) = self.small_in_hole(lane, size) {
                return Ok(place);
            }
            // The first page of a lane is always its own, because the lender must serve each request from lent memory
            // and hears of each free.
            if self.heap(heap).end() > self.heap(heap).start()
                && self.stats.reserved.current + GRANULE > self.allowed(size)
                && let Some(place) = self.small_elsewhere(lane, size)
            {
                return Ok(place);
            }
            return match self.grow_for(heap, size, missing) {
                Ok(()) => self.at_home(heap, size),
                Err(error) => self.climb(lane, heap, size, error),
            };
        }
        if let Some(place) = self.reuse_window(lane, size) {
            return Ok(place);
        }
        let plain = self.missing_at_home(heap, size);
        let allowed = self.allowed(size);
        if self.stats.reserved.current + plain <= allowed && self.grow_for(heap, size, plain).is_ok() {
            return self.at_home(heap, size);
        }
        if let Some(place) = self.lend_block(lane, size, LaneId::large, u64::MAX) {
            return Ok(place);
        }
        self.harvest(lane, heap, size, plain).or_else(|error| self.climb(lane, heap, size, error))
    }

    /// [`Pool::miss`] for a private pool, of a graph or of the program's own. The pool keeps what it takes from the
    /// device for as long as it is used, so its free pages come first, without any slack. Its addresses serve another
    /// pool only after it was released and emptied.
    pub(super) fn miss_in_private(
        &mut self,
        lane: LaneId,
        heap: HeapId,
        size: u64,
    ) -> Result<Place, DeviceError> {
        let plain = self.missing_at_home(heap, size);
        let served = if size <= SMALL {
            self.grow_for(heap, size, plain).and_then(|()| self.at_home(heap, size))
        } else if let Some(place) = self.reuse_window(lane, size) {
            Ok(place)
        } else {
            self.harvest(lane, heap, size, plain)
        };
        served.or_else(|error| self.climb(lane, heap, size, error))
    }

    /// The bytes that may be held without a harvest first, once `size` more bytes are live.
    pub(super) fn allowed(&self, size: u64) -> u64 {
        let peak = self.stats.active.peak.max(self.stats.active.current + size);
        let is_used = |shard: &Shard| !shard.pool.is_private() && !shard.allocations.is_empty();
        if self.is_scarce() {
            return peak;
        }
        let lanes = self.lanes.shards().filter(|shard| is_used(shard)).count() as u64;
        peak + (peak / 1000 * self.options.slack).max(LEAST_SLACK).max(lanes * LANE_SLACK)
    }

    pub(super) fn at_home(&mut self, heap: HeapId, size: u64) -> Result<Place, DeviceError> {
        let block = self.heap_mut(heap).take(size).ok_or(DeviceError::OutOfMemory)?;
        Ok(Place::Home { heap, block })
    }

    /// Serves from free pages, and from as few new ones as possible.
    pub(super) fn harvest(
        &mut self,
        lane: LaneId,
        heap: HeapId,
        size: u64,
        plain: u64,
    ) -> Result<Place, DeviceError> {
        self.take_stock(lane, false);
        let mut reach = self.within_reach(lane, None);
        let is_lent = reach.most() < size;
        if is_lent {
            self.look_for_lent(lane);
            reach = self.within_reach(lane, Some(Whose::Lent));
        }
        let has_lent = reach.has_lent();
        let missing = size.saturating_sub(reach.most()).div_ceil(GRANULE) * GRANULE;
        // A window over hundreds of pages that saves next to nothing is not worth it, unless memory is scarce.
        let little = if self.is_scarce() { 0 } else { self.stats.reserved.current / 1000 };
        if plain.saturating_sub(missing) <= little || !self.may_map_again(lane, size) {
            self.grow_for(heap, size, plain.min(self.missing_at_home(heap, size)))?;
            return self.at_home(heap, size);
        }
        let chosen = if missing > 0 {
            let fresh = self.grow_anywhere(heap, missing)?;
            if let Ok(place) = self.at_home(heap, size) {
                return Ok(place);
            }
            self.take_stock(lane, false);
            reach = self.within_reach(lane, None);
            if has_lent || reach.most() < size {
                self.look_for_lent(lane);
                reach = self.within_reach(lane, Some(Whose::Lent));
            }
            reach.choose(size, &fresh)
        } else {
            reach.choose(size, &[])
        };
        if let Some(chosen) = chosen {
            return self.make_window(lane, &chosen, size);
        }
        // Two fragments that exclude each other were counted together, so the choice failed.
        self.grow_for(heap, size, self.missing_at_home(heap, size))?;
        self.at_home(heap, size)
    }

    /// Serves a small request from a hole between the lane's own large blocks, if there are several lanes: otherwise
    /// each lane would have one more half-used page of small blocks. A single lane does better with such pages.
    fn small_in_hole(&mut self, lane: LaneId, size: u64) -> Option<Place> {
        let heap = lane.large();
        let has_hole = self.heap(heap).fits(size).is_some_and(|free| free < GRANULE);
        if size < IN_HOLES || self.lanes.len() < 2 || !has_hole {
            return None;
        }
        self.at_home(heap, size).ok()
    }

    /// Serves a small request when its own heap has nothing and new memory would raise the peak: from holes between
    /// large blocks that are too small for a page, or from other lanes.
    fn small_elsewhere(&mut self, lane: LaneId, size: u64) -> Option<Place> {
        let heap = lane.large();
        if self.heap(heap).fits(size).is_some_and(|free| free < GRANULE) {
            return self.at_home(heap, size).ok();
        }
        self.lend_block(lane, size, LaneId::small, u64::MAX)
            .or_else(|| self.lend_block(lane, size, LaneId::large, GRANULE))
            .or_else(|| self.at_home(heap, size).ok())
            .or_else(|| self.lend_block(lane, size, LaneId::large, u64::MAX))
    }

    /// The smallest free block of another lane's heap that is large enough, below `most`, and used by no work any more.
    pub(super) fn lend_block(
        &mut self,
        lane: LaneId,
        size: u64,
        class: fn(LaneId) -> HeapId,
        most: u64,
    ) -> Option<Place> {
        if self.lanes[lane].pool.is_private() || !self.options.lending {
            return None;
        }
        let is_lender = |&other: &LaneId| other != lane && !self.lanes[other].pool.is_private();
        let has_some = |other: LaneId| self.heap(class(other)).fits(size).is_some_and(|free| free < most);
        if !self.lanes.ids().filter(is_lender).any(has_some) {
            return None;
        }
        self.look_at_fences();
        let is_lender = |&other: &LaneId| other != lane && !self.lanes[other].pool.is_private();
        let lenders = self.lanes.ids().filter(is_lender);
        let fits = lenders.filter_map(|other| {
            let heap = class(other);
            let (free, addr) = self.heap(heap).fits_settled(size, self.fences.done(other), TRIES)?;
            Some((free, heap, addr))
        });
        let Some((_, heap, addr)) = fits.min().filter(|(free, ..)| *free < most) else {
            self.want_turns(lane);
            return None;
        };
        let block = self.heap_mut(heap).take_at(addr, size)?;
        self.stats.lent += 1;
        Some(Place::Home { heap, block })
    }

    /// The sources for a window of a lane: its own heap, and with `lent` those of other lanes. Call
    /// [`Pool::take_stock`] before.
    pub(super) fn within_reach(&self, lane: LaneId, lent: Option<Whose>) -> Reach<'_> {
        // A lane need not wait for its own work.
        let source = |id: HeapId, is_settled: bool| {
            let heap = self.heap(id);
            let done = if is_settled { self.fences.done(id.lane()) } else { Fence::LAST };
            Source { id, heap, shelf: heap.shelf(is_settled), done }
        };
        let own = vec![source(lane.large(), false)];
        let Some(whose) = lent else { return Reach { own, lent: Vec::new() } };
        let others = self.lenders(lane).map(|other| source(other.large(), whose == Whose::Lent));
        Reach { own, lent: others.collect() }
    }

    /// Lanes from which a lane may borrow.
    fn lenders(&self, lane: LaneId) -> impl Iterator<Item = LaneId> + '_ {
        let may = self.options.lending && !self.lanes[lane].pool.is_private();
        let others = self.lanes.iter().filter(move |&(other, _)| may && other != lane);
        others.filter(|(_, owner)| !owner.pool.is_private()).map(|(other, _)| other)
    }

    /// Updates the lists of free memory of a lane's own heap, and `with_lenders` of those of lanes that may lend.
    pub(super) fn take_stock(&mut self, lane: LaneId, with_lenders: bool) {
        let done = self.fences.done(lane);
        self.heap_mut(lane.large()).take_stock(done);
        if with_lenders {
            for other in self.lenders(lane).collect::<Vec<_>>() {
                let done = self.fences.done(other);
                self.heap_mut(other.large()).take_stock(done);
            }
        }
    }

    /// [`Pool::take_stock`] with lenders, after a look at their fences. Asks the lenders for fences, so that more
    /// settles soon.
    pub(super) fn look_for_lent(&mut self, lane: LaneId) {
        if self.lanes.len() > 1 && self.options.lending {
            self.look_at_fences();
            self.want_turns(lane);
        }
        self.take_stock(lane, true);
    }
}
