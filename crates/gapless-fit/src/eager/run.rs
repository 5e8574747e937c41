//! A whole run: its settings, the steps one after the other, and their result.

use super::ledger::Ledger;
use super::log::{Kind, Log, Phase};
use super::sim::Sim;
use super::tensor::Tensor;
use crate::model::{Architecture, Attention, Dtype};
use crate::models::{self, BuildError};
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

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Steps {
    pub log: Log,
    /// Events before the first that belongs to the model: libraries' workspaces.
    pub base: u32,
    pub parameters: u64,
    /// Those of them that take gradients.
    pub trained: u64,
}

/// cuBLAS keeps 32 MiB for each thread that calls it on Hopper, cuBLASLt 1 MiB; and a flag somewhere.
const WORKSPACES: [u64; 5] = [32 << 20, 1 << 20, 32 << 20, 1 << 20, 512];

/// Runs `run` on `architecture`.
///
/// # Errors
/// When the architecture cannot be followed, or its numbers do not fit together.
pub fn simulate(architecture: &Architecture, run: &Run) -> Result<Steps, BuildError> {
    simulate_telling(architecture, run, &mut |_| {})
}

/// The same; `tell` sees the log whenever a phase has ended, the last time at its end. The caller can replay it
/// meanwhile.
pub(crate) fn simulate_telling(
    architecture: &Architecture,
    run: &Run,
    tell: &mut dyn FnMut(&Log),
) -> Result<Steps, BuildError> {
    let sim = Sim::new();
    let mut mark = |step, phase| {
        sim.mark(step, phase);
        tell(&sim.log.borrow());
    };
    if run.note_ops {
        sim.log.borrow_mut().ops = Some(Vec::new());
    }
    sim.lora.set(run.lora);
    let frozen = run.lora.is_some() || run.mode == Mode::Infer;
    if frozen && (run.lora.is_some() || run.stored.is_some()) {
        let (width, trains) = (run.precision.weights().bytes(), run.mode == Mode::Train);
        let ledger = Ledger::new(architecture, run.lora, run.stored.as_deref(), width, trains);
        *sim.ledger.borrow_mut() = Some(ledger);
    }
    sim.begin("workspace");
    let workspaces: Vec<Tensor> =
        WORKSPACES.iter().map(|&n| sim.alloc_as(n, Dtype::U8, Kind::Workspace)).collect();
    let base = sim.log.borrow().events.len() as u32;
    let network = models::build(&sim, architecture, run)?;
    debug_assert_eq!(sim.ledger.borrow().as_ref().map_or(0, Ledger::left), 0, "every layer was made");
    let parameters = sim.params.borrow().iter().map(|(p, _)| p.tensor.n).sum();
    let takes = |p: &&(super::tensor::Param, Vec<u64>)| p.0.tensor.edge.is_some();
    let trained = sim.params.borrow().iter().filter(takes).map(|(p, _)| p.tensor.n).sum();
    let end;
    match run.mode {
        Mode::Train => {
            let mut states = run.optimizer.create(&sim);
            let mut loss: Option<Tensor> = None;
            let mut x: Option<Tensor> = None;
            for step in 0..run.steps {
                for _ in 0..run.accumulation.max(1) {
                    sim.phase(Phase::Forward);
                    // As a loop in Python does: the last batch and loss go when there are new ones.
                    let batch = x.insert(network.batch(&sim, run));
                    sim.autocast(run.precision.autocast());
                    let new = network.clone().loss(&sim, run, batch);
                    sim.autocast(None);
                    loss = Some(new);
                    mark(step, Phase::Forward);
                    sim.phase(Phase::Backward);
                    if let Some(loss) = &loss {
                        sim.backward(loss);
                    }
                    mark(step, Phase::Backward);
                }
                run.optimizer.step(&sim, &mut states);
                mark(step, Phase::Step);
                sim.phase(Phase::Zero);
                let count = sim.params.borrow().len() as u32;
                for id in 0..count {
                    drop(sim.take_grad(id));
                }
                mark(step, Phase::Zero);
            }
            end = sim.log.borrow().events.len();
            drop((loss, x, states));
        }
        Mode::Infer => {
            sim.grad_enabled.set(false);
            sim.begin("cache");
            let beyond = sim.alloc_as(run.more_cache, Dtype::U8, Kind::KvCache);
            for step in 0..run.steps.min(2) {
                sim.phase(Phase::Forward);
                let batch = network.batch(&sim, run);
                sim.autocast(run.precision.autocast());
                let held = network.clone().infer(&sim, run, &batch);
                sim.autocast(None);
                mark(step, Phase::Forward);
                drop((held, batch));
                mark(step, Phase::Zero);
            }
            end = sim.log.borrow().events.len();
            drop(beyond);
        }
    }
    drop(network);
    drop(workspaces);
    let mut log = sim.log.replace(Log::empty());
    // Frees at the end of the process are no part of the run.
    log.events.truncate(end);
    Ok(Steps { log, base, parameters, trained })
}
