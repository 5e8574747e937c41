//! The peak of one training step on one device, from the closed forms: the fast bound beside the operator-by-operator
//! step.

use super::activations;
use super::head::{self, Loss};
use super::parameters;
use crate::model::Decoder;
use crate::settings::{Optimizer, Precision};

/// A step's three candidates for the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPeak {
    /// When the loss is computed and its gradient begins.
    pub loss: u64,
    /// While the backward of this layer runs.
    pub backward: u64,
    pub backward_layer: u64,
    pub optimizer: u64,
}

impl StepPeak {
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.loss.max(self.backward).max(self.optimizer)
    }
}

/// The settings of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub batch: u64,
    pub length: u64,
    pub precision: Precision,
    pub optimizer: Optimizer,
    /// True if every block is checkpointed.
    pub checkpointing: bool,
    pub accumulation: bool,
    /// True if the caller holds the logits through backward; `model(...).loss` does not.
    pub logits_kept: bool,
}

/// `loss`: W + O + sum A + T (8 h + 4) + 14 V T (12 if the logits are not kept); `backward` of layer l: W + O +
/// sum_{j<=l} A_j + sum_{j>l} G_j + G_head + T (2 h + 6 f) (+ 2 V T); `optimizer`: W + O + G + transient. With
/// checkpointing the sum of A_j is 2 h T l + A_l; with accumulation G is there from the beginning.
#[must_use]
pub fn peak(decoder: &Decoder, step: &Step) -> StepPeak {
    let widths = step.precision.bytes();
    let tokens = step.batch * step.length;
    let t = tokens as f64;
    let parameters = parameters::decoder(decoder);
    let (first, last) = parameters::ends(decoder);
    let weights = (parameters * widths.weight) as f64;
    let states = parameters as f64 * (widths.master as f64 + step.optimizer.state_bytes(widths.state));
    let gradients = (parameters * widths.gradient) as f64;
    let base = weights + states + if step.accumulation { gradients } else { 0.0 };
    let x = widths.activation as f64;
    let saved: Vec<f64> = (0..decoder.layers)
        .map(|layer| {
            let kept = activations::eager(decoder, step.precision, layer);
            kept.total(step.length) * t + kept.once
        })
        .collect();
    let input = step.precision.residual() as f64 * decoder.hidden as f64 * t;
    let retained = |layer: usize| if step.checkpointing { input } else { saved[layer] };
    let all: f64 = (0..saved.len()).map(retained).sum();
    let logits = if step.logits_kept { decoder.vocab as f64 * t } else { 0.0 };
    let held = if step.logits_kept { Loss::HuggingFace } else { Loss::Released };
    let head = head::peak(tokens, decoder.vocab, 1, step.precision, held).value as f64
        + head::autocast_copy(decoder.vocab, decoder.hidden, 1, step.precision).value as f64;
    let loss = base + all + t * (8.0 * decoder.hidden as f64 + 4.0) + head;
    let gradient = |count: u64| if step.accumulation { 0.0 } else { (count * widths.gradient) as f64 };
    let head_gradient = gradient(if decoder.tied { first.sharded } else { last.total() });
    let working = t * x * (decoder.hidden as f64 + 3.0 * decoder.intermediate as f64) + x * logits;
    let (mut before, mut later) = (all, head_gradient);
    let mut backward = (0.0, 0);
    for layer in (0..saved.len()).rev() {
        before -= retained(layer);
        let own = if step.checkpointing { retained(layer) + saved[layer] } else { saved[layer] };
        let now = base + before + own + later + working;
        if now > backward.0 {
            backward = (now, layer as u64);
        }
        later += gradient(parameters::layer(decoder, layer as u64).total());
    }
    let (per, largest) = step.optimizer.transient(widths.state);
    let transient = per * parameters as f64 + largest * first.sharded as f64;
    let optimizer = weights + states + gradients + transient;
    StepPeak {
        loss: loss as u64,
        backward: backward.0 as u64,
        backward_layer: backward.1,
        optimizer: optimizer as u64,
    }
}
