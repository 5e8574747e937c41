//! The meaning of the events: every allocation with its block and lifetime, every segment, and the peaks.
//!
//! A trace has the address of a block and the size of its request; it does not have the block's size. That follows from
//! the state of the heap: the free block at that address, cut or not by PyTorch's rules. [`History::rebuild`] therefore
//! runs the events over a model of the heap's geometry (module `heap`), from the state at the beginning (module
//! `initial` finds it if the recording began late), and compares the state at the end with the segments in the
//! snapshot.
//!
//! Promises: linear in the events; peaks equal the allocator's own statistics to the byte when the recording is
//! complete; inferred facts are in `notes`; an impossible sequence is an error that names the event.

use crate::allocations::{Allocations, SegmentSpan};
use crate::block_notes::BlockNotes;
use crate::curve::Curve;
use crate::events::Action;
use crate::trace::{DeviceTrace, Note, SizeClass};
use crate::usage::Usage;
use crate::words::Tick;

/// Usage of one part of the device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Index into the device's pools.
    pub pool: u16,
    pub class: SizeClass,
    pub usage: Usage,
}

/// Everything that happened on one device.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub allocations: Allocations,
    pub segments: Vec<SegmentSpan>,
    /// The device as a whole.
    pub usage: Usage,
    /// By pool and size class, in order of first use.
    pub pools: Vec<PoolUsage>,
    /// By stream: `streams[i]` belongs to the device's stream `i`.
    pub streams: Vec<Usage>,
    /// The most segments held at once (PyTorch's `segment.all.peak`: expandable memory does not count).
    pub segments_peak: u32,
    /// Usage over time, in at most [`Curve::POINTS`] points.
    pub curve: Curve,
    /// The number of events: ticks run from 0 to this.
    pub last_tick: Tick,
    /// Allocations that were there when the recording began.
    pub preexisting: u32,
    /// True if reserved bytes are known: the source has segments.
    pub has_segments: bool,
    /// Notes of the program on its blocks.
    pub block_notes: BlockNotes,
    pub notes: Vec<Note>,
}

impl History {
    /// The tick past the end: allocations that were never freed end here.
    #[must_use]
    pub fn forever(&self) -> Tick {
        Tick(self.last_tick.0 + 1)
    }

    /// The numbers of calls that took memory from the device, and that gave it back.
    #[must_use]
    pub fn device_calls(device: &DeviceTrace) -> (usize, usize) {
        let count = |action| device.events.count(action);
        (
            count(Action::SegmentAlloc) + count(Action::SegmentMap),
            count(Action::SegmentFree) + count(Action::SegmentUnmap),
        )
    }
}
