//! The tests of this folder in one program: each of them alone would compile the generic pool once more.

mod behind;
mod budgets;
#[cfg(not(feature = "shuttle"))]
mod crest;
mod host;
mod ladder;
mod loans;
mod machine;
mod private;
mod run_ahead;
mod scarcity;
mod sleeping;
mod steps;
mod supplied;
mod support;
#[cfg(not(feature = "shuttle"))]
mod threads;
mod views;
