//! The memory that a model will take, for programs and for people: the contract `gapless.fit/1`, its text, the
//! comparison of two answers, and the terms behind every number. Nothing is decided here: all figures are those of
//! `gapless_fit::Answer`.

mod compare;
mod headline;
mod model;
mod paint;
mod streamed;
mod text;
mod why;

pub use compare::{Comparison, Side};
pub use headline::headline;
pub use model::Fit;
pub use text::text;

use gapless_fit::ask::{Answer, Question};
use gapless_fit::formulas::Term;
use serde::Serialize;

pub const SCHEMA: &str = "gapless.fit/1";
pub const COMPARE_SCHEMA: &str = "gapless.fit-compare/1";

/// An answer as JSON: schema `gapless.fit/1`.
///
/// # Errors
/// Never for an answer; serde's signature.
pub fn json(q: &Question, answer: &Answer, terms: Option<&[Term]>) -> serde_json::Result<String> {
    sorted(&Fit::of(q, answer, terms))
}

/// JSON whose keys are in alphabetical order, which keeps the order of members stable.
fn sorted(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&serde_json::to_value(value)?)? + "\n")
}
