//! Fences: what the pool knows about work that is done.
//!
//! A freed block may serve its own stream at once: natively too, the stream's next request gets it. The work of others
//! on it may still be queued, and the stream may wait for that work after the free, as long as it does so before it
//! asks for memory again (a *late wait*). So a stream's request is the moment from which everything that lies free in
//! its lane is in the order of that stream: the lane's **turn**. An event that is recorded on the stream in its turn,
//! or later, is behind all work on that memory, whichever streams, contexts and libraries did it, and whether the pool
//! heard of them or not. That is a **fence** of the lane.
//!
//! Invariant: memory is **settled**, used by no work any more, once a fence of its lane is done that was recorded in a
//! turn after it was freed, or once the host has waited for all work of the card after it was freed. Only settled
//! memory goes from one lane to another, and only settled addresses are unmapped.
//!
//! Nothing else is asked of a stream that the program has, so no capture is ever met: [`Device::record`] has the
//! rules. A lane whose stream asks for nothing any more has no turns. What it has free is lent after a wait for the
//! card, where native PyTorch would wait too.
//!
//! Each lane numbers its fences. What is freed now is settled once its fence `open` is done, the one that its next turn
//! records. No stream waits for another one on behalf of the pool.

use super::loans::Loans;
use super::{AllocationId, Pool};
use crate::device::{Device, DeviceError, EventHandle, StreamHandle};
use crate::ids::{Fence, LaneId};
use crate::mutants::{self, Mutant};
use std::collections::VecDeque;

/// Fences of a lane that are under way at most: what is freed after the last one is covered by the next.
const MOST: usize = 2;

/// A lane's fences. Invariants: `done < open`; the numbers of `under_way` rise and lie between them; those of `waiting`
/// rise.
#[derive(Debug)]
struct OfLane {
    open: Fence,
    done: Fence,
    under_way: VecDeque<(Fence, EventHandle)>,
    /// Given back by this lane, and free behind a fence of it: lent memory.
    waiting: VecDeque<(Fence, AllocationId)>,
    /// Of those, what waits for that fence alone.
    loans: Loans,
    /// Replays of graphs use its memory, on any stream: only a wait for the card settles it.
    is_walled: bool,
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
        }
    }
}

/// What lay free at one moment. It is settled once all work that was queued then is done ([`Pool::settle_freed`]).
#[derive(Debug, Default)]
pub struct Freed(Vec<(LaneId, Fence)>);

#[derive(Debug, Default)]
pub(super) struct Fences {
    lanes: Vec<OfLane>,
    /// Given back, and used by streams that no event could be recorded on: free after a wait for the card.
    unknown: Vec<AllocationId>,
}

impl Fences {
    /// A new lane. The fence that covers what it frees now.
    pub(super) fn add_lane(&mut self) -> Fence {
        self.lanes.push(OfLane::default());
        Fence::PAST.next()
    }

    /// The fence that covers what a lane frees now.
    pub(super) fn open(&self, lane: LaneId) -> Fence {
        self.lanes[lane.index()].open
    }

    /// What a lane freed before this fence, and before every earlier one, is settled.
    pub(super) fn done(&self, lane: LaneId) -> Fence {
        if mutants::is(Mutant::LendUnsettled) { Fence::LAST } else { self.lanes[lane.index()].done }
    }

    pub(super) fn is_done(&self, lane: LaneId, fence: Fence) -> bool {
        fence <= self.lanes[lane.index()].done
    }

    /// Everything that is given back and waits for fences or for the card.
    pub(super) fn waiting(&self) -> impl Iterator<Item = AllocationId> + '_ {
        let behind_turns = self.lanes.iter().flat_map(|lane| lane.waiting.iter().map(|&(_, id)| id));
        behind_turns.chain(self.unknown.iter().copied())
    }

    pub(super) fn is_anything_waiting(&self) -> bool {
        !self.unknown.is_empty() || self.lanes.iter().any(|lane| !lane.waiting.is_empty())
    }

    /// What a lane itself gave back, the last first.
    pub(super) fn waiting_of(&self, lane: LaneId) -> impl Iterator<Item = AllocationId> + '_ {
        self.lanes[lane.index()].waiting.iter().rev().map(|&(_, id)| id)
    }

    /// A lane's own allocation does not wait any more, one of those that it gave back last.
    pub(super) fn forget(&mut self, lane: LaneId, id: AllocationId) {
        let waiting = &mut self.lanes[lane.index()].waiting;
        if let Some(at) = waiting.iter().rposition(|&(_, other)| other == id) {
            waiting.remove(at);
        }
    }

    /// What a lane was lent, gave back, and can have again at once.
    pub(super) fn loans(&self, lane: LaneId) -> &Loans {
        &self.lanes[lane.index()].loans
    }

    pub(super) fn loans_mut(&mut self, lane: LaneId) -> &mut Loans {
        &mut self.lanes[lane.index()].loans
    }

    /// Graphs were replayed with memory of this lane, on streams that nobody named.
    pub(super) fn wall(&mut self, lane: LaneId) {
        self.lanes[lane.index()].is_walled = true;
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
    /// Lent memory that its borrower gave back is free behind the borrower's next turn.
    pub(super) fn wait_for_turn(&mut self, id: AllocationId) {
        let lane = self.allocation(id).lane;
        let allocation = self.allocation_mut(id);
        allocation.waits += 1;
        allocation.waits_for_turn = true;
        let of = &mut self.fences.lanes[lane.index()];
        of.waiting.push_back((of.open, id));
        self.lanes.shard_mut(lane).turn_is_wanted = true;
    }

    /// What an unknown amount of work uses is free after a wait for the card.
    pub(super) fn wait_for_card(&mut self, id: AllocationId) {
        self.allocation_mut(id).waits += 1;
        self.fences.unknown.push(id);
    }

    /// A lane's stream asks for memory: the caller has just named it. Records a fence, if somebody needs one.
    pub(super) fn turn(&mut self, lane: LaneId, stream: StreamHandle) {
        if std::mem::take(&mut self.lanes.shard_mut(lane).turn_is_wanted) {
            self.record_fence(lane, stream);
        }
    }

    /// [`Pool::turn`] of a lane that misses memory, and may soon be asked for some: what it has free is known to be
    /// settled then.
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

    /// Lanes of which something waits for a fence that was not recorded yet have one recorded in their next turns.
    fn want_turns_of_waiting(&mut self) {
        for (at, of) in self.fences.lanes.iter().enumerate() {
            if !of.is_walled && of.waiting.back().is_some_and(|(fence, _)| *fence >= of.open) {
                self.lanes.shard_mut(LaneId::new(at)).turn_is_wanted = true;
            }
        }
        for (lane, fence) in self.leaving.fences() {
            let of = &self.fences.lanes[lane.index()];
            if !of.is_walled && fence >= of.open {
                self.lanes.shard_mut(lane).turn_is_wanted = true;
            }
        }
    }

    /// What a lane frees from now on is covered by its next fence. The number of this one.
    fn open_next(&mut self, lane: LaneId) -> Fence {
        let of = &mut self.fences.lanes[lane.index()];
        let (fence, open) = (of.open, of.open.next());
        of.open = open;
        self.lanes.shard_mut(lane).heaps.iter_mut().for_each(|heap| heap.set_fence(open));
        fence
    }

    /// Looks which fences of a lane are done, and does what waited for them.
    fn look_at_lane(&mut self, lane: LaneId) {
        while let Some(&(fence, event)) = self.fences.lanes[lane.index()].under_way.front() {
            match self.device.is_done(event) {
                Ok(true) => {}
                Ok(false) => return,
                // It tells nothing: a capture took it in. The fence after it covers the same and more.
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

    /// What a lane freed before a fence is settled.
    fn reach(&mut self, lane: LaneId, fence: Fence) {
        self.fences.lanes[lane.index()].done = fence;
        while let Some(&(due, id)) = self.fences.lanes[lane.index()].waiting.front()
            && due <= fence
        {
            self.fences.lanes[lane.index()].waiting.pop_front();
            self.allocation_mut(id).waits_for_turn = false;
            self.passed(id);
        }
        self.unmap_leaving();
    }

    /// Looks which fences are done, and does what waited for them.
    pub(super) fn look_at_fences(&mut self) {
        for lane in self.lanes.ids() {
            self.look_at_lane(lane);
        }
        self.unmap_leaving();
        self.want_turns_of_waiting();
    }

    /// A lane looks for memory of the others: those that have some free, used by work as far as the pool knows, record
    /// a fence in their next turns.
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

    /// Waits on the host until all work that is queued now is done: then everything that is free is settled.
    ///
    /// # Errors
    /// During a capture that the caller told of, and where the device fails.
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
        self.device.wait_for_all()?;
        for lane in self.lanes.ids() {
            while let Some(&(_, event)) = self.fences.lanes[lane.index()].under_way.front() {
                self.drop_fence(lane, event);
            }
            let fence = self.open_next(lane);
            self.fences.lanes[lane.index()].is_walled = false;
            self.reach(lane, fence);
        }
        for id in std::mem::take(&mut self.fences.unknown) {
            self.passed(id);
        }
        self.unmap_leaving();
        Ok(())
    }

    /// What lies free now, for a caller that waits for the card's work without the pool's lock. A lane whose memory
    /// graphs replay is left out.
    pub fn freed(&mut self) -> Freed {
        let lanes = self.lanes.ids().filter(|lane| !self.fences.lanes[lane.index()].is_walled);
        let lanes: Vec<LaneId> = lanes.collect();
        Freed(lanes.into_iter().map(|lane| (lane, self.open_next(lane))).collect())
    }

    /// All work is done that was queued when this lay free, or later than that. A replay that came meanwhile may use
    /// memory of its lane.
    pub fn settle_freed(&mut self, freed: Freed) {
        for (lane, fence) in freed.0 {
            let of = &self.fences.lanes[lane.index()];
            if of.is_walled || self.fences.is_done(lane, fence) {
                continue;
            }
            while let Some(&(under_way, event)) = self.fences.lanes[lane.index()].under_way.front()
                && under_way <= fence
            {
                self.drop_fence(lane, event);
            }
            self.reach(lane, fence);
        }
        self.unmap_leaving();
    }
}
