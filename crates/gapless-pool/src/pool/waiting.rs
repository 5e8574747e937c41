//! Frees that wait for other streams: polled when a request comes, and waited for before a request fails.

use super::pending::Waiting;
use super::{AllocationId, FreeError, Pool};
use crate::device::{Device, DeviceError, EventHandle, StreamHandle};
use crate::ids::LaneId;
use crate::mutants::{self, Mutant};
use crate::shard::Shard;
use crate::stats::Stats;
use std::collections::VecDeque;

impl<D: Device> Pool<D> {
    /// Makes a freed allocation wait for the present work of a stream. False if no event can be recorded on the stream,
    /// because it is being captured or no longer exists.
    pub(super) fn wait_for(&mut self, stream: StreamHandle, id: AllocationId) -> bool {
        let Ok(event) = self.device.record(stream) else { return false };
        self.allocation_mut(id).waits += 1;
        self.pending.add(stream, event, id);
        true
    }

    /// True if a free waits for work.
    #[inline]
    pub fn is_waiting_for_work(&self) -> bool {
        !self.pending.is_empty() || self.fences.is_anything_waiting()
    }

    /// Completes frees that no stream uses any more. Requests call it too.
    pub fn poll(&mut self) {
        for queue in 0..self.pending.queues() {
            while let Some((stream, Waiting { event, id, .. })) = self.pending.first(queue) {
                match self.device.is_done(event) {
                    Ok(true) => {}
                    Ok(false) => break,
                    // The event failed: a capture that the caller did not report has taken it in.
                    Err(_) if self.device.is_covered(stream) => self.wait_for_card(id),
                    Err(_) => break,
                }
                self.pending.pop(queue);
                self.passed_event(event, id);
            }
        }
        self.look_at_fences();
        self.lanes.shards_mut().for_each(Shard::has_looked);
        if self.pending.is_empty() {
            self.lanes.shards_mut().for_each(Shard::poll_soon);
        }
    }

    /// Completes what the last request would have completed with a poll. Statistics and snapshots show PyTorch's view,
    /// whose every request polls; work that was done since then waits for the next one.
    pub fn catch_up(&mut self) {
        if !self.pending.is_empty() && self.lanes.shards().any(Shard::has_skipped) {
            self.poll();
        }
    }

    fn passed_event(&mut self, event: EventHandle, id: AllocationId) {
        if self.awaited.drop(event) || mutants::is(Mutant::DropAwaited) {
            self.device.discard(event);
        }
        self.passed(id);
    }

    /// One of the events or fences that an allocation waited for is done.
    pub(super) fn passed(&mut self, id: AllocationId) {
        let allocation = self.allocation_mut(id);
        allocation.waits -= 1;
        if allocation.waits == 0 {
            self.complete(id);
        } else {
            self.look_if_lent_only(id);
        }
    }

    /// Counts lent memory as completed once it waits only for a turn of its lane, because PyTorch would have it free by
    /// now.
    pub(super) fn look_if_lent_only(&mut self, id: AllocationId) {
        let allocation = self.allocation_mut(id);
        if allocation.waits == 1 && allocation.waits_for_turn {
            allocation.is_lent_only = true;
            self.count_returning(id);
            if self.log.is_some() {
                self.log_completed(id);
            }
        }
    }

    /// True if a request needs new memory while more freed memory waits for other streams than the options allow. Free
    /// memory of other lanes does not count: their streams may be behind too.
    pub(super) fn is_too_far_ahead(&self, lane: LaneId, size: u64) -> bool {
        let Some(most) = self.options.run_ahead.filter(|_| !self.quiet) else { return false };
        let Stats { active, allocated, .. } = &self.stats;
        active.current - allocated.current > most
            && self.heap(lane.large()).whole() < size
            && !self.lanes[lane].pool.is_private()
    }

    /// Waits for the oldest free that waits for another stream. False if there is none, or if that is not possible.
    ///
    /// # Errors
    /// If the caller is to wait.
    pub(super) fn await_oldest(&mut self) -> Result<bool, DeviceError> {
        let first = |queue: &VecDeque<Waiting>| queue.front().map(|waiting| (waiting.order, waiting.event));
        let oldest =
            self.pending.by_stream().filter_map(|(_, queue)| first(queue)).min_by_key(|(order, _)| *order);
        let Some((_, event)) = oldest.filter(|(_, event)| self.device.is_done(*event) == Ok(false)) else {
            return Ok(false);
        };
        if self.asks() {
            return if self.ask_to_wait(event) { Err(DeviceError::OutOfMemory) } else { Ok(false) };
        }
        self.stats.waits += 1;
        Ok(self.device.wait(event).is_ok())
    }

    /// An event that is not done and that a freed allocation waits for.
    pub(super) fn running_for(&mut self, id: AllocationId) -> Option<EventHandle> {
        let queues = 0..self.pending.queues();
        let events: Vec<EventHandle> =
            queues.filter_map(|queue| self.pending.last_of(queue, id)).map(|(event, _)| event).collect();
        events.into_iter().find(|event| self.device.is_done(*event) == Ok(false))
    }

    /// An event that is not done and that one of the frees waits for, of those up to a number.
    pub(super) fn running_up_to(&mut self, order: u64) -> Option<EventHandle> {
        let last = |queue: &VecDeque<Waiting>| queue.iter().rfind(|waiting| waiting.order <= order).copied();
        let events: Vec<EventHandle> = self
            .pending
            .by_stream()
            .filter_map(|(_, queue)| last(queue))
            .map(|waiting| waiting.event)
            .collect();
        events.into_iter().find(|event| self.device.is_done(*event) == Ok(false))
    }

    /// Waits on the host for every pending free. Frees whose events fail stay pending.
    pub(super) fn wait_for_pending(&mut self) {
        self.stats.waits += u64::from(!self.pending.is_empty_even_later());
        for id in self.pending.take_all_later() {
            self.complete(id);
        }
        for queue in 0..self.pending.queues() {
            while let Some((_, Waiting { event, id, .. })) = self.pending.first(queue) {
                if self.device.wait(event).is_err() {
                    break;
                }
                self.pending.pop(queue);
                self.passed_event(event, id);
            }
        }
        if self.fences.is_anything_waiting() {
            let _ = self.settle_now();
        }
    }

    /// Waits on the host until no stream uses one allocation any more. Earlier frees of its streams are then done too.
    pub(super) fn wait_for_one(&mut self, id: AllocationId) {
        if self.pending.take_later(id) {
            self.complete(id);
            return;
        }
        for queue in 0..self.pending.queues() {
            let Some((event, many)) = self.pending.last_of(queue, id) else { continue };
            if self.device.wait(event).is_err() {
                continue;
            }
            for Waiting { event, id, .. } in self.pending.take_first(queue, many) {
                self.passed_event(event, id);
            }
        }
        if self.fences.waiting().any(|waiting| waiting == id) {
            let _ = self.settle_now();
        }
    }

    /// True if the allocation that [`Pool::free_later`] freed at `addr` still waits.
    pub fn is_later(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.pending.later().contains(&id))
    }

    /// Frees the allocation at `addr`, but keeps its memory until [`Pool::free_now`]: for callers that know without
    /// events when other streams are done, as a recorded trace does.
    ///
    /// # Errors
    /// As [`Pool::free`].
    pub fn free_later(&mut self, addr: u64) -> Result<(), FreeError> {
        let id = self.find(addr).ok_or(FreeError::Unknown { addr })?;
        let allocation = self.allocation_mut(id);
        if allocation.waits > 0 {
            return Err(FreeError::Twice { addr });
        }
        allocation.waits = 1;
        self.pending.add_later(id);
        self.count_free(id);
        self.uncharge(id);
        Ok(())
    }

    /// Completes a free of [`Pool::free_later`]. Does nothing if a wait for all streams has completed it before.
    pub fn free_now(&mut self, addr: u64) {
        if let Some(id) = self.find(addr)
            && self.pending.take_later(id)
        {
            self.complete(id);
        }
    }
}
