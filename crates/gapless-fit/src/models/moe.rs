//! Expert layers as transformers runs them by default: tokens sorted by expert, one grouped product for all.

use super::parts::activate;
use crate::eager::tensor::Param;
use crate::eager::{Sim, Tensor};
use crate::model::{Activation, Decoder, DecoderStyle, Dtype, Moe};

/// A router and its experts.
pub(crate) struct Experts {
    router: Param,
    gate_up: Param,
    down: Param,
    hidden: u64,
    experts: u64,
    top_k: u64,
    inner: u64,
    activation: Activation,
    /// Qwen 3: the router's weights in the logits' type.
    narrow: bool,
}

impl Experts {
    pub(crate) fn new(sim: &Sim, d: &Decoder, moe: &Moe, dtype: Dtype) -> Experts {
        let router = sim.param(&[moe.experts, d.hidden], dtype);
        let gate_up = sim.param(&[moe.experts, 2 * moe.expert_intermediate, d.hidden], dtype);
        let down = sim.param(&[moe.experts, d.hidden, moe.expert_intermediate], dtype);
        Experts {
            router,
            gate_up,
            down,
            hidden: d.hidden,
            experts: moe.experts,
            top_k: moe.top_k,
            inner: moe.expert_intermediate,
            activation: d.activation,
            narrow: d.style == DecoderStyle::Qwen3Moe,
        }
    }

    pub(crate) fn forward(&self, sim: &Sim, x: &Tensor) -> Tensor {
        let (weights, indices) = {
            let logits = sim.linear(x, &self.router, None, self.experts);
            let probabilities = {
                let full = sim.to(&logits, Dtype::F32);
                sim.softmax(&full, Dtype::F32)
            };
            let (values, indices) = sim.topk(&probabilities, self.top_k, self.experts);
            (if self.narrow { sim.to(&values, logits.dtype) } else { sim.scale(&values) }, indices)
        };
        run_experts(
            sim,
            x,
            &weights,
            &indices,
            &self.gate_up,
            &self.down,
            self.hidden,
            self.inner,
            self.activation,
        )
    }
}

/// `grouped_mm_experts_forward`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn run_experts(
    sim: &Sim,
    x: &Tensor,
    weights: &Tensor,
    indices: &Tensor,
    gate_up: &Param,
    down: &Param,
    hidden: u64,
    inner: u64,
    activation: Activation,
) -> Tensor {
    let rows = indices.n;
    sim.begin("sort");
    let integers = || sim.alloc(rows, Dtype::I64);
    let (sorted, permutation) = (integers(), integers());
    sim.touch(8 * rows);
    let selected = {
        let token = integers();
        sim.index_rows(x, &token, hidden)
    };
    let sample = sim.index_rows(weights, &permutation, 1);
    let offsets = {
        let narrow = sim.alloc(rows, Dtype::I32);
        let counts = sim.alloc(1, Dtype::I32);
        drop((narrow, counts));
        sim.alloc(1, Dtype::I32)
    };
    let sentinel = sim.alloc(rows, Dtype::Bool);
    let selected = sim.masked_fill_(selected, &sentinel);
    let mut out = {
        let both = sim.grouped_mm(&selected, gate_up, rows, 2 * inner);
        sim.masked_fill(&both, &sentinel)
    };
    out = {
        let parts = sim.split(&out, &[rows * inner, rows * inner]);
        let gate = activate(sim, activation, &parts[0]);
        sim.mul(&gate, &parts[1])
    };
    out = sim.grouped_mm(&out, down, rows, hidden);
    out = sim.masked_fill(&out, &sentinel);
    let mut weighted = sim.mul_rows(&out, &sample);
    let inverse = integers();
    drop(integers());
    weighted = sim.index_rows(&weighted, &inverse, hidden);
    let sum = sim.sum_groups(&weighted, rows * hidden / x.n);
    let out_cast = sim.to(&sum, x.dtype);
    drop((sorted, permutation, offsets, inverse));
    out_cast
}
