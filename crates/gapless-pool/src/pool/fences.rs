//! Fences: how the pool learns that work on freed memory is done.
//!
//! A freed block may serve its own stream at once, as it does in native PyTorch. The work of other streams on the block
//! may still be queued, and its stream may wait for that work after the free, as long as it does so before it asks for
//! memory again (a *late wait*). So when a stream asks for memory, everything that lies free in its lane is in the
//! order of that stream. This moment is the lane's **turn**. An event that is recorded on the stream in its turn, or
//! later, is behind all work on that memory, whichever streams, contexts and libraries did it, known to the pool or
//! not. Such an event is a **fence** of the lane.
//!
//! Invariant: memory is **settled**, used by no work any more, once a fence of its lane is done that was recorded in a
//! turn after it was freed, or once the host has waited for all work of the card after it was freed. Only settled
//! memory goes from one lane to another, and only settled addresses are unmapped.
//!
//! The pool asks nothing else of the program's streams, so it cannot disturb a capture: [`Device::record`] has the
//! rules. If a stream asks for no more memory, its lane has no more turns. Then the lane's free memory is lent after a
//! wait for the card, at the same point at which native PyTorch would wait.
//!
//! Each lane numbers its fences. Memory that is freed now is settled once fence `open` is done, which the lane's next
//! turn records. The pool never makes one stream wait for another.

use super::loans::Loans;
use super::{AllocationId, Pool};
use crate::device::{Device, DeviceError, EventHandle, StreamHandle};
use crate::ids::{Fence, LaneId};
use crate::mutants::{self, Mutant};
use std::collections::VecDeque;

/// A lane has at most this many fences under way; the next fence covers what is freed after the last one.
const MOST: usize = 2;

/// A lane's fences. Invariants: `done < open`; the numbers of `under_way` rise and lie between them; those of `waiting`
/// rise.
#[derive(Debug)]
struct OfLane {
    open: Fence,
    done: Fence,
    under_way: VecDeque<(Fence, EventHandle)>,
    /// Lent memory that this lane freed, free for its owner behind the fence.
    waiting: VecDeque<(Fence, AllocationId)>,
    /// Those of `waiting` that wait for that fence alone.
    loans: Loans,
    /// Replays of graphs use its memory, on any stream, so only a wait for the card settles it.
    is_walled: bool,
    /// Times that it was walled.
    walls: u64,
}

impl Default for OfLane {
    fn default() -> OfLane {
        OfLane {
            open: Fence::PAST.next(),
            done: Fence::PAST,
            under_way: VecDeque::new(),
            waiting: VecDeque::new(),
            loans: Loans::default(),
            is_walled: false,
            walls: 0,
        }
    }
}

impl OfLane {
    /// The last fence that is done or under way.
    fn recorded(&self) -> Fence {
        self.under_way.back().map_or(self.done, |&(fence, _)| fence)
    }
}

/// Memory that lay free at one moment. It is settled once all work that was queued then is done
/// ([`Pool::settle_freed`]).
#[derive(Debug, Default)]
pub struct Freed {
    /// The fence of each lane, and how often the lane was walled.
    lanes: Vec<(LaneId, Fence, u64)>,
    /// The number of allocations that had waited for the card by then.
    unknown: u64,
}

#[derive(Debug, Default)]
pub(super) struct Fences {
    lanes: Vec<OfLane>,
    /// Freed, but used by streams on which no event could be recorded: free after a wait for the card.
    unknown: VecDeque<AllocationId>,
    /// The number of those that are no longer there.
    known: u64,
}

impl Fences {
    /// Adds a lane. Returns the fence that covers its frees from now on.
    pub(super) fn add_lane(&mut self) -> Fence {
        self.lanes.push(OfLane::default());
        Fence::PAST.next()
    }

    /// The fence that covers a lane's frees from now on.
    pub(super) fn open(&self, lane: LaneId) -> Fence {
        self.lanes[lane.index()].open
    }

    /// Memory that a lane freed before this fence, or before an earlier one, is settled.
    pub(super) fn done(&self, lane: LaneId) -> Fence {
        if mutants::is(Mutant::LendUnsettled) { Fence::LAST } else { self.lanes[lane.index()].done }
    }

    pub(super) fn is_done(&self, lane: LaneId, fence: Fence) -> bool {
        fence <= self.lanes[lane.index()].done
    }

    /// Freed allocations that wait for fences or for the card.
    pub(super) fn waiting(&self) -> impl Iterator<Item = AllocationId> + '_ {
        let behind_turns = self.lanes.iter().flat_map(|lane| lane.waiting.iter().map(|&(_, id)| id));
        behind_turns.chain(self.unknown.iter().copied())
    }

    pub(super) fn is_anything_waiting(&self) -> bool {
        !self.unknown.is_empty() || self.lanes.iter().any(|lane| !lane.waiting.is_empty())
    }

    /// Lent allocations that a lane freed, the last one first.
    pub(super) fn waiting_of(&self, lane: LaneId) -> impl Iterator<Item = AllocationId> + '_ {
        self.lanes[lane.index()].waiting.iter().rev().map(|&(_, id)| id)
    }

    /// Removes one of the lent allocations that a lane freed: it waits no longer. Searches from the last one.
    pub(super) fn forget(&mut self, lane: LaneId, id: AllocationId) {
        let waiting = &mut self.lanes[lane.index()].waiting;
        if let Some(at) = waiting.iter().rposition(|&(_, other)| other == id) {
            waiting.remove(at);
        }
    }

    /// Lent memory that a lane freed and can take back at once.
    pub(super) fn loans(&self, lane: LaneId) -> &Loans {
        &self.lanes[lane.index()].loans
    }

    pub(super) fn loans_mut(&mut self, lane: LaneId) -> &mut Loans {
        &mut self.lanes[lane.index()].loans
    }

    /// Graphs were replayed with memory of this lane; the pool does not know on which streams.
    pub(super) fn wall(&mut self, lane: LaneId) {
        let of = &mut self.lanes[lane.index()];
        of.is_walled = true;
        of.walls += 1;
    }

    pub(super) fn check(&self) -> Result<(), String> {
        for lane in &self.lanes {
            let mut last = lane.done;
            for &(fence, _) in &lane.under_way {
                if fence <= last || fence >= lane.open {
                    return Err(format!("fence {fence} is under way between {last} and {}", lane.open));
                }
                last = fence;
            }
            if !lane.waiting.iter().is_sorted_by_key(|(fence, _)| fence) {
                return Err("allocations wait for fences out of order".into());
            }
        }
        Ok(())
    }
}

impl<D: Device> Pool<D> {
    /// Makes lent memory that its borrower freed wait for the borrower's next turn.
    pub(super) fn wait_for_turn(&mut self, id: AllocationId) {
        let lane = self.allocation(id).lane;
        let allocation = self.allocation_mut(id);
        allocation.waits += 1;
        allocation.waits_for_turn = true;
        let of = &mut self.fences.lanes[lane.index()];
        of.waiting.push_back((of.open, id));
        self.lanes.shard_mut(lane).turn_is_wanted = true;
    }

    /// Makes an allocation wait for the card, because the pool does not know all work that uses it.
    pub(super) fn wait_for_card(&mut self, id: AllocationId) {
        self.allocation_mut(id).waits += 1;
        self.fences.unknown.push_back(id);
    }

    /// The turn of a lane: its stream asks for memory now. Records a fence if the pool or another lane waits for one.
    pub(super) fn turn(&mut self, lane: LaneId, stream: StreamHandle) {
        if std::mem::take(&mut self.lanes.shard_mut(lane).turn_is_wanted) {
            self.record_fence(lane, stream);
        }
    }

    /// [`Pool::turn`] of a lane whose own heap missed. If other lanes could borrow its free memory, a fence recorded
    /// now lets that memory settle before they ask.
    pub(super) fn turn_ahead(&mut self, lane: LaneId) {
        let is_lender = self.lanes.len() > 1 && self.options.lending && !self.lanes[lane].pool.is_private();
        let is_idle = self.fences.lanes[lane.index()].under_way.is_empty();
        self.lanes.shard_mut(lane).turn_is_wanted |=
            is_lender && is_idle && self.lanes.shard(lane).has_freed();
        self.turn(lane, self.lanes[lane].stream);
    }

    fn record_fence(&mut self, lane: LaneId, stream: StreamHandle) {
        self.look_at_lane(lane);
        let of = &self.fences.lanes[lane.index()];
        if of.is_walled || of.under_way.len() >= MOST {
            return;
        }
        if let Ok(event) = self.device.record(stream) {
            let fence = self.open_next(lane);
            self.fences.lanes[lane.index()].under_way.push_back((fence, event));
            self.look_at_lane(lane);
        }
    }

    /// Asks for a fence in the next turn of each lane that waits for a fence that is not recorded yet.
    fn want_turns_of_waiting(&mut self) {
        for (at, of) in self.fences.lanes.iter().enumerate() {
            if !of.is_walled && of.waiting.back().is_some_and(|(fence, _)| *fence > of.recorded()) {
                self.lanes.shard_mut(LaneId::new(at)).turn_is_wanted = true;
            }
        }
        for (lane, fence) in self.leaving.fences() {
            let of = &self.fences.lanes[lane.index()];
            if !of.is_walled && fence > of.recorded() {
                self.lanes.shard_mut(lane).turn_is_wanted = true;
            }
        }
    }

    /// Lets the lane's next fence cover its frees from now on. Returns the fence that covers the earlier ones.
    fn open_next(&mut self, lane: LaneId) -> Fence {
        let of = &mut self.fences.lanes[lane.index()];
        let (fence, open) = (of.open, of.open.next());
        of.open = open;
        self.lanes.shard_mut(lane).heaps.iter_mut().for_each(|heap| heap.set_fence(open));
        fence
    }

    /// Looks which fences of a lane are done, and completes what waited for them.
    fn look_at_lane(&mut self, lane: LaneId) {
        while let Some(&(fence, event)) = self.fences.lanes[lane.index()].under_way.front() {
            match self.device.is_done(event) {
                Ok(true) => {}
                Ok(false) => return,
                // The event failed because a capture took it in. The next fence covers the same frees and more.
                Err(_) if !mutants::is(Mutant::CapturedIsDone) => {
                    self.drop_fence(lane, event);
                    continue;
                }
                Err(_) => {}
            }
            self.drop_fence(lane, event);
            self.reach(lane, fence);
        }
    }

    fn drop_fence(&mut self, lane: LaneId, event: EventHandle) {
        self.fences.lanes[lane.index()].under_way.pop_front();
        self.device.discard(event);
    }

    /// Marks what a lane freed before a fence as settled.
    fn reach(&mut self, lane: LaneId, fence: Fence) {
        self.fences.lanes[lane.index()].done = fence;
        while let Some(&(due, id)) = self.fences.lanes[lane.index()].waiting.front()
            && due <= fence
        {
            self.fences.lanes[lane.index()].waiting.pop_front();
            let allocation = self.allocation_mut(id);
            (allocation.waits_for_turn, allocation.is_settled) = (false, true);
            self.passed(id);
        }
        self.unmap_leaving();
    }

    /// Looks which fences are done, and completes what waited for them.
    pub(super) fn look_at_fences(&mut self) {
        for lane in self.lanes.ids() {
            self.look_at_lane(lane);
        }
        self.unmap_leaving();
        self.want_turns_of_waiting();
    }

    /// Asks for fences on behalf of a lane that looks for memory of others: each lane with free memory that is not
    /// settled as far as the pool knows records one in its next turn.
    pub(super) fn want_turns(&mut self, borrower: LaneId) {
        for lane in self.lanes.ids().filter(|lane| *lane != borrower) {
            let of = &self.fences.lanes[lane.index()];
            if self.lanes[lane].pool.is_private() || of.under_way.len() >= MOST {
                continue;
            }
            let shard = self.lanes.shard_mut(lane);
            shard.turn_is_wanted |= shard.has_freed();
            if shard.turn_is_wanted && mutants::is(Mutant::FenceOutOfTurn) {
                self.record_fence(lane, self.lanes[lane].stream);
            }
        }
    }

    /// Waits on the host until all queued work is done. Then everything that is free is settled.
    ///
    /// # Errors
    /// If the caller said that a capture is open, or if the device fails.
    pub(super) fn settle_now(&mut self) -> Result<(), DeviceError> {
        if self.quiet && !mutants::is(Mutant::TrimInCapture) {
            return Err(DeviceError::OutOfMemory);
        }
        if mutants::is(Mutant::DeadLane) {
            for lane in self.lanes.ids() {
                if let Ok(event) = self.device.record(self.lanes[lane].stream) {
                    self.device.discard(event);
                }
            }
        }
        self.stats.waits += 1;
        let freed = self.freed();
        self.device.wait_for_all()?;
        self.settle_freed(freed);
        Ok(())
    }

    /// The fences that cover all memory that is free now, for a caller that waits for the card's work without the
    /// pool's lock.
    pub fn freed(&mut self) -> Freed {
        let lanes: Vec<LaneId> = self.lanes.ids().collect();
        let lanes = lanes.into_iter().map(|lane| {
            let fence = self.open_next(lane);
            (lane, fence, self.fences.lanes[lane.index()].walls)
        });
        let lanes = lanes.collect();
        Freed { lanes, unknown: self.fences.known + self.fences.unknown.len() as u64 }
    }

    /// Settles the memory of `freed`, because all work that was queued then is done. A lane that was walled meanwhile
    /// is left out, because replays may use its memory.
    pub fn settle_freed(&mut self, freed: Freed) {
        for (lane, fence, walls) in freed.lanes {
            let of = &mut self.fences.lanes[lane.index()];
            if of.walls != walls {
                continue;
            }
            of.is_walled = false;
            let fence = if mutants::is(Mutant::SettleLater) { self.open_next(lane) } else { fence };
            if self.fences.is_done(lane, fence) {
                continue;
            }
            while let Some(&(under_way, event)) = self.fences.lanes[lane.index()].under_way.front()
                && under_way <= fence
            {
                self.drop_fence(lane, event);
            }
            self.reach(lane, fence);
        }
        while self.fences.known < freed.unknown
            && let Some(id) = self.fences.unknown.pop_front()
        {
            self.fences.known += 1;
            self.allocation_mut(id).is_settled = true;
            self.passed(id);
        }
        self.unmap_leaving();
    }

    /// True if work may still use memory that a lane freed before the fence, and no recorded event will tell.
    pub(super) fn is_uncovered(&self, lane: LaneId, fence: Fence) -> bool {
        fence > self.fences.lanes[lane.index()].recorded()
    }
}
