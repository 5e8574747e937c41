//! Pinned host memory out of a snapshot (torch 2.14 and later): `host_segments` and `host_traces`, which have the shape
//! of a device's but are none. Their figures stand alone; no byte of them is part of a device's figures.

use crate::rows::{BlockRow, SegmentRow};
use gapless_trace::numbers::plural;
use gapless_trace::{Action, BlockState, Bytes, Event, HostMemory, Note};

/// The figures of the segments at the end and the events before; `None` if nothing was recorded.
///
/// Peaks count from the state before the first event, which follows from the end and the events. Memory that the
/// program itself registered is in the events only: that state would then be below 0, and is taken as 0.
pub(crate) fn memory<'a>(
    segments: impl Iterator<Item = (&'a SegmentRow, &'a [BlockRow])>,
    events: impl Iterator<Item = Event>,
) -> Option<HostMemory> {
    let mut host = HostMemory::default();
    for (segment, blocks) in segments {
        host.blocks = host.blocks.saturating_add(1);
        host.held = Bytes(host.held.0.saturating_add(segment.size.0));
        for block in blocks.iter().filter(|block| block.state != BlockState::Free) {
            host.in_use = Bytes(host.in_use.0.saturating_add(block.size.0));
        }
    }
    let (mut held, mut in_use) = (Level::default(), Level::default());
    for event in events {
        host.events += 1;
        match event.action {
            Action::SegmentAlloc => held.add(event.size),
            Action::SegmentFree => held.take(event.size),
            Action::Alloc => in_use.add(event.size),
            Action::FreeCompleted => in_use.take(event.size),
            _ => {}
        }
    }
    host.peak_held = held.peak(host.held);
    host.peak_in_use = in_use.peak(host.in_use);
    (host != HostMemory::default()).then_some(host)
}

/// Bytes against those at the beginning, and the most there were.
#[derive(Default)]
struct Level {
    now: i128,
    most: i128,
}

impl Level {
    fn add(&mut self, size: Bytes) {
        self.now += i128::from(size.0);
        self.most = self.most.max(self.now);
    }

    fn take(&mut self, size: Bytes) {
        self.now -= i128::from(size.0);
    }

    /// The peak, if `end` bytes were there at the end.
    fn peak(&self, end: Bytes) -> Bytes {
        let start = (i128::from(end.0) - self.now).max(0);
        Bytes(u64::try_from(start + self.most).unwrap_or(u64::MAX)).max(end)
    }
}

pub(crate) fn note(host: &HostMemory) -> Note {
    Note {
        code: "pinned-host-memory",
        text: format!(
            "pinned host memory, apart from the figures of the devices: {} held at the end in {}, {} of it \
             in use; at most {} were held and {} in use",
            host.held,
            plural(host.blocks, "block"),
            host.in_use,
            host.peak_held,
            host.peak_in_use
        ),
    }
}
