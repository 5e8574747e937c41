//! The cheapest configuration that fits: every point of a stated space, with admissible pruning, so that "nothing
//! cheaper fits" is proven.
//!
//! `profile` holds what is known of a model a block, from the closed forms or from a simulated step; `space` says which
//! dimensions are free and refuses contradictions; `memory`, `holding` and `cost` price one point; `train` and `serve`
//! walk through all of them. A cost is an estimate in seconds, from terms that can be printed; memory decides what
//! fits, and errs to the safe side if it is not exact.

pub mod cost;
pub mod holding;
pub mod memory;
mod pick;
pub mod profile;
pub mod serve;
pub mod space;
pub mod train;
pub mod why;

/// An error in a question.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SearchError {
    #[error("{what} is 0: give at least 1")]
    Zero { what: &'static str },
    #[error("{what} {degree} does not divide {of} {count}: {hint}")]
    DoesNotDivide { what: &'static str, degree: u64, of: &'static str, count: u64, hint: String },
    #[error("{first} and {second} contradict each other: {hint}")]
    Contradiction { first: String, second: String, hint: String },
    #[error("{what} has nothing to choose from: name at least one value")]
    Empty { what: &'static str },
}
