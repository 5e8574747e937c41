//! Two runs side by side, aligned by their steps: the growth of peaks, kinds and stacks.
//!
//! Alignment: step i of one run is step i of the other. The moment compared is the peak of the common step in which
//! the run in question needs most; if either run has no steps, it is each run's own peak. Stacks are matched by
//! function and file, not by line, so that an edit above a call does not turn one holder into two; stacks without a
//! counterpart are then matched by their inner frames.

mod aligned;
mod compare;
mod html;
pub(crate) mod pieces;
mod render;
mod tree;

pub use compare::compare;
pub use html::{body, page};
pub use render::{json, text};

use crate::model::When;
use serde::Serialize;

pub const SCHEMA: &str = "gapless.diff/1";

/// The difference between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    pub schema: &'static str,
    pub before: String,
    pub after: String,
    pub devices: Vec<DeviceDiff>,
    /// Settings that differ: name, before, after.
    pub settings: Vec<Change<String>>,
    /// Devices that only one of the runs has.
    pub unmatched_devices: Vec<u32>,
}

/// One named thing, before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change<T> {
    pub name: String,
    pub before: T,
    pub after: T,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceDiff {
    pub device: u32,
    /// Peaks in bytes; `null` if a run does not know one.
    pub peaks: Vec<Change<Option<u64>>>,
    pub fragmentation: Change<Option<f64>>,
    /// Live bytes that each step adds, if known.
    pub growth_per_step: Change<Option<f64>>,
    pub steps: StepsDiff,
    /// The moments that `kinds` and `holders` compare.
    pub moment: MomentDiff,
    pub kinds: Vec<Change<u64>>,
    /// All holders that differ, the largest change first.
    pub holders: Vec<HolderDiff>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepsDiff {
    pub before: u64,
    pub after: u64,
    /// Peak allocated of the steps that both have, by step.
    pub peaks: Vec<Change<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MomentDiff {
    /// "step 7", or "each run's own peak".
    pub what: String,
    pub before: When,
    pub after: When,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HolderDiff {
    pub label: String,
    pub kind: String,
    pub before: u64,
    pub after: u64,
    pub before_count: u64,
    pub after_count: u64,
    /// after - before.
    pub change: i64,
}
