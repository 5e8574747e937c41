//! The settings of a run that a user gives. Each may be left out: [`super::Question::read`] then chooses it.

use crate::emit::Target;
use crate::formulas::sharding::Sharding;
use crate::formulas::weights::Format;
use crate::model::Attention;
use crate::search::space::Offload;
use crate::settings::{Checkpointing, Engine, Lora, Optimizer, Precision};
use gapless_trace::Bytes;

/// The run and its hardware, as far as they are given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// One forward pass with a key-value cache, instead of a training step.
    pub infer: bool,
    /// Sequences, or pictures, of one forward pass on one GPU.
    pub batch: Option<u64>,
    /// Tokens of a sequence.
    pub seq: Option<u64>,
    /// Pixels a side of a picture.
    pub image: Option<u64>,
    pub precision: Option<Precision>,
    /// Weights in 8 bits, when serving, with products in bf16: the precision called fp8.
    pub fp8: bool,
    pub optimizer: Option<Optimizer>,
    pub checkpointing: Option<Checkpointing>,
    pub attention: Option<Attention>,
    pub adapters: Option<Adapters>,
    /// Forward and backward passes before each step of the optimizer.
    pub grad_accum: Option<u64>,
    /// Tokens that the key-value cache holds, all sequences together.
    pub kv_tokens: Option<u64>,
    /// Format of the weights, when serving.
    pub quantize: Option<Format>,
    /// Half of the weights pruned in the pattern 2:4, when serving.
    pub sparse: bool,
    pub gpu: Option<String>,
    /// Memory of the device, instead of the named one's.
    pub memory: Option<Bytes>,
    pub gpus: Option<u64>,
    pub nodes: Option<u64>,
    /// Memory of the host for each GPU, for offloading.
    pub host_memory: Option<Bytes>,
    pub degrees: Degrees,
    /// The tensors that data-parallel ranks share out.
    pub zero: Option<Sharding>,
    pub offload: Option<Offload>,
    /// Weights stay on the host, and a budget of them is on the card, when serving.
    pub stream: Option<StreamBudget>,
    /// The serving engine, when serving.
    pub engine: Option<Engine>,
    /// Share of the device that the engine may take.
    pub utilization: Option<f64>,
    /// The program that shall run the plan. Settings that were not given are chosen so that it can keep them.
    pub emit: Option<Emit>,
}

/// The budget for weights on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamBudget {
    /// As much as the card has room for.
    Largest,
    Given(Bytes),
}

/// The program for which files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    Train(Target),
    /// vLLM.
    Serve,
}

/// Adapters, and the format of the frozen weights below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapters {
    pub lora: Lora,
    pub base: Format,
}

/// The numbers of GPUs over which each dimension of the work is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Degrees {
    pub data: Option<u64>,
    pub tensor: Option<u64>,
    pub pipeline: Option<u64>,
    pub context: Option<u64>,
    pub expert: Option<u64>,
}
