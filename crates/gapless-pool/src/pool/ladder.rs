//! What is left before a request fails, from cheap to dear: the ladder.
//!
//! What is held is looked at as it lies. Then: **wait** for pending frees, only for those that would be enough, and for
//! work on memory that other lanes could lend; **harvest** all free pages, with new memory for what is missing;
//! **trim**: give back free pages that the request cannot reach, and take them anew where it can; **shrink** private
//! pools that nobody uses any more. A rung that cannot be enough is left out: nothing is waited for or thrown away in
//! vain. During a capture nothing is waited for, so only what is held is looked at. Asking the program itself comes
//! after this, and is not the pool's business.

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
    /// No window can serve it.
    is_at_home: bool,
}

/// How much good a pending free would do, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Its block alone is where the request goes, and large enough.
    Alone,
    /// With what is free already it is enough.
    Completes,
    /// It is part of what is missing.
    Part,
    /// Together with its neighbours it may be.
    Little,
}

impl<D: Device> Pool<D> {
    /// Serves a request that nothing could serve and the device has no memory for; `error` is what it said.
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
        }
        Err(error)
    }

    /// From free memory that is held, with nothing new: whatever page that pins.
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

    /// From free pages, with new memory for what is missing. The device is asked only where it has that much.
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
        // No bargain is too bad here.
        self.harvest(lane, heap, size, u64::MAX).ok()
    }

    /// What the end of a heap lacks for a request.
    pub(super) fn missing_at_home(&self, heap: HeapId, size: u64) -> u64 {
        (size - self.heap(heap).tail().min(size - 1)).div_ceil(GRANULE) * GRANULE
    }

    /// What may still be taken from the device, in whole pages.
    pub(super) fn room(&mut self) -> u64 {
        let (free, _) = self.device.memory();
        let reserved = self.stats.reserved.current;
        let room = self.options.limit.map_or(free, |limit| free.min(limit.saturating_sub(reserved)));
        room / GRANULE * GRANULE
    }

    /// The most bytes that a window of a lane could hold now; or, with [`Whose::LentLater`], once all work is done.
    fn in_reach(&mut self, lane: LaneId, lent: Whose) -> u64 {
        self.take_stock(lane, true);
        self.within_reach(lane, Some(lent)).most()
    }

    /// How much is missing for a request, were all that is free used for it; at least one page, since something is.
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

    /// Waits for pending frees until the request can be served; the ones that do most good first, and the oldest of
    /// those.
    fn wait_for_enough(&mut self, asked: Asked) -> Option<Place> {
        let order = self.worth_waiting_for(asked);
        if order.is_empty() {
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

    /// Waits for all work, where memory that other lanes have free is then enough.
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
        self.settle_now().ok()?;
        self.as_it_lies(asked).or_else(|| self.with_new_memory(asked))
    }

    fn is_waiting(&self, id: AllocationId, addr: u64) -> bool {
        self.find(addr) == Some(id) && self.allocation(id).waits > 0
    }

    /// Pending frees, in the order in which to wait for them; none where all of them would not be enough.
    fn worth_waiting_for(&mut self, asked: Asked) -> Vec<(Worth, u64, AllocationId, u64)> {
        let mut pending: Vec<(u64, AllocationId)> =
            self.pending.later().iter().enumerate().map(|(at, &id)| (at as u64, id)).collect();
        for (_, queue) in self.pending.by_stream() {
            pending.extend(queue.iter().map(|waiting| (waiting.order, waiting.id)));
        }
        // What waits for the card is behind everything.
        pending.extend(self.fences.waiting().enumerate().map(|(at, id)| (u64::MAX / 2 + at as u64, id)));
        // Several streams may use one: it is as old as the newest of them.
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

    /// Free bytes of all heaps that could ever serve a request.
    fn free_in_all(&self) -> u64 {
        let live = self.stats.active.current;
        self.stats.reserved.current.saturating_sub(live)
    }

    // ---- giving back ----

    /// Gives back free pages that the request cannot reach, and takes them anew where it can: pages of small requests
    /// for a large one, those of the default pool for a private one; with `shrink` also those of private pools that
    /// nobody uses.
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
        self.settle_now().ok()?;
        // Windows keep the pages of large requests.
        if heaps.iter().any(|other| other.is_large()) {
            self.drop_all_idle_windows();
        }
        // Small pages rarely fill what is missing exactly.
        let mut left = missing.div_ceil(GRANULE) * GRANULE;
        for other in heaps {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(self.give_back_pages(other, left));
        }
        self.with_new_memory(asked)
    }

    /// Free pages cannot be put side by side as they are: gives all of them back, and asks the device for as much in
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
        match self.grow_for(heap, size, self.missing_at_home(heap, size)) {
            Ok(()) => self.at_home(heap, size).ok(),
            // A page that is free but in a window that something uses stayed.
            Err(_) => self.with_new_memory(asked),
        }
    }

    /// Whether free pages of a heap may go for a request that cannot use them where they are.
    fn may_give(&self, other: HeapId, asked: Asked, shrink: bool) -> bool {
        let pool = self.lanes[other.lane()].pool;
        if pool.is_private() {
            return shrink && self.released.contains(&pool) && other.lane() != asked.lane;
        }
        // What is free in the default pool is in its own reach, but for pages of small requests.
        asked.is_private || (asked.size > SMALL && other.is_small())
    }
}
