//! Frees that wait for other streams: events in the order of each stream, looked at when memory is asked for.

use super::Pool;
use crate::device::{Device, EventHandle, StreamHandle};
use std::collections::VecDeque;

impl<D: Device> Pool<D> {
    pub(super) fn wait_for(&mut self, stream: StreamHandle, id: u32) {
        let Ok(event) = self.device.record(stream) else { return };
        self.allocations[id as usize].waits += 1;
        self.pending_count += 1;
        if let Some((_, queue)) = self.pending.iter_mut().find(|(s, _)| *s == stream) {
            queue.push_back((event, id));
        } else {
            self.pending.push((stream, VecDeque::from([(event, id)])));
        }
    }

    /// Completes what no stream uses any more. Requests do it too.
    pub fn poll(&mut self) {
        for at in 0..self.pending.len() {
            while let Some(&(event, id)) = self.pending[at].1.front() {
                if !matches!(self.device.is_done(event), Ok(true)) {
                    break;
                }
                self.pending[at].1.pop_front();
                self.passed(event, id);
            }
        }
    }

    pub(super) fn passed(&mut self, event: EventHandle, id: u32) {
        self.device.discard(event);
        self.pending_count -= 1;
        let allocation = &mut self.allocations[id as usize];
        allocation.waits -= 1;
        if allocation.waits == 0 {
            self.complete(id);
        }
    }

    /// Waits on the host for every pending free.
    pub(super) fn wait_for_pending(&mut self) {
        for at in 0..self.pending.len() {
            while let Some((event, id)) = self.pending[at].1.pop_front() {
                let _ = self.device.wait(event);
                self.passed(event, id);
            }
        }
    }
}
