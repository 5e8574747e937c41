//! A step as PyTorch's eager execution allocates and frees, operator by operator, without running anything.
//!
//! `sim` is the machine (allocations, tape, backward pass), `ops` the allocations of operators and the tensors that
//! they keep, `sim::checkpoint` recomputation, `optimizer` the step of each optimizer. The modeling code in `models` is
//! written against it as the Python code is against torch. The result is a log ([`log::Log`]), which `replay` turns
//! into figures and [`crate::timeline`] into a trace.

pub mod log;
pub mod ops;
pub mod sim;
pub mod tensor;

mod ledger;
mod optimizer;
pub(crate) mod replay;
mod run;
mod simulate;

pub use ledger::Kernel;
pub use log::{Kind, Layer, Log, Phase, Scope};
pub use replay::{Figures, OUTSIDE_TORCH, PhaseFigures};
pub use run::{Mode, Recomputed, Run};
pub use sim::Sim;
pub(crate) use simulate::simulate_telling;
pub use simulate::{Steps, simulate};
pub use tensor::Tensor;
