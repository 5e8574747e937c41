//! Compares a report with budgets: the gate for CI. [`check`] gives a [`Verdict`], a value; each format has its module.

mod gitlab;
mod issues;
mod markdown;
mod render;
mod sarif;
mod shown;
mod subject;
mod verdict;
mod words;

pub use gitlab::gitlab;
pub use markdown::markdown;
pub use render::{github, json, junit, text};
pub use sarif::sarif;
pub(crate) use subject::Noticed;
pub use subject::Subject;
pub use verdict::{Budgets, CheckError, Row, SCHEMA, Unit, Unknown, Verdict, check};
pub(crate) use verdict::{Checked, Found};
pub use words::unknown_sentence;
