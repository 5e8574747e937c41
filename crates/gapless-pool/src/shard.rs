//! One lane's part of the pool: its two heaps, and what is allocated in their addresses. A request that its own heap
//! can serve, and its free, touch nothing else, so that threads with streams of their own need not wait for each other.

use crate::allocations::{Allocation, Allocations, Place};
use crate::budget::Budget;
use crate::device::StreamHandle;
use crate::heap::Heap;
use crate::ids::LaneId;
use crate::pool::{PoolKey, SMALL, UNIT};
use crate::steps::{Steps, UNBORN};
use crate::tally::Tally;

/// Requests of a lane that are served, at most, before one looks which frees are no longer pending. The first ones
/// after a free look at once, as PyTorch's own allocator does; one that finds nothing free always looks.
const POLL_EVERY: u32 = 16;

/// How many addresses a lane's heaps have: reserved in one piece, with nothing behind them.
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
    /// Which lane it is.
    pub(crate) lane: LaneId,
    pub(crate) stream: StreamHandle,
    pub(crate) pool: PoolKey,
    /// Of small and of large requests: side by side.
    pub(crate) heaps: [Heap; 2],
    /// What begins in the heaps' addresses, whichever lane asked for it.
    pub(crate) allocations: Allocations,
    pub(crate) tally: Tally,
    /// What callers have of this lane, wherever it lies.
    pub(crate) live: Amount,
    /// What of this lane lies in windows, by size class.
    pub(crate) in_windows: [Amount; 2],
    /// Of large requests, where steps are planned.
    pub(crate) steps: Option<Box<Steps>>,
    /// Whether frees are pending somewhere, after how many requests this lane looks, and after how many more then.
    pub(crate) is_pending: bool,
    until_poll: u32,
    next_poll: u32,
    /// Whether a request did not look since the pool last did.
    has_skipped: bool,
    /// Another lane wants what this one has free: its next request goes to the pool, which records a fence.
    pub(crate) turn_is_wanted: bool,
}

/// What a request of `size` bytes takes.
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

    /// A place holder, for as long as the real one is elsewhere.
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

    /// Counts a request while frees are pending. Whether it should look which of them no longer are.
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

    /// Whether a request passed by frees that it could have completed.
    pub(crate) fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// The pool has looked at all pending frees.
    pub(crate) fn has_looked(&mut self) {
        self.has_skipped = false;
    }

    /// No free is pending: of the next one this lane hears at its next request.
    pub(crate) fn poll_soon(&mut self) {
        (self.until_poll, self.next_poll) = (0, 0);
    }

    /// Whether something was freed that the lane's next fence covers, and no earlier one.
    pub(crate) fn has_freed(&self) -> bool {
        self.heaps.iter().any(Heap::has_freed)
    }

    /// Its addresses.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.heaps[0].start()..self.heaps[1].start() + self.heaps[1].range()
    }

    /// Whether an address belongs to one of its heaps.
    #[inline]
    pub(crate) fn holds(&self, addr: u64) -> bool {
        self.heaps[0].holds(addr) || self.heaps[1].holds(addr)
    }

    /// Serves a request from its own heap; `None`: the whole pool must look, for memory or because a peak or a budget
    /// may be passed.
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
        // Last, so that what is charged is held: peaks are of what was.
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

    /// A free block of its own heap: where the plan of a step wants it, else the smallest that fits. Whether it is the
    /// planned one.
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

    /// A request of this lane was served, from wherever. Its number in the log of steps.
    #[inline]
    pub(crate) fn served(&mut self, size: u64, as_expected: bool) -> u32 {
        match &mut self.steps {
            Some(steps) if size > SMALL => steps.served(size, as_expected),
            _ => UNBORN,
        }
    }

    /// The memory of one of this lane's requests can be used again.
    #[inline]
    pub(crate) fn ended(&mut self, size: u64, born: u32) {
        if size > SMALL
            && let Some(steps) = &mut self.steps
        {
            steps.ended(size, born);
        }
    }

    /// Notes that another stream uses what begins at `addr`. Whether that is here.
    pub(crate) fn record_stream(&mut self, addr: u64, stream: StreamHandle) -> bool {
        let Some(slot) = self.allocations.find(addr) else { return false };
        let allocation = &mut self.allocations[slot];
        // Another lane's: only the pool knows its stream. What sleeps: the pool refuses it.
        if allocation.lane != self.lane || allocation.is_asleep() {
            return false;
        }
        if stream != self.stream && !allocation.uses.contains(&stream) {
            allocation.uses.push(stream);
        }
        true
    }

    /// Takes back what lies in its own heap and concerns no other stream. Whether it did; the whole pool must look
    /// where not. `before` is told what was asked for, while the memory is still taken.
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
