//! Fences: what the pool knows about work that is done.
//!
//! A fence is an event after the present work of every stream. Fences have numbers; what is freed now is **settled**,
//! used by no work any more, once fence `open` is done, the one that will be recorded next. Only settled memory goes
//! from one lane to another, and addresses are unmapped only where no work uses them: no stream ever waits for another
//! one on behalf of the pool, and the host waits only before a request would fail.

use super::{AllocationId, Pool};
use crate::device::{Device, DeviceError, EventHandle};
use crate::ids::Fence;
use crate::mutants::{self, Mutant};
use std::collections::VecDeque;

/// Fences that are under way at most: what is freed after the last one is covered by the next.
const MOST: usize = 4;

/// Invariants: `done < open`; the numbers of `under_way` rise and lie between them.
#[derive(Debug)]
pub(super) struct Fences {
    open: Fence,
    done: Fence,
    under_way: VecDeque<(Fence, EventHandle)>,
    /// Given back, and free behind a fence: lent memory, and what streams use that no event could be recorded on.
    /// Fences rise.
    pub(super) waiting: VecDeque<(Fence, AllocationId)>,
}

impl Default for Fences {
    fn default() -> Fences {
        Fences {
            open: Fence::PAST.next(),
            done: Fence::PAST,
            under_way: VecDeque::new(),
            waiting: VecDeque::new(),
        }
    }
}

impl Fences {
    /// The fence that covers all work that is queued now.
    pub(super) fn open(&self) -> Fence {
        self.open
    }

    /// The work before this fence, and before every earlier one, is done.
    pub(super) fn done(&self) -> Fence {
        if mutants::is(Mutant::LendUnsettled) { Fence::LAST } else { self.done }
    }

    pub(super) fn is_done(&self, fence: Fence) -> bool {
        fence <= self.done
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let mut last = self.done;
        for &(fence, _) in &self.under_way {
            if fence <= last || fence >= self.open {
                return Err(format!("fence {fence} is under way between {last} and {}", self.open));
            }
            last = fence;
        }
        let rises = self.waiting.iter().is_sorted_by_key(|(fence, _)| fence);
        if rises { Ok(()) } else { Err("allocations wait for fences out of order".into()) }
    }
}

impl<D: Device> Pool<D> {
    /// An allocation that was given back is free behind the fence that covers all work of now.
    pub(super) fn wait_for_fence(&mut self, id: AllocationId) {
        self.allocation_mut(id).waits += 1;
        self.fences.waiting.push_back((self.fences.open, id));
    }

    /// Records a fence, unless enough are under way or a capture forbids it.
    pub(super) fn begin_fence(&mut self) {
        if self.fences.under_way.len() < MOST && (!self.is_quiet() || mutants::is(Mutant::FenceInCapture)) {
            let _ = self.record_fence();
        }
    }

    fn record_fence(&mut self) -> Result<(), DeviceError> {
        let event = self.device.fence()?;
        let fence = self.open_next();
        self.fences.under_way.push_back((fence, event));
        Ok(())
    }

    /// What is freed from now on is covered by the next fence. The number of this one.
    fn open_next(&mut self) -> Fence {
        let next = self.fences.open.next();
        self.lanes.set_fence(next);
        std::mem::replace(&mut self.fences.open, next)
    }

    /// Looks which fences are done, and does what waited for them.
    pub(super) fn look_at_fences(&mut self) {
        while let Some(&(fence, event)) = self.fences.under_way.front() {
            if !matches!(self.device.is_done(event), Ok(true)) {
                break;
            }
            self.fences.under_way.pop_front();
            self.pass(fence, event);
        }
    }

    fn pass(&mut self, fence: Fence, event: EventHandle) {
        self.device.discard(event);
        self.reach(fence);
    }

    /// The work before a fence is done.
    fn reach(&mut self, fence: Fence) {
        self.fences.done = fence;
        while let Some(&(due, id)) = self.fences.waiting.front()
            && due <= fence
        {
            self.fences.waiting.pop_front();
            self.passed(id);
        }
        self.unmap_leaving();
    }

    /// Frees that wait for fences, and addresses that leave behind them, get one; those that are done are looked at.
    pub(super) fn tend_fences(&mut self) {
        self.look_at_fences();
        let last = self.fences.waiting.back().map(|(fence, _)| *fence).max(self.leaving.last());
        if last.is_some_and(|fence| fence >= self.fences.open) {
            self.settle_if_done();
        }
        self.fence_ahead();
    }

    /// Where several lanes could lend each other memory, a fence is always under way: what is free is known to be
    /// settled when it is asked for.
    pub(super) fn fence_ahead(&mut self) {
        if self.lanes.len() > 1 && self.options.lending && self.fences.under_way.is_empty() {
            self.begin_fence();
        }
    }

    /// Settles what is free now where that takes no wait: for lending.
    pub(super) fn settle_if_done(&mut self) {
        self.look_at_fences();
        self.begin_fence();
        self.look_at_fences();
    }

    /// Waits on the host until all work that is queued now is done: then everything that is free is settled.
    ///
    /// # Errors
    /// During a capture, and where the device fails.
    pub(super) fn settle_now(&mut self) -> Result<(), DeviceError> {
        if self.is_quiet() && !mutants::is(Mutant::TrimInCapture) {
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
        if self.record_fence().is_err() {
            return self.settle_without_fences();
        }
        while let Some((fence, event)) = self.fences.under_way.pop_front() {
            if let Err(error) = self.device.wait(event) {
                self.fences.under_way.push_front((fence, event));
                return Err(error);
            }
            self.pass(fence, event);
        }
        Ok(())
    }

    /// [`Pool::settle_now`] where the device has no fences.
    fn settle_without_fences(&mut self) -> Result<(), DeviceError> {
        self.device.wait_for_all()?;
        for (_, event) in std::mem::take(&mut self.fences.under_way) {
            self.device.discard(event);
        }
        let fence = self.open_next();
        self.reach(fence);
        Ok(())
    }
}
