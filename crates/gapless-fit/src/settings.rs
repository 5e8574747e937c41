//! How a model is trained: precision, optimizer, adapters, checkpointing. The simulation, the closed forms, the
//! search and the emitted files all use these four types, so a setting has one name everywhere.
//!
//! What a setting costs stands where it is counted: `formulas::states` has the bytes of precisions and optimizers,
//! `eager::optimizer` what an optimizer allocates, `eager::run` the types that a precision computes in.

/// How numbers are kept while training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    #[default]
    Fp32,
    /// Weights, gradients and states in bf16.
    Bf16,
    Fp16,
    /// fp32 weights under `torch.autocast`.
    AmpBf16,
    AmpFp16,
    /// 16-bit weights and gradients, fp32 master copies and states (ZeRO's mixed precision).
    Mixed,
    /// 16-bit weights, fp32 main gradients, fp32 master copies and states (Megatron).
    MixedMainGrad,
    /// 16-bit weights, fp32 states without a master copy.
    Bf16Fp32States,
}

impl Precision {
    pub const ALL: [Precision; 8] = [
        Precision::Fp32,
        Precision::Bf16,
        Precision::Fp16,
        Precision::AmpBf16,
        Precision::AmpFp16,
        Precision::Mixed,
        Precision::MixedMainGrad,
        Precision::Bf16Fp32States,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
            Precision::AmpBf16 => "amp-bf16",
            Precision::AmpFp16 => "amp-fp16",
            Precision::Mixed => "mixed",
            Precision::MixedMainGrad => "mixed-fp32-grad",
            Precision::Bf16Fp32States => "bf16-fp32-states",
        }
    }

    /// Whether `torch.autocast` chooses the type of each operator.
    #[must_use]
    pub fn is_autocast(self) -> bool {
        matches!(self, Precision::AmpBf16 | Precision::AmpFp16)
    }

    /// Whether weights, gradients and states all have one type, as plain PyTorch keeps them. The simulation follows
    /// only these: of the others it knows the blocks, and not the states.
    #[must_use]
    pub fn is_plain(self) -> bool {
        !matches!(self, Precision::Mixed | Precision::MixedMainGrad | Precision::Bf16Fp32States)
    }
}

/// What updates the weights: the optimizers of `torch.optim` as one gets them by default on CUDA (most work on lists
/// of tensors at once), and two from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Optimizer {
    /// torch's default on CUDA: `foreach`.
    #[default]
    AdamW,
    AdamWFused,
    AdamWForLoop,
    AmsGrad,
    /// Block-wise 8-bit states (bitsandbytes), blocks of 256, small tensors in 32 bits.
    AdamW8bit,
    Sgd,
    SgdMomentum,
    RmsProp,
    Adagrad,
    Adafactor,
    Lion,
    /// On the matrices of blocks; the rest (embedding and head too) is left to AdamW.
    Muon,
}

impl Optimizer {
    pub const ALL: [Optimizer; 12] = [
        Optimizer::AdamW,
        Optimizer::AdamWFused,
        Optimizer::AdamWForLoop,
        Optimizer::AmsGrad,
        Optimizer::AdamW8bit,
        Optimizer::Sgd,
        Optimizer::SgdMomentum,
        Optimizer::RmsProp,
        Optimizer::Adagrad,
        Optimizer::Adafactor,
        Optimizer::Lion,
        Optimizer::Muon,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Optimizer::AdamW => "adamw",
            Optimizer::AdamWFused => "adamw-fused",
            Optimizer::AdamWForLoop => "adamw-forloop",
            Optimizer::AmsGrad => "amsgrad",
            Optimizer::AdamW8bit => "adamw8bit",
            Optimizer::Sgd => "sgd",
            Optimizer::SgdMomentum => "sgd-momentum",
            Optimizer::RmsProp => "rmsprop",
            Optimizer::Adagrad => "adagrad",
            Optimizer::Adafactor => "adafactor",
            Optimizer::Lion => "lion",
            Optimizer::Muon => "muon",
        }
    }
}

/// Low-rank adapters, as PEFT adds them: the model itself is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lora {
    pub rank: u64,
    /// The search counts adapters on all matrices, whatever this says: its answer is then the larger one.
    pub targets: LoraTargets,
}

/// Which linear layers of blocks get an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LoraTargets {
    /// Queries and values: PEFT's choice where nothing is said.
    #[default]
    QueryValue,
    /// All (`all-linear`).
    All,
}

/// What runs again in the backward pass instead of being kept. Which blocks of one run do is
/// [`crate::eager::Recomputed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Checkpointing {
    #[default]
    None,
    /// The attention core of every block.
    Selective,
    /// Every block.
    Full,
    /// As little as fits: block by block.
    Optimal,
}

impl Checkpointing {
    /// As the command line and the JSON contract write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Checkpointing::None => "none",
            Checkpointing::Selective => "selective",
            Checkpointing::Full => "full",
            Checkpointing::Optimal => "auto",
        }
    }
}

/// Who serves. `formulas::engine` has what each takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    Vllm,
    Sglang,
    /// `generate` of transformers: one batch, a cache that grows, logits of the last token alone.
    Transformers,
}

impl Engine {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
            Engine::Transformers => "transformers",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Optimizer, Precision};
    use std::collections::BTreeSet;

    #[test]
    fn every_setting_has_a_name_of_its_own() {
        let precisions: BTreeSet<_> = Precision::ALL.iter().map(|p| p.name()).collect();
        let optimizers: BTreeSet<_> = Optimizer::ALL.iter().map(|o| o.name()).collect();
        assert_eq!((precisions.len(), optimizers.len()), (Precision::ALL.len(), Optimizer::ALL.len()));
    }

    #[test]
    fn what_plain_pytorch_cannot_keep_is_not_simulated() {
        let plain: Vec<_> = Precision::ALL.iter().filter(|p| p.is_plain()).map(|p| p.name()).collect();
        assert_eq!(plain, ["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]);
    }
}
