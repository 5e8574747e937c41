//! The device of a recording. It answers as the recorded device did, call by call, so that the same allocator with the
//! same settings must reach the same state. It grants calls that the recording does not have, and counts them.

use crate::device::Device;
use crate::script::{DeviceCall, DeviceCallKind, Recorded};

/// Invariant: calls of the present op are `calls[first..end]`, before `at` all are repeated; those already repeated are
/// marked in `done`.
#[derive(Clone, Debug)]
pub struct RecordedDevice<'a> {
    recorded: &'a Recorded,
    total: u64,
    done: Vec<bool>,
    first: usize,
    at: usize,
    end: usize,
    /// Next entry of `recorded.by_op`.
    cursor: usize,
    /// The present op failed in the recording.
    fails: bool,
    spare: u64,
    /// Calls that only one of the two made.
    pub differences: u32,
    /// Addresses of the first few calls that only the allocator made.
    pub(crate) extra: Vec<u64>,
}

impl<'a> RecordedDevice<'a> {
    /// Addresses for calls that the recording does not have: far from real ones.
    const SPARE: u64 = 0x7800_0000_0000_0000;

    #[must_use]
    pub fn new(recorded: &'a Recorded, total: u64) -> RecordedDevice<'a> {
        RecordedDevice {
            recorded,
            total,
            done: vec![false; recorded.calls.len()],
            first: 0,
            at: 0,
            end: 0,
            cursor: 0,
            fails: false,
            spare: Self::SPARE,
            differences: 0,
            extra: Vec::new(),
        }
    }

    /// Begins op `op`; `fails` is true if it failed in the recording.
    #[inline]
    pub fn begin(&mut self, op: u32, fails: bool) {
        if self.at < self.end {
            self.close();
        }
        self.fails = fails;
        self.first = self.end;
        if let Some(&(with_calls, end)) = self.recorded.by_op.get(self.cursor)
            && with_calls == op
        {
            self.cursor += 1;
            self.end = end as usize;
        }
    }

    /// Ends the present op: a call that the recording has and the allocator did not make is a difference.
    pub fn close(&mut self) {
        self.differences += self.missing().count() as u32;
        self.at = self.end;
    }

    /// True if the recording did more in the present op than the allocator until now.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.at < self.end && self.missing().next().is_some()
    }

    /// Calls of the present op that were not repeated.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &DeviceCall> {
        (self.at..self.end).filter(|&i| !self.done[i]).map(|i| &self.recorded.calls[i])
    }

    /// All recorded calls of the present op.
    pub(crate) fn calls_of_op(&self) -> &[DeviceCall] {
        &self.recorded.calls[self.first..self.end]
    }

    fn differs(&mut self, addr: u64) {
        const KEPT: usize = 1024;
        self.differences += 1;
        if self.extra.len() < KEPT {
            self.extra.push(addr);
        }
    }

    /// The next call of the recording that was not repeated yet.
    fn next(&mut self) -> Option<DeviceCall> {
        while self.at < self.end && self.done[self.at] {
            self.at += 1;
        }
        (self.at < self.end).then(|| self.recorded.calls[self.at])
    }

    fn spare(&mut self, size: u64) -> u64 {
        let addr = self.spare;
        self.spare += size.div_ceil(crate::device::GRANULE) * crate::device::GRANULE;
        addr
    }

    /// A call that gives memory back: in any order, for hash maps decide it.
    fn gave_back(&mut self, kind: DeviceCallKind, addr: u64) {
        let found = (self.at..self.end).find(|&i| {
            let call = &self.recorded.calls[i];
            !self.done[i] && call.kind == kind && call.addr.0 == addr
        });
        match found {
            Some(i) => self.done[i] = true,
            None => self.differs(addr),
        }
    }

    fn refuses(&mut self) -> bool {
        match self.next() {
            Some(call) => matches!(call.kind, DeviceCallKind::Free | DeviceCallKind::Unmap),
            None => self.fails,
        }
    }
}

impl Device for RecordedDevice<'_> {
    fn malloc(&mut self, size: u64) -> Option<u64> {
        if self.refuses() {
            return None;
        }
        match self.next() {
            Some(call) if call.kind == DeviceCallKind::Malloc && call.size.0 == size => {
                self.done[self.at] = true;
                Some(call.addr.0)
            }
            _ => {
                self.differences += 1;
                Some(self.spare(size))
            }
        }
    }

    fn free(&mut self, addr: u64, _size: u64) {
        self.gave_back(DeviceCallKind::Free, addr);
    }

    fn reserve(&mut self, size: u64) -> u64 {
        match self.next() {
            Some(call) if call.kind == DeviceCallKind::Map => call.addr.0,
            _ => self.spare(size),
        }
    }

    fn unreserve(&mut self, _addr: u64, _size: u64) {}

    fn map(&mut self, addr: u64, size: u64) -> bool {
        if self.refuses() {
            return false;
        }
        match self.next() {
            Some(call) if call.kind == DeviceCallKind::Map && call.addr.0 == addr && call.size.0 == size => {
                self.done[self.at] = true;
            }
            _ => self.differs(addr),
        }
        true
    }

    fn unmap(&mut self, addr: u64, _size: u64) {
        self.gave_back(DeviceCallKind::Unmap, addr);
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn available(&self) -> u64 {
        0
    }

    fn expects_free(&self) -> Option<bool> {
        let next = (self.at..self.end).find(|&i| !self.done[i]).map(|i| self.recorded.calls[i].kind);
        Some(matches!(next, Some(DeviceCallKind::Free)))
    }
}
