//! Exact models of allocators, replayed over the requests of a recorded run, to find one that uses less memory.
//!
//! A [`script::Script`] has the program's requests from a trace. An [`allocator::Allocator`] is a deterministic machine
//! that serves them from a [`device::Device`]: PyTorch's allocator with all its settings and releases ([`torch`]), and
//! others to compare with.

pub mod advise;
pub mod allocator;
pub mod answer;
pub mod cost;
pub mod curve;
pub mod device;
pub mod gapless;
pub mod machine;
pub mod models;
pub mod outcome;
pub mod planner;
pub mod post_mortem;
pub mod recorded;
pub mod run;
pub mod script;
pub mod sweep;
pub mod torch;

mod floor;
/// The set of free blocks, shared with our own allocator.
mod free_set {
    pub(crate) use gapless_pool::free_set::{Entry, FreeSet};
}

pub use allocator::{Allocator, Gauge, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
pub use answer::outcome;
pub use curve::CurvePoint;
pub use device::{Device, Placement, SimDevice};
pub use machine::{Machine, Spec};
pub use outcome::{Outcome, Question};
pub use script::{Op, Script};
