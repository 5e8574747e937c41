//! The settings of a run.

use crate::model::{Attention, Dtype};
use crate::settings::{Lora, Optimizer, Precision};
use crate::stored::Stored;
use std::sync::Arc;

/// Training or serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    #[default]
    Train,
    /// One forward pass under `no_grad`, with a KV cache if the model has one.
    Infer,
}

impl Precision {
    /// Of weights, gradients and states. Master copies and wider states are not simulated: `is_plain` tells if there
    /// are some.
    #[must_use]
    pub fn weights(self) -> Dtype {
        match self {
            Precision::Fp32 | Precision::AmpBf16 | Precision::AmpFp16 => Dtype::F32,
            Precision::Bf16 | Precision::Mixed | Precision::MixedMainGrad | Precision::Bf16Fp32States => {
                Dtype::Bf16
            }
            Precision::Fp16 => Dtype::F16,
        }
    }

    /// The type that autocast computes in.
    #[must_use]
    pub fn autocast(self) -> Option<Dtype> {
        match self {
            Precision::AmpBf16 => Some(Dtype::Bf16),
            Precision::AmpFp16 => Some(Dtype::F16),
            _ => None,
        }
    }
}

/// Which blocks of a run are run again in its backward pass, as [`crate::settings::Checkpointing`] asks.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Recomputed {
    #[default]
    None,
    All,
    /// Block by block, in order; those beyond its end are not.
    Blocks(Vec<bool>),
}

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub mode: Mode,
    pub batch: u64,
    /// Tokens, or pixels a side.
    pub length: u64,
    pub precision: Precision,
    pub optimizer: Optimizer,
    pub recomputed: Recomputed,
    /// `None` for the model's own.
    pub attention: Option<Attention>,
    pub lora: Option<Lora>,
    /// Format of weights that are not trained; `None` for the run's own type.
    pub stored: Option<Arc<Stored>>,
    /// Bytes of a key-value cache beyond that of the pass itself.
    pub more_cache: u64,
    /// Forward and backward passes before each step of the optimizer.
    pub accumulation: u64,
    pub steps: u32,
    /// Serving: true if the head sees the last token of each sequence alone, as `generate` has it.
    pub last_logits: bool,
    /// True to note the place of each operator's beginning.
    pub note_ops: bool,
}

impl Default for Run {
    fn default() -> Run {
        Run {
            mode: Mode::Train,
            batch: 1,
            length: 1,
            precision: Precision::Fp32,
            optimizer: Optimizer::AdamW,
            recomputed: Recomputed::None,
            attention: None,
            lora: None,
            stored: None,
            more_cache: 0,
            accumulation: 1,
            steps: 3,
            last_logits: false,
            note_ops: false,
        }
    }
}

impl Run {
    /// True if block `at` is run again.
    #[must_use]
    pub fn checkpoints(&self, at: usize) -> bool {
        match &self.recomputed {
            Recomputed::None => false,
            Recomputed::All => true,
            Recomputed::Blocks(blocks) => blocks.get(at).copied().unwrap_or(false),
        }
    }

    /// The attention that is used by a model whose own is `own`.
    #[must_use]
    pub fn attention(&self, own: Attention) -> Attention {
        self.attention.unwrap_or(own)
    }
}
