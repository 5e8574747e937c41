//! What a run's memory looks like to people and programs: findings as values, renderers as siblings.
//!
//! [`Analysis`] is everything that is known of a trace; [`Report`] is the part of it that is written down, and the
//! JSON contract. From there: [`text`], [`json`], [`html`] show it, [`diff`] compares two, [`check`] holds it against
//! budgets, [`explain`] is the page behind each finding's code. Beside the report: [`replay`] shows what other
//! allocators would have made of the run, [`advice`] what to set, [`oom`] why a request failed, [`fit`] what a model
//! takes before it runs.

pub mod advice;
pub mod analysis;
pub mod check;
pub mod diff;
pub mod explain;
pub mod finding;
pub mod findings;
pub mod fit;
pub mod html;
pub mod model;
pub mod oom;
pub mod replay;
pub mod text;

mod assemble;

pub use analysis::{Analysis, DeviceAnalysis};
pub use finding::{Finding, Severity};
pub use model::Report;

/// The report as JSON: schema `gapless.report/1`.
///
/// # Errors
/// Never for a report; serde's signature.
pub fn json(report: &Report) -> serde_json::Result<String> {
    serde_json::to_string_pretty(report).map(|text| text + "\n")
}
