//! Frees that wait for other streams, in the order of each stream. [`waiting`](super::waiting) polls them.

use super::AllocationId;
use crate::device::{EventHandle, StreamHandle};
use std::collections::VecDeque;

/// A freed allocation, and the event after which one of the streams that use it is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) event: EventHandle,
    pub(super) id: AllocationId,
    pub(super) order: u64,
}

/// Frees that are not done.
///
/// Invariants:
/// * `count == sum of queue.len()`;
/// * in each queue `queue[i].order < queue[i + 1].order <= order`;
/// * no stream has two queues, and no allocation is in `later` twice.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// One queue for each stream, in the stream's order.
    queues: Vec<(StreamHandle, VecDeque<Waiting>)>,
    count: usize,
    /// The number of events that were ever waited for, which orders them by age.
    order: u64,
    /// Freed allocations that become free when the caller says so.
    later: Vec<AllocationId>,
}

impl Pending {
    /// True if no free waits for an event.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if no free waits for anything.
    pub(super) fn is_empty_even_later(&self) -> bool {
        self.count + self.later.len() == 0
    }

    /// The order of the newest entry.
    pub(super) fn newest(&self) -> u64 {
        self.order
    }

    /// Makes an allocation wait for an event of a stream.
    pub(super) fn add(&mut self, stream: StreamHandle, event: EventHandle, id: AllocationId) {
        self.count += 1;
        self.order += 1;
        let waiting = Waiting { event, id, order: self.order };
        if let Some((_, queue)) = self.queues.iter_mut().find(|(s, _)| *s == stream) {
            queue.push_back(waiting);
        } else {
            self.queues.push((stream, VecDeque::from([waiting])));
        }
    }

    /// The streams that frees wait for, with their queues.
    pub(super) fn by_stream(&self) -> impl Iterator<Item = (StreamHandle, &VecDeque<Waiting>)> {
        self.queues.iter().map(|(stream, queue)| (*stream, queue))
    }

    /// The number of queues, which are numbered from 0.
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The first entry of a queue, and its stream.
    pub(super) fn first(&self, queue: usize) -> Option<(StreamHandle, Waiting)> {
        let (stream, queue) = &self.queues[queue];
        Some((*stream, *queue.front()?))
    }

    /// Removes the first entry of a queue.
    pub(super) fn pop(&mut self, queue: usize) {
        self.count -= usize::from(self.queues[queue].1.pop_front().is_some());
    }

    /// The last event of a queue that an allocation waits for, and the number of frees up to it.
    pub(super) fn last_of(&self, queue: usize, id: AllocationId) -> Option<(EventHandle, usize)> {
        let queue = &self.queues[queue].1;
        let at = queue.iter().rposition(|waiting| waiting.id == id)?;
        Some((queue[at].event, at + 1))
    }

    /// Takes out the first `many` of a queue.
    pub(super) fn take_first(&mut self, queue: usize, many: usize) -> Vec<Waiting> {
        self.count -= many;
        self.queues[queue].1.drain(..many).collect()
    }

    /// Freed allocations that become free when the caller says so; the oldest first.
    pub(super) fn later(&self) -> &[AllocationId] {
        &self.later
    }

    pub(super) fn add_later(&mut self, id: AllocationId) {
        self.later.push(id);
    }

    /// Removes an allocation from those that are free later; true if it was one. The others keep their order.
    pub(super) fn take_later(&mut self, id: AllocationId) -> bool {
        let at = self.later.iter().position(|&later| later == id);
        at.map(|at| self.later.remove(at)).is_some()
    }

    /// Takes out all that are free later, the oldest first.
    pub(super) fn take_all_later(&mut self) -> Vec<AllocationId> {
        std::mem::take(&mut self.later)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let waiting: usize = self.queues.iter().map(|(_, queue)| queue.len()).sum();
        if waiting != self.count {
            return Err(format!("{waiting} frees wait for events, {} counted", self.count));
        }
        for (at, (stream, queue)) in self.queues.iter().enumerate() {
            let orders: Vec<u64> = queue.iter().map(|waiting| waiting.order).collect();
            if !orders.is_sorted_by(|a, b| a < b) || orders.last().is_some_and(|last| *last > self.order) {
                return Err(format!("frees wait for the events of {stream:?} out of order"));
            }
            if self.queues[..at].iter().any(|(other, _)| other == stream) {
                return Err(format!("frees wait for {stream:?} in two queues"));
            }
        }
        match self.later.iter().enumerate().find(|(at, id)| self.later[..*at].contains(id)) {
            Some((_, id)) => Err(format!("{id:?} is free later twice")),
            None => Ok(()),
        }
    }
}
