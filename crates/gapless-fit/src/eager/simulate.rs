//! A whole run: the steps one after the other, and their result.

use super::ledger::Ledger;
use super::log::{Kind, Log, Phase};
use super::run::{Mode, Run};
use super::sim::Sim;
use super::tensor::Tensor;
use crate::model::{Architecture, Dtype};
use crate::models::{self, BuildError};

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
