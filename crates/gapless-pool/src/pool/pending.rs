//! Frees that wait for other streams: events in the order of each stream, looked at when memory is asked for.

use super::{AllocationId, FreeError, Pool};
use crate::device::{Device, EventHandle, StreamHandle};
use crate::mutants::{self, Mutant};
use std::collections::VecDeque;

/// An allocation that was given back, and the event after which one of the streams that use it is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    event: EventHandle,
    pub(super) id: AllocationId,
    pub(super) order: u64,
}

/// Frees that are not done.
///
/// Invariants: `count` is the length of all queues; orders rise in each.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// In the order of each stream.
    queues: Vec<(StreamHandle, VecDeque<Waiting>)>,
    count: usize,
    /// Events that were ever waited for: which of two is older.
    order: u64,
    /// Given back, to be free when the caller says so.
    later: Vec<AllocationId>,
}

impl Pending {
    /// Whether no free waits for an event.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, stream: StreamHandle, event: EventHandle, id: AllocationId) {
        self.count += 1;
        self.order += 1;
        let waiting = Waiting { event, id, order: self.order };
        if let Some((_, queue)) = self.queues.iter_mut().find(|(s, _)| *s == stream) {
            queue.push_back(waiting);
        } else {
            self.queues.push((stream, VecDeque::from([waiting])));
        }
    }

    /// The streams that frees wait for, with what waits.
    pub(super) fn by_stream(&self) -> impl Iterator<Item = (StreamHandle, &VecDeque<Waiting>)> {
        self.queues.iter().map(|(stream, queue)| (*stream, queue))
    }

    /// Given back, to be free when the caller says so; the oldest first.
    pub(super) fn later(&self) -> &[AllocationId] {
        &self.later
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let waiting: usize = self.queues.iter().map(|(_, queue)| queue.len()).sum();
        if waiting != self.count {
            return Err(format!("{waiting} frees wait for events, {} counted", self.count));
        }
        let rises = |queue: &VecDeque<Waiting>| queue.iter().is_sorted_by_key(|waiting| waiting.order);
        if self.queues.iter().all(|(_, queue)| rises(queue)) {
            Ok(())
        } else {
            Err("frees wait for the events of a stream out of order".into())
        }
    }
}

impl<D: Device> Pool<D> {
    /// An allocation that was given back waits for the present work of a stream. Whether it does: it may be a stream
    /// that no event can be recorded on, one that is being captured or that is gone.
    pub(super) fn wait_for(&mut self, stream: StreamHandle, id: AllocationId) -> bool {
        // The fence that comes after a capture covers what the stream does now, unless it is of another context.
        if self.quiet && self.device.is_fenced(stream) && !mutants::is(Mutant::RecordInCapture) {
            return false;
        }
        let Ok(event) = self.device.record(stream) else { return false };
        self.allocation_mut(id).waits += 1;
        self.pending.add(stream, event, id);
        true
    }

    /// Whether something waits for work to be done.
    #[inline]
    pub fn is_waiting_for_work(&self) -> bool {
        !self.pending.is_empty() || !self.fences.waiting.is_empty()
    }

    /// Completes what no stream uses any more. Requests do it too.
    pub fn poll(&mut self) {
        for at in 0..self.pending.queues.len() {
            while let Some(&Waiting { event, id, .. }) = self.pending.queues[at].1.front() {
                match self.device.is_done(event) {
                    Ok(true) => {}
                    Ok(false) => break,
                    // An event that tells nothing: a capture that nobody told of has taken it in.
                    Err(_) if self.device.is_fenced(self.pending.queues[at].0) => self.wait_for_fence(id),
                    Err(_) => break,
                }
                self.pending.queues[at].1.pop_front();
                self.passed_event(event, id);
            }
        }
        self.tend_fences();
        if self.pending.is_empty() {
            self.shards.iter_mut().for_each(|shard| shard.poll_soon());
        }
    }

    fn passed_event(&mut self, event: EventHandle, id: AllocationId) {
        self.device.discard(event);
        self.pending.count -= 1;
        self.passed(id);
    }

    /// One of the things that an allocation waited for is over.
    pub(super) fn passed(&mut self, id: AllocationId) {
        let allocation = self.allocation_mut(id);
        allocation.waits -= 1;
        if allocation.waits == 0 {
            self.complete(id);
        }
    }

    /// Waits on the host for every pending free. What it cannot wait for stays pending.
    pub(super) fn wait_for_pending(&mut self) {
        self.stats.waits += u64::from(self.pending.count + self.pending.later.len() > 0);
        for id in std::mem::take(&mut self.pending.later) {
            self.complete(id);
        }
        for at in 0..self.pending.queues.len() {
            while let Some(&Waiting { event, id, .. }) = self.pending.queues[at].1.front() {
                if self.device.wait(event).is_err() {
                    break;
                }
                self.pending.queues[at].1.pop_front();
                self.passed_event(event, id);
            }
        }
        if !self.fences.waiting.is_empty() {
            let _ = self.settle_now();
        }
    }

    /// Waits on the host until no stream uses one allocation any more. What came before it on its streams is done then
    /// too.
    pub(super) fn wait_for_one(&mut self, id: AllocationId) {
        if let Some(at) = self.pending.later.iter().position(|&later| later == id) {
            self.pending.later.remove(at);
            self.complete(id);
            return;
        }
        for at in 0..self.pending.queues.len() {
            let Some(last) = self.pending.queues[at].1.iter().rposition(|waiting| waiting.id == id) else {
                continue;
            };
            if self.device.wait(self.pending.queues[at].1[last].event).is_err() {
                continue;
            }
            for Waiting { event, id, .. } in self.pending.queues[at].1.drain(..=last).collect::<Vec<_>>() {
                self.passed_event(event, id);
            }
        }
        if self.fences.waiting.iter().any(|&(_, waiting)| waiting == id) {
            let _ = self.settle_now();
        }
    }

    /// Whether what was given back at `addr` with [`Pool::free_later`] is not free yet.
    pub fn is_later(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.pending.later.contains(&id))
    }

    /// Gives back what was allocated at `addr`, to be free when [`Pool::free_now`] says so: for callers that know when
    /// other streams are done without events, as a recorded trace does.
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
        self.pending.later.push(id);
        self.count_free(id);
        self.uncharge(id);
        Ok(())
    }

    /// What was given back with [`Pool::free_later`] is free now; nothing where a wait for all streams freed it before.
    pub fn free_now(&mut self, addr: u64) {
        if let Some(id) = self.find(addr)
            && let Some(at) = self.pending.later.iter().position(|&later| later == id)
        {
            // In order: the oldest is waited for first.
            self.pending.later.remove(at);
            self.complete(id);
        }
    }
}
