//! The ladder: the last measures before a request fails, from cheap to expensive.
//!
//! First the pool looks at held memory as it lies. Then come the rungs. **Wait** for pending frees, only for those that
//! would be enough, and for work on memory that other lanes could lend. **Harvest** all free pages, with new memory for
//! what is missing. **Trim**: give back free pages that the request cannot reach, and take them anew where it can.
//! **Shrink** private pools that the program has released. A rung that cannot be enough is skipped, so the pool neither
//! waits nor drops anything in vain. During a capture it only looks at held memory, because it must not wait. The
//! caller may ask the program itself after that.

use super::missing::Whose;
use super::{AllocationId, LARGEST, Place, Pool, PoolKey, SMALL};
use crate::device::{Device, DeviceError, StreamHandle};
use crate::heap::{FRAGMENT, GRANULE};
use crate::ids::{HeapId, LaneId};
use crate::shard::rounded;

/// A rung of the ladder; [`Stats::ladder`](crate::Stats) counts the requests that each served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    Wait,
    Harvest,
    Trim,
    Shrink,
}

impl Rung {
    pub const ALL: [Rung; 4] = [Rung::Wait, Rung::Harvest, Rung::Trim, Rung::Shrink];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rung::Wait => "wait",
            Rung::Harvest => "harvest",
            Rung::Trim => "trim",
            Rung::Shrink => "shrink",
        }
    }
}

/// A request on the ladder.
#[derive(Clone, Copy, Debug)]
struct Asked {
    lane: LaneId,
    heap: HeapId,
    size: u64,
    is_private: bool,
    /// True if no window can serve it.
    is_at_home: bool,
}

/// The use of a pending free for the request, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Its block lies where the request must go, and is large enough.
    Alone,
    /// Together with what is free already it is enough.
    Completes,
    /// It is large enough to be a part of a window.
    Part,
    /// It helps at most together with its neighbours.
    Little,
}

impl<D: Device> Pool<D> {
    /// Serves a request after all cheaper ways and the device failed; `error` is the device's answer.
    #[cold]
    pub(super) fn climb(
        &mut self,
        lane: LaneId,
        heap: HeapId,
        size: u64,
        error: DeviceError,
    ) -> Result<Place, DeviceError> {
        let is_private = self.lanes[lane].pool.is_private();
        let is_at_home = size <= SMALL || !self.may_map_again(lane, size);
        let asked = Asked { lane, heap, size, is_private, is_at_home };
        self.emptied.bare = None;
        if let Some(place) = self.as_it_lies(asked) {
            return Ok(place);
        }
        if self.quiet {
            return Err(error);
        }
        for rung in Rung::ALL {
            let served = match rung {
                Rung::Wait => self.wait_for_enough(asked).or_else(|| self.wait_for_lenders(asked)),
                Rung::Harvest => self.with_new_memory(asked),
                Rung::Trim => self.trim_for(asked, false),
                Rung::Shrink => self.trim_for(asked, true).or_else(|| self.begin_anew(asked)),
            };
            if let Some(place) = served {
                self.stats.ladder[rung as usize] += 1;
                return Ok(place);
            }
            if self.is_put_off() {
                self.waits_on(rung);
                return Err(error);
            }
        }
        Err(error)
    }

    /// Serves from held free memory alone, even if that pins pages.
    fn as_it_lies(&mut self, asked: Asked) -> Option<Place> {
        let Asked { lane, heap, size, is_private, is_at_home } = asked;
        if let Ok(place) = self.at_home(heap, size) {
            return Some(place);
        }
        let large = lane.large();
        if size <= SMALL
            && let Ok(place) = self.at_home(large, size)
        {
            return Some(place);
        }
        if is_private && is_at_home {
            return None;
        }
        if size <= SMALL {
            if let Some(place) = self.lend_block(lane, size, LaneId::small, u64::MAX) {
                return Some(place);
            }
        } else if let Some(place) = self.reuse_window(lane, size) {
            return Some(place);
        }
        if let Some(place) = self.lend_block(lane, size, LaneId::large, u64::MAX) {
            return Some(place);
        }
        self.look_for_lent(lane);
        let chosen = self.within_reach(lane, Some(Whose::Lent)).choose(size, &[]);
        chosen.and_then(|chosen| self.make_window(lane, &chosen, size).ok())
    }

    /// Serves from free pages, with new memory for what is missing. Asks the device only if it has that much.
    fn with_new_memory(&mut self, asked: Asked) -> Option<Place> {
        let Asked { lane, heap, size, is_at_home, .. } = asked;
        let room = self.room();
        if is_at_home {
            // A heap of small requests may have no addresses left.
            let heaps = [heap, lane.large()];
            return heaps[usize::from(heap == heaps[1])..].iter().find_map(|&heap| {
                let missing = self.missing_at_home(heap, size);
                if missing > room || self.grow_for(heap, size, missing).is_err() {
                    return None;
                }
                self.at_home(heap, size).ok()
            });
        }
        if self.in_reach(lane, Whose::Lent) + room < size {
            return None;
        }
        // The request would fail otherwise, so any saving justifies a window.
        self.harvest(lane, heap, size, u64::MAX).ok()
    }

    /// The bytes that the end of a heap lacks for a request.
    pub(super) fn missing_at_home(&self, heap: HeapId, size: u64) -> u64 {
        (size - self.heap(heap).tail().min(size - 1)).div_ceil(GRANULE) * GRANULE
    }

    /// The bytes that may still be taken from the device, in whole pages.
    pub(super) fn room(&mut self) -> u64 {
        let (free, _) = self.device.memory();
        let reserved = self.stats.reserved.current;
        let room = self.options.limit.map_or(free, |limit| free.min(limit.saturating_sub(reserved)));
        room / GRANULE * GRANULE
    }

    /// The size of the largest window that a lane could have now, or, with [`Whose::LentLater`], once all work is done.
    fn in_reach(&mut self, lane: LaneId, lent: Whose) -> u64 {
        self.take_stock(lane, true);
        self.within_reach(lane, Some(lent)).most()
    }

    /// The bytes that a request lacks even if it got everything that is free; one page at least.
    pub fn shortfall(&mut self, size: u64, stream: StreamHandle, pool: PoolKey) -> u64 {
        let size = rounded(size.min(LARGEST));
        let room = self.room();
        let reached = match self.lanes.find(stream, pool) {
            Some(lane) if !self.may_map_again(lane, size) => self.heap(lane.large()).largest_free(),
            Some(lane) => self.in_reach(lane, Whose::LentLater),
            None => 0,
        };
        size.saturating_sub(reached + room).max(GRANULE)
    }

    // ---- waiting ----

    /// Waits for pending frees until the request can be served: for the most useful first, and of equals the oldest.
    fn wait_for_enough(&mut self, asked: Asked) -> Option<Place> {
        let order = self.worth_waiting_for(asked);
        if order.is_empty() {
            return None;
        }
        if self.asks() {
            let running = order.iter().find_map(|&(_, _, id, _)| self.running_for(id));
            if let Some(event) = running {
                self.ask_to_wait(event);
            } else if self.fences.is_anything_waiting() {
                self.settle_or_ask(true);
            }
            return None;
        }
        self.stats.retries += 1;
        self.stats.waits += 1;
        let little = order.partition_point(|(worth, ..)| *worth < Worth::Little);
        for &(_, _, id, addr) in &order[..little] {
            // An earlier wait may have been enough for this one too.
            if self.is_waiting(id, addr) {
                self.wait_for_one(id);
                let served = self.as_it_lies(asked).or_else(|| self.with_new_memory(asked));
                if served.is_some() {
                    return served;
                }
            }
        }
        for &(_, _, id, addr) in &order[little..] {
            if self.is_waiting(id, addr) {
                self.wait_for_one(id);
            }
        }
        self.as_it_lies(asked)
    }

    /// Waits for all work, if free memory of other lanes is enough after that.
    fn wait_for_lenders(&mut self, asked: Asked) -> Option<Place> {
        let Asked { lane, size, is_private, .. } = asked;
        if is_private || self.lanes.len() < 2 || !self.options.lending {
            return None;
        }
        let (now, later) = (self.in_reach(lane, Whose::Lent), self.in_reach(lane, Whose::LentLater));
        let is_small =
            size <= SMALL && self.lanes.ids().any(|other| self.heap(other.small()).fits(size).is_some());
        if !is_small && (now == later || later + self.room() < size) {
            return None;
        }
        self.stats.retries += 1;
        if !self.settle_or_ask(true) {
            return None;
        }
        self.as_it_lies(asked).or_else(|| self.with_new_memory(asked))
    }

    fn is_waiting(&self, id: AllocationId, addr: u64) -> bool {
        self.find(addr) == Some(id) && self.allocation(id).waits > 0
    }

    /// Pending frees in the order in which to wait for them; none if all of them together are not enough.
    fn worth_waiting_for(&mut self, asked: Asked) -> Vec<(Worth, u64, AllocationId, u64)> {
        let mut pending: Vec<(u64, AllocationId)> =
            self.pending.later().iter().enumerate().map(|(at, &id)| (at as u64, id)).collect();
        for (_, queue) in self.pending.by_stream() {
            pending.extend(queue.iter().map(|waiting| (waiting.order, waiting.id)));
        }
        // To wait for the card takes longest, so these come last.
        pending.extend(self.fences.waiting().enumerate().map(|(at, id)| (u64::MAX / 2 + at as u64, id)));
        // If several streams use an allocation, it is as old as its newest event.
        pending.sort_unstable_by_key(|&(order, id)| (id.shard, id.slot, std::cmp::Reverse(order)));
        pending.dedup_by_key(|&mut (_, id)| id);
        if pending.is_empty() {
            return Vec::new();
        }
        let bytes: u64 = pending.iter().map(|&(_, id)| self.allocation(id).size).sum();
        if self.free_in_all() + bytes + self.room() < asked.size {
            return Vec::new();
        }
        let now = if asked.is_private { 0 } else { self.in_reach(asked.lane, Whose::Lent) + self.room() };
        let mut order: Vec<_> = pending
            .into_iter()
            .map(|(order, id)| (self.worth(id, asked, now), order, id, self.allocation(id).addr))
            .collect();
        order.sort_unstable_by_key(|&(worth, order, id, _)| (worth, order, id.shard, id.slot));
        order
    }

    fn worth(&self, id: AllocationId, asked: Asked, now: u64) -> Worth {
        let allocation = self.allocation(id);
        let is_home = |heap: HeapId| heap.lane() == asked.lane && (heap == asked.heap || asked.size <= SMALL);
        match allocation.place {
            Place::Home { heap, .. } if is_home(heap) && allocation.size >= asked.size => Worth::Alone,
            _ if asked.is_private => Worth::Little,
            _ if now + allocation.size >= asked.size => Worth::Completes,
            _ if allocation.size >= FRAGMENT => Worth::Part,
            _ => Worth::Little,
        }
    }

    /// Free bytes of all heaps, whether they could serve the request or not.
    fn free_in_all(&self) -> u64 {
        let live = self.stats.active.current;
        self.stats.reserved.current.saturating_sub(live)
    }

    // ---- giving back ----

    /// Gives back free pages that the request cannot reach, and takes them anew where it can: pages of small requests
    /// for a large one, pages of the default pool for a private one; with `shrink` also of released ones.
    fn trim_for(&mut self, asked: Asked, shrink: bool) -> Option<Place> {
        let Asked { lane, heap, size, is_at_home, .. } = asked;
        let heaps: Vec<HeapId> =
            self.lanes.heap_ids().filter(|&other| self.may_give(other, asked, shrink)).collect();
        let there: u64 = heaps.iter().map(|&other| self.heap(other).whole()).sum();
        let reached = if is_at_home { 0 } else { self.in_reach(lane, Whose::Lent) };
        let wanted = if is_at_home { self.missing_at_home(heap, size) } else { size };
        let missing = wanted.saturating_sub(reached + self.room());
        if missing == 0 || there < missing {
            return None;
        }
        self.stats.retries += 1;
        if !self.settle_or_ask(false) {
            return None;
        }
        // Windows keep the pages of large requests.
        if heaps.iter().any(|other| other.is_large()) {
            self.drop_all_idle_windows();
        }
        // Small pages rarely match the missing bytes exactly.
        let mut left = missing.div_ceil(GRANULE) * GRANULE;
        for &other in &heaps {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(self.give_back_settled(other, left));
        }
        let place = self.with_new_memory(asked);
        // Other threads freed some of it while the caller waited, so that goes after another wait.
        let is_left = |&other: &HeapId| self.heap(other).whole() > 0;
        if place.is_none() && self.asks() && (self.leaving.bytes > 0 || heaps.iter().any(is_left)) {
            self.settle_or_ask(true);
        }
        place
    }

    /// Free pages cannot be put side by side here, so this gives all of them back and asks the device for as much in
    /// one piece.
    fn begin_anew(&mut self, asked: Asked) -> Option<Place> {
        let Asked { heap, size, .. } = asked;
        let missing = self.missing_at_home(heap, size);
        let heaps = self.lanes.heap_ids();
        let there: u64 =
            heaps.filter(|&other| self.is_trimmed(other)).map(|other| self.heap(other).whole()).sum();
        if there == 0 || there + self.room() < missing {
            return None;
        }
        self.emptied.times = None;
        self.trim_all();
        if self.is_put_off() {
            return None;
        }
        match self.grow_for(heap, size, self.missing_at_home(heap, size)) {
            Ok(()) => self.at_home(heap, size).ok(),
            // A free page stayed because a window maps it in which an allocation lies.
            Err(_) => self.with_new_memory(asked),
        }
    }

    /// True if free pages of a heap may go for a request that cannot use them where they are.
    fn may_give(&self, other: HeapId, asked: Asked, shrink: bool) -> bool {
        let pool = self.lanes[other.lane()].pool;
        if pool.is_private() {
            return shrink && self.released.contains(&pool) && other.lane() != asked.lane;
        }
        // A request in the default pool reaches all free pages of that pool, except those of small requests.
        asked.is_private || (asked.size > SMALL && other.is_small())
    }
}
