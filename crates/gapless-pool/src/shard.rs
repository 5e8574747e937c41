//! One lane's part of the pool: its two heaps, and the allocations in their addresses. A request that its own heap can
//! serve, and the free of it, touch nothing else, so threads with streams of their own do not wait for each other.

use crate::allocations::{Allocation, Allocations, Place};
use crate::budget::Budget;
use crate::device::StreamHandle;
use crate::heap::{Heap, SMALL, UNIT};
use crate::ids::{LaneId, PoolKey};
use crate::steps::{Steps, UNBORN};
use crate::tally::Tally;

/// While frees are pending, a lane serves at most this many requests before it polls them. The first requests after a
/// free poll at once, as PyTorch's own allocator does; a request that finds no free block always polls.
const POLL_EVERY: u32 = 16;

/// The number of addresses of a lane's heaps. They are reserved in one piece, with no memory behind them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges {
    pub(crate) small: u64,
    pub(crate) large: u64,
}

/// Blocks, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes += bytes;
    }

    #[inline]
    pub(crate) fn sub(&mut self, bytes: u64) {
        self.blocks -= 1;
        self.bytes -= bytes;
    }
}

#[derive(Debug)]
pub(crate) struct Shard {
    /// The lane's number.
    pub(crate) lane: LaneId,
    pub(crate) stream: StreamHandle,
    pub(crate) pool: PoolKey,
    /// The heaps of small and of large requests, side by side.
    pub(crate) heaps: [Heap; 2],
    /// Allocations that begin in the heaps' addresses, whichever lane asked for them.
    pub(crate) allocations: Allocations,
    pub(crate) tally: Tally,
    /// Live allocations of this lane, wherever they lie.
    pub(crate) live: Amount,
    /// Allocations of this lane in windows, by size class.
    pub(crate) in_windows: [Amount; 2],
    /// The log of steps of large requests, if steps are planned.
    pub(crate) steps: Option<Box<Steps>>,
    /// True if frees are pending anywhere in the pool.
    pub(crate) is_pending: bool,
    until_poll: u32,
    next_poll: u32,
    /// True if a request was served without a poll since the pool's last one.
    has_skipped: bool,
    /// True if the lane's next request must go to the pool, which records a fence: its free memory is wanted elsewhere.
    pub(crate) turn_is_wanted: bool,
}

/// The block size for a request of `size` bytes.
#[inline]
pub(crate) fn rounded(size: u64) -> u64 {
    size.div_ceil(UNIT).max(1) * UNIT
}

impl Shard {
    pub(crate) fn new(lane: LaneId, stream: StreamHandle, pool: PoolKey, start: u64, of: Ranges) -> Shard {
        Shard {
            lane,
            stream,
            pool,
            heaps: [Heap::new(start, of.small, false), Heap::new(start + of.small, of.large, true)],
            allocations: Allocations::default(),
            tally: Tally::default(),
            live: Amount::default(),
            in_windows: [Amount::default(); 2],
            steps: None,
            is_pending: false,
            until_poll: 0,
            next_poll: 0,
            has_skipped: false,
            turn_is_wanted: false,
        }
    }

    /// A placeholder while the real shard is elsewhere.
    pub(crate) fn nowhere() -> Shard {
        let none = Ranges { small: 0, large: 0 };
        Shard::new(LaneId::NONE, StreamHandle(u64::MAX), PoolKey(u64::MAX, u64::MAX), 0, none)
    }

    pub(crate) fn is_nowhere(&self) -> bool {
        self.lane == LaneId::NONE
    }

    pub(crate) fn is_of(&self, stream: StreamHandle, pool: PoolKey) -> bool {
        self.stream == stream && self.pool == pool
    }

    /// Counts a request while frees are pending. True if it should poll them.
    #[inline]
    pub(crate) fn is_poll_due(&mut self) -> bool {
        if self.until_poll > 0 {
            self.until_poll -= 1;
            self.has_skipped = true;
            return false;
        }
        self.until_poll = self.next_poll;
        self.next_poll = (2 * self.next_poll).clamp(1, POLL_EVERY);
        true
    }

    /// True if a request was served without a poll that could have completed frees.
    pub(crate) fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// Notes that the pool has polled all pending frees.
    pub(crate) fn has_looked(&mut self) {
        self.has_skipped = false;
    }

    /// No free is pending, so after the next one this lane's first request polls.
    pub(crate) fn poll_soon(&mut self) {
        (self.until_poll, self.next_poll) = (0, 0);
    }

    /// True if a block was freed that only the lane's next fence covers.
    pub(crate) fn has_freed(&self) -> bool {
        self.heaps.iter().any(Heap::has_freed)
    }

    /// The lane's addresses.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.heaps[0].start()..self.heaps[1].start() + self.heaps[1].range()
    }

    /// True if an address belongs to one of its heaps.
    #[inline]
    pub(crate) fn holds(&self, addr: u64) -> bool {
        self.heaps[0].holds(addr) || self.heaps[1].holds(addr)
    }

    /// Serves a request from its own heap. `None` if the whole pool must serve it: to find memory, to record a fence,
    /// or because a peak or a budget may be exceeded.
    #[inline]
    pub(crate) fn alloc(&mut self, requested: u64, budget: Option<&'static Budget>) -> Option<u64> {
        let size = rounded(requested);
        let class = usize::from(size > SMALL);
        let must_look = (self.is_pending && self.until_poll == 0) || self.turn_is_wanted;
        if must_look || !self.tally.has_room(class, size, requested) {
            return None;
        }
        if class == 1 && self.steps.as_ref().is_some_and(|steps| steps.needs_pool) {
            return None;
        }
        let (block, as_expected) = self.take(class, size)?;
        // The budget is charged last, so that its peak never counts a request that was not served.
        if budget.is_some_and(|budget| !budget.take(size)) {
            self.heaps[class].release(block);
            return None;
        }
        let addr = self.heaps[class].block(block).addr;
        let place = Place::Home { heap: self.lane.heap(class), block };
        let born = self.served(size, as_expected);
        self.allocations.add(Allocation {
            addr,
            size,
            requested,
            lane: self.lane,
            place,
            uses: Vec::new(),
            waits: 0,
            waits_for_turn: false,
            is_lent_only: false,
            is_settled: false,
            is_noted: false,
            born,
            budget,
        });
        self.tally.out(class, size, requested);
        self.live.add(size);
        if self.is_pending {
            self.is_poll_due();
        }
        Some(addr)
    }

    /// Takes a free block of its own heap: at the address that the step's plan expects, else the smallest that fits.
    /// Returns true with the block if it is the planned one.
    #[inline]
    pub(crate) fn take(&mut self, class: usize, size: u64) -> Option<(u32, bool)> {
        if class == 1
            && let Some(addr) = self.steps.as_ref().and_then(|steps| steps.expects(size))
            && let Some(block) = self.heaps[1].take_at(addr, size)
        {
            return Some((block, true));
        }
        Some((self.heaps[class].take(size)?, false))
    }

    /// Logs that a request of this lane was served, from any place. Returns its number in the log of steps.
    #[inline]
    pub(crate) fn served(&mut self, size: u64, as_expected: bool) -> u32 {
        match &mut self.steps {
            Some(steps) if size > SMALL => steps.served(size, as_expected),
            _ => UNBORN,
        }
    }

    /// Logs that the memory of one of this lane's requests is free again.
    #[inline]
    pub(crate) fn ended(&mut self, size: u64, born: u32) {
        if size > SMALL
            && let Some(steps) = &mut self.steps
        {
            steps.ended(size, born);
        }
    }

    /// Notes that another stream uses the allocation at `addr`. False if the pool must do it.
    pub(crate) fn record_stream(&mut self, addr: u64, stream: StreamHandle) -> bool {
        let Some(slot) = self.allocations.find(addr) else { return false };
        let allocation = &mut self.allocations[slot];
        // If it is another lane's allocation, only the pool knows its stream. If it sleeps, the pool refuses.
        if allocation.lane != self.lane || allocation.is_asleep() {
            return false;
        }
        if stream != self.stream && !allocation.uses.contains(&stream) {
            allocation.uses.push(stream);
        }
        true
    }

    /// Frees an allocation that lies in its own heap and is used by no other stream. False if the whole pool must do
    /// it. Calls `before` with the requested size while the block is still taken.
    #[inline]
    pub(crate) fn free_after(&mut self, addr: u64, before: impl FnOnce(u64, StreamHandle, PoolKey)) -> bool {
        let Some(slot) = self.allocations.find(addr) else { return false };
        let Allocation { size, requested, lane, waits, born, budget, ref place, ref uses, .. } =
            self.allocations[slot];
        let Place::Home { heap, block } = *place else { return false };
        let class = place.class(size);
        if waits > 0 || !uses.is_empty() || lane != self.lane {
            return false;
        }
        before(requested, self.stream, self.pool);
        self.allocations.remove(slot);
        let of = heap.class();
        self.heaps[of].release(block);
        self.ended(size, born);
        self.tally.back(class, size, requested);
        self.live.sub(size);
        if of != class {
            self.tally.guest_left(size);
        }
        if let Some(budget) = budget {
            budget.give(size);
        }
        true
    }
}
