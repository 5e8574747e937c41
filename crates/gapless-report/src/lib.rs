//! The report on a run, for people and programs: findings are values, and each renderer is a module.
//!
//! [`Analysis`] has all that Gapless knows of a trace. [`Report`] is the part that is written down, and the JSON
//! contract. [`text`], [`json`] and the page of `gapless-page` show it, [`diff`] compares two, [`check`] compares one
//! with budgets, and [`explain`] has the text for each finding's code. [`markdown`] is for pull requests, and
//! [`headline`] for pages that show an answer. [`replay`] shows the memory that other allocators would have held,
//! [`advice`] settings that help, [`oom`] the cause of a failed request, and [`fit`] the memory that a model will
//! take. [`ranks`] puts the ranks of one run side by side.

pub mod advice;
pub mod analysis;
pub mod check;
pub mod diff;
pub mod explain;
pub mod finding;
pub mod findings;
pub mod fit;
pub mod headline;
pub mod markdown;
pub mod model;
pub mod oom;
pub mod ranks;
pub mod replay;
pub mod text;

mod assemble;
mod axes;
mod modules;
mod shell;

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
