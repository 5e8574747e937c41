//! Runs as people and programs read them: text, JSON and a page.

mod html;
mod json;
mod text;

pub use html::page;
pub use json::json;
pub use text::text;

use crate::sim::{Cause, Outcome, Run};
use crate::words::{Node, Pod};
use gapless_trace::numbers::{count as grouped, plural as counted};

/// A run with its name.
#[derive(Clone, Debug)]
pub struct Named {
    pub policy: &'static str,
    pub run: Run,
}

/// A simulation and its inputs.
#[derive(Clone, Debug)]
pub struct Simulated {
    pub nodes: Vec<Node>,
    pub pods: Vec<Pod>,
    pub seed: i64,
    /// The wanted level of arrivals, if one was asked for.
    pub level: Option<f64>,
    pub runs: Vec<Named>,
}

/// The number of refused arrivals for each cause that occurred.
fn refusals(run: &Run) -> Vec<(Cause, usize)> {
    let count =
        |cause: Cause| run.outcomes.iter().filter(|outcome| **outcome == Outcome::Failed(cause)).count();
    Cause::ALL.iter().map(|&cause| (cause, count(cause))).filter(|(_, count)| *count > 0).collect()
}

/// Free GPUs at the end that a typical request could not use, in per cent of all GPUs.
fn fragmented(run: &Run) -> f64 {
    run.curve.last().map_or(0.0, |point| point.fragmented)
}
