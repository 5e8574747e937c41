//! Frees that wait for other streams: events in the order of each stream, looked at when memory is asked for.

use super::{AllocationId, FreeError, Pool, Waiting};
use crate::device::{Device, EventHandle, StreamHandle};
use std::collections::VecDeque;

impl<D: Device> Pool<D> {
    pub(super) fn wait_for(&mut self, stream: StreamHandle, id: AllocationId) {
        let Ok(event) = self.device.record(stream) else { return };
        self.allocation_mut(id).waits += 1;
        self.pending_count += 1;
        self.pending_order += 1;
        let waiting = Waiting { event, id, order: self.pending_order };
        if let Some((_, queue)) = self.pending.iter_mut().find(|(s, _)| *s == stream) {
            queue.push_back(waiting);
        } else {
            self.pending.push((stream, VecDeque::from([waiting])));
        }
    }

    /// Completes what no stream uses any more. Requests do it too.
    pub fn poll(&mut self) {
        for at in 0..self.pending.len() {
            while let Some(&Waiting { event, id, .. }) = self.pending[at].1.front() {
                if !matches!(self.device.is_done(event), Ok(true)) {
                    break;
                }
                self.pending[at].1.pop_front();
                self.passed(event, id);
            }
        }
    }

    pub(super) fn passed(&mut self, event: EventHandle, id: AllocationId) {
        self.device.discard(event);
        self.pending_count -= 1;
        let allocation = self.allocation_mut(id);
        allocation.waits -= 1;
        if allocation.waits == 0 {
            self.complete(id);
        }
    }

    /// Waits on the host for every pending free.
    pub(super) fn wait_for_pending(&mut self) {
        self.stats.waits += u64::from(self.pending_count + self.later.len() > 0);
        for id in std::mem::take(&mut self.later) {
            self.complete(id);
        }
        for at in 0..self.pending.len() {
            while let Some(Waiting { event, id, .. }) = self.pending[at].1.pop_front() {
                let _ = self.device.wait(event);
                self.passed(event, id);
            }
        }
    }

    /// Waits on the host until no stream uses one allocation any more. What came before it on its streams is done then too.
    pub(super) fn wait_for_one(&mut self, id: AllocationId) {
        if let Some(at) = self.later.iter().position(|&later| later == id) {
            self.later.remove(at);
            self.complete(id);
            return;
        }
        for at in 0..self.pending.len() {
            let Some(last) = self.pending[at].1.iter().rposition(|waiting| waiting.id == id) else {
                continue;
            };
            let _ = self.device.wait(self.pending[at].1[last].event);
            for Waiting { event, id, .. } in self.pending[at].1.drain(..=last).collect::<Vec<_>>() {
                self.passed(event, id);
            }
        }
    }

    /// Whether what was given back at `addr` with [`Pool::free_later`] is not free yet.
    pub fn is_later(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.later.contains(&id))
    }

    /// Gives back what was allocated at `addr`, to be free when [`Pool::free_now`] says so: for callers that know when other streams are done
    /// without events, as a recorded trace does.
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
        self.later.push(id);
        self.count_free(self.allocation(id).size);
        self.uncharge(id);
        Ok(())
    }

    /// What was given back with [`Pool::free_later`] is free now; nothing where a wait for all streams freed it before.
    pub fn free_now(&mut self, addr: u64) {
        if let Some(id) = self.find(addr)
            && let Some(at) = self.later.iter().position(|&later| later == id)
        {
            // In order: the oldest is waited for first.
            self.later.remove(at);
            self.complete(id);
        }
    }
}
