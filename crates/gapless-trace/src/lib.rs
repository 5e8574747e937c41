//! The common language of Gapless: the memory of a run, in columns.
//!
//! Read [`words`] first, it is the vocabulary. A [`Trace`] is the product of a reader: events in the order in which
//! they happened, frames and stacks stored once, and the heap at the end. A [`History`] is the meaning of the events:
//! every allocation with its block and its lifetime, every segment, and the peaks, rebuilt to the byte. [`Moment`] is
//! the heap at one instant of a history.
//!
//! Nothing here does I/O of its own or knows a file format other than `.gtrace`; no crate of ours is below this one.

pub mod block_notes;
pub mod churn;
pub mod curve;
pub mod events;
pub mod growth;
pub mod gtrace;
pub mod history;
pub mod holders;
pub mod kinds;
pub mod leaks;
pub mod moment;
pub mod naming;
pub mod numbers;
pub mod scopes;
pub mod settings;
pub mod stacks;
pub mod steps;
pub mod strings;
pub mod sweep;
pub mod torch_rules;
pub mod trace;
pub mod usage;
pub mod words;

mod allocations;
mod heap;
mod initial;
mod mapped;
#[cfg(test)]
mod testing;

pub use allocations::{Allocation, AllocationId, Allocations, Columns, HistoryError, SegmentSpan};
pub use curve::{Curve, CurvePoint};
pub use events::{Action, Event, Events};
pub use heap::{Ahead, Follower};
pub use history::History;
pub use moment::Moment;
pub use settings::AllocatorSettings;
pub use stacks::{Frame, Frames, StackId, Stacks};
pub use strings::{StringId, Strings};
pub use trace::{
    Annotation, Block, BlockNote, BlockState, DeviceTrace, HostMemory, Note, Process, Segment, SizeClass,
    Source, Stage, Trace,
};
pub use usage::{Figures, Meter, Usage};
pub use words::{Bytes, DeviceAddr, EventIndex, Micros, PoolId, StreamId, Tick};
