//! Bytes of weights, gradients, master copies and optimizer states, and the temporaries of the optimizer's step.

use super::{Term, Unit};
use crate::settings::{Optimizer, Precision};

impl Precision {
    /// Bytes of a weight, of a gradient, of a master copy, of one optimizer state, of an activation.
    #[must_use]
    pub fn bytes(self) -> Widths {
        let (weight, gradient, master, state, activation) = match self {
            Precision::Fp32 => (4, 4, 0, 4, 4),
            Precision::Bf16 | Precision::Fp16 => (2, 2, 0, 2, 2),
            Precision::AmpBf16 | Precision::AmpFp16 => (4, 4, 0, 4, 2),
            Precision::Mixed => (2, 2, 4, 4, 2),
            Precision::MixedMainGrad => (2, 4, 4, 4, 2),
            Precision::Bf16Fp32States => (2, 2, 0, 4, 2),
        };
        Widths { weight, gradient, master, state, activation }
    }

    /// Bytes of an element of the residual stream: under autocast sums with fp32 weights' outputs stay fp32.
    #[must_use]
    pub fn residual(self) -> u64 {
        if self == Precision::Fp32 || self.is_autocast() { 4 } else { 2 }
    }
}

/// Bytes an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    pub weight: u64,
    pub gradient: u64,
    pub master: u64,
    pub state: u64,
    pub activation: u64,
}

impl Optimizer {
    /// Bytes of state for a parameter. Adafactor's depends on shapes (`adafactor`); the value here holds for large
    /// square matrices.
    #[must_use]
    pub fn state_bytes(self, state: u64) -> f64 {
        let state = state as f64;
        match self {
            Optimizer::AdamW | Optimizer::AdamWFused | Optimizer::AdamWForLoop => 2.0 * state,
            Optimizer::AmsGrad => 3.0 * state,
            // Two bytes, and two fp32 scales a block of 256.
            Optimizer::AdamW8bit => 2.0 + 8.0 / 256.0,
            // Paged states are on the host, or on the card as long as there is room.
            Optimizer::PagedAdamW => 0.0,
            Optimizer::PagedAdamW8bit => 8.0 / 256.0,
            Optimizer::Sgd | Optimizer::Adafactor => 0.0,
            Optimizer::SgdMomentum
            | Optimizer::RmsProp
            | Optimizer::Adagrad
            | Optimizer::Lion
            | Optimizer::Muon => state,
        }
    }

    /// Bytes of the step at its worst beyond weights, gradients and states: a parameter, and an element of the largest
    /// parameter.
    #[must_use]
    pub fn transient(self, state: u64) -> (f64, f64) {
        let state = state as f64;
        match self {
            Optimizer::AdamW | Optimizer::AmsGrad | Optimizer::RmsProp | Optimizer::Adafactor => (state, 0.0),
            Optimizer::Adagrad => (2.0 * state, 0.0),
            Optimizer::AdamWForLoop => (0.0, 3.0 * state),
            Optimizer::AdamWFused
            | Optimizer::AdamW8bit
            | Optimizer::PagedAdamW
            | Optimizer::PagedAdamW8bit
            | Optimizer::Sgd
            | Optimizer::SgdMomentum => (0.0, 0.0),
            Optimizer::Lion => (0.0, state),
            // Three fp32 copies of the largest matrix; in bf16 five of two bytes.
            Optimizer::Muon => (0.0, if state >= 4.0 { 12.0 } else { 10.0 }),
        }
    }
}

/// Weights, gradients, master copies and states of `parameters`, before sharding.
#[must_use]
pub fn model_states(parameters: u64, precision: Precision, optimizer: Optimizer) -> Term {
    let widths = precision.bytes();
    let per = (widths.weight + widths.gradient + widths.master) as f64 + optimizer.state_bytes(widths.state);
    Term::bytes(
        "model states",
        per * parameters as f64,
        "(w + g + master + states) P",
        &[
            ("w", widths.weight as f64),
            ("g", widths.gradient as f64),
            ("master", widths.master as f64),
            ("states", optimizer.state_bytes(widths.state)),
            ("P", parameters as f64),
        ],
        "Rajbhandari et al. 2020 (ZeRO), section 3; torch.optim's state",
    )
}

/// Adafactor's factored states of an r x c matrix: a row and a column of fp32.
#[must_use]
pub fn adafactor(rows: u64, columns: u64) -> Term {
    Term::bytes(
        "Adafactor state",
        4.0 * (rows + columns) as f64,
        "4 (r + c)",
        &[("r", rows as f64), ("c", columns as f64)],
        "torch.optim.Adafactor, measured",
    )
}

/// The optimizer step's own memory.
#[must_use]
pub fn step_transient(parameters: u64, largest: u64, precision: Precision, optimizer: Optimizer) -> Term {
    let (all, one) = optimizer.transient(precision.bytes().state);
    Term::bytes(
        "optimizer step",
        all * parameters as f64 + one * largest as f64,
        "x P + y P_largest",
        &[("x", all), ("P", parameters as f64), ("y", one), ("P_largest", largest as f64)],
        "torch.optim, measured with live-storage tracking",
    )
}

/// Parameters of low-rank adapters.
#[must_use]
pub fn adapters(trained: u64, rank: u64) -> Term {
    Term::bytes(
        "trained parameters",
        trained as f64,
        "A = r sum(inputs + outputs) over the adapted layers, and modules that are trained whole",
        &[("r", rank as f64)],
        "Hu et al. 2021 (LoRA); peft's LoraConfig",
    )
    .with_unit(Unit::Parameters)
}

/// Low-rank adapters on matrices of (inputs, outputs).
#[must_use]
pub fn lora(rank: u64, matrices: &[(u64, u64)]) -> u64 {
    matrices.iter().map(|&(inputs, outputs)| rank * (inputs + outputs)).sum()
}
