//! The settings of training: precision, optimizer, adapters, checkpointing. The simulation, the closed forms, the
//! search and the emitted files all use these four types, so a setting has one name everywhere.
//!
//! The cost of a setting stands where it is counted: `formulas::states` has the bytes of precisions and optimizers,
//! `eager::optimizer` the allocations of an optimizer, `eager::run` the types that a precision computes in.

use crate::model::{Architecture, DecoderStyle, Role};

/// The types of numbers while training.
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

    /// True if `torch.autocast` chooses the type of each operator.
    #[must_use]
    pub fn is_autocast(self) -> bool {
        matches!(self, Precision::AmpBf16 | Precision::AmpFp16)
    }

    /// True if weights, gradients and states all have one type, as plain PyTorch keeps them. The simulation follows
    /// only these: of the others it knows the blocks, and not the states.
    #[must_use]
    pub fn is_plain(self) -> bool {
        !matches!(self, Precision::Mixed | Precision::MixedMainGrad | Precision::Bf16Fp32States)
    }
}

/// The optimizer: those of `torch.optim` as one gets them by default on CUDA (most work on lists of tensors at once),
/// and two from elsewhere.
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
    /// bitsandbytes' paged AdamW: its large states are in memory that the driver moves between card and host.
    PagedAdamW,
    PagedAdamW8bit,
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
    pub const ALL: [Optimizer; 14] = [
        Optimizer::AdamW,
        Optimizer::AdamWFused,
        Optimizer::AdamWForLoop,
        Optimizer::AmsGrad,
        Optimizer::AdamW8bit,
        Optimizer::PagedAdamW,
        Optimizer::PagedAdamW8bit,
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
            Optimizer::PagedAdamW => "paged-adamw",
            Optimizer::PagedAdamW8bit => "paged-adamw8bit",
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

/// Low-rank adapters, as PEFT adds them: the model itself is frozen. rsLoRA takes the same bytes: it only scales by
/// another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lora {
    pub rank: u64,
    pub targets: LoraTargets,
    /// Adapters in the type of the weights. PEFT keeps those over 16-bit weights in 32 bits unless told
    /// (`autocast_adapter_dtype`).
    pub narrow: bool,
    /// DoRA: the norm of each adapted weight is learned apart.
    pub dora: bool,
    /// True if inputs of adapters are dropped out (`lora_dropout` above 0).
    pub dropout: bool,
    /// Modules that are trained whole, in a copy beside the frozen one (`modules_to_save`).
    pub save_head: bool,
    pub save_embedding: bool,
}

/// The linear layers that get an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LoraTargets {
    /// PEFT's table by type of model, its default: queries and values mostly.
    #[default]
    QueryValue,
    /// All (`all-linear`) but the head.
    All,
    /// Those of these names.
    Only(Names),
}

/// Names of linear layers, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names(u64);

/// Last parts of the names of linear layers in the simulated families.
const LAYERS: [&str; 45] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "c_attn",
    "c_proj",
    "c_fc",
    "query_key_value",
    "dense",
    "dense_h_to_4h",
    "dense_4h_to_h",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
    "fc1",
    "fc2",
    "out_proj",
    "query",
    "key",
    "value",
    "q",
    "k",
    "v",
    "o",
    "wi",
    "wi_0",
    "wi_1",
    "wo",
    "project_in",
    "project_out",
    "in_proj",
    "0",
    "3",
    "linear_1",
    "linear_2",
    "lm_head",
    "proj",
    "fc_in",
    "fc_out",
];

impl Names {
    /// A name that is known.
    #[must_use]
    pub fn of(name: &str) -> Option<Names> {
        LAYERS.iter().position(|known| *known == name).map(|at| Names(1 << at))
    }

    #[must_use]
    pub fn with(self, other: Names) -> Names {
        Names(self.0 | other.0)
    }

    #[must_use]
    pub fn has(self, name: &str) -> bool {
        Names::of(name).is_some_and(|one| self.0 & one.0 != 0)
    }

    /// In the order of the table.
    pub fn list(self) -> impl Iterator<Item = &'static str> {
        LAYERS.into_iter().enumerate().filter(move |(at, _)| self.0 >> at & 1 == 1).map(|(_, name)| name)
    }
}

impl LoraTargets {
    /// The names that PEFT's table has for an architecture (0.21); for a type that it does not list, those that it has
    /// for most others.
    #[must_use]
    pub fn usual(architecture: &Architecture) -> &'static [&'static str] {
        match architecture {
            Architecture::Decoder(d) => match d.style {
                DecoderStyle::Gpt2 => &["c_attn"],
                DecoderStyle::GptNeox => &["query_key_value"],
                DecoderStyle::Phi3 => &["qkv_proj"],
                DecoderStyle::DeepseekV2 | DecoderStyle::DeepseekV3 => &["q_proj", "q_b_proj", "kv_b_proj"],
                _ => &["q_proj", "v_proj"],
            },
            Architecture::Encoder(_) => &["query", "value"],
            Architecture::EncoderDecoder(_) => &["q", "v"],
            _ => &["query", "value", "in_proj"],
        }
    }

    /// True if a linear layer whose name ends so gets an adapter.
    #[must_use]
    pub fn takes(self, architecture: &Architecture, last: &str) -> bool {
        match self {
            LoraTargets::All => true,
            LoraTargets::QueryValue => LoraTargets::usual(architecture).contains(&last),
            LoraTargets::Only(names) => names.has(last),
        }
    }
}

impl Lora {
    /// Of that rank on all linear layers, all else as PEFT's defaults.
    #[must_use]
    pub fn all(rank: u64) -> Lora {
        Lora { rank, targets: LoraTargets::All, ..Lora::default() }
    }

    /// True if a parameter of that role is trained whole.
    #[must_use]
    pub fn saves(self, role: Role) -> bool {
        self.save_head && role == Role::Head || self.save_embedding && role == Role::Embedding
    }
}

/// The part of the model that runs again in the backward pass instead of being kept. [`crate::eager::Recomputed`] names
/// the blocks of one run.
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

/// The server. `formulas::engine` has the memory of each.
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
