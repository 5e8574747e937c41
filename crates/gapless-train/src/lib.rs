//! A training step in a budget of memory: which tensors that autograd saves stay on the device, and which are computed
//! again in backward.
//!
//! [`Step`] in: a recorded step, with every operator's cost and the memory in use around it. [`solve`] with a budget
//! gives a [`Plan`]; [`simulate`] judges any choice, and shares no formula with the solver. [`bound`] is below the time
//! of every plan of the family. Pure: no torch, no device, no clock except for the search's limit.

pub mod answer;
pub mod bound;
pub mod error;

pub mod simulate;
pub mod solve;
pub mod step;

mod classes;
mod rng;
mod text;

pub use answer::Answer;
pub use error::{Error, Result};
pub use simulate::{Choice, Mode, Outcome, simulate};
pub use solve::{Options, Plan, frontier, solve};
pub use step::{Op, Step, Value};
pub use text::told;
