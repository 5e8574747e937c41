//! The states that an optimizer keeps for each parameter, and the temporaries of its step.

use super::log::{Kind, Phase, Scope};
use super::ops::reduce::staging;
use super::sim::Sim;
use super::tensor::{Param, Tensor};
use crate::model::Dtype;
use crate::settings::Optimizer;

/// Elements from which bitsandbytes puts a state into paged memory, which torch's allocator does not see.
const PAGED_FROM: u64 = 100_000;

/// States of all parameters, by optimizer.
#[derive(Debug, Default)]
pub(crate) struct States {
    kept: Vec<Tensor>,
    ready: bool,
}

impl Optimizer {
    /// Allocates the states of the constructor.
    pub(crate) fn create(self, sim: &Sim) -> States {
        let mut states = States::default();
        if self == Optimizer::Adagrad {
            self.first(sim, &mut states);
        }
        states
    }

    /// One step over all gradients.
    pub(crate) fn step(self, sim: &Sim, states: &mut States) {
        sim.phase(Phase::Step);
        sim.scope(Scope::Optimizer);
        if !states.ready {
            self.first(sim, states);
        }
        sim.begin("step");
        match self {
            Optimizer::AdamW | Optimizer::AmsGrad | Optimizer::RmsProp => drop(all(sim, |_, _| true)),
            Optimizer::Adagrad => {
                let root = all(sim, |_, _| true);
                let update = all(sim, |_, _| true);
                drop((root, update));
            }
            Optimizer::AdamWFused
            | Optimizer::Sgd
            | Optimizer::SgdMomentum
            | Optimizer::AdamW8bit
            | Optimizer::PagedAdamW
            | Optimizer::PagedAdamW8bit => {}
            Optimizer::AdamWForLoop => {
                for (n, dtype) in trained(sim) {
                    // The root of the second moment, the denominator, and their quotient.
                    let temporaries = [(); 3].map(|()| sim.alloc_as(n, dtype, Kind::StepTemporary));
                    drop(temporaries);
                }
            }
            Optimizer::Adafactor => adafactor(sim),
            Optimizer::Lion => {
                for (n, dtype) in trained(sim) {
                    drop(sim.alloc_as(n, dtype, Kind::StepTemporary));
                }
            }
            Optimizer::Muon => {
                muon(sim);
                drop(all(sim, |param, shape| !is_inner_matrix(sim, param, shape)));
            }
        }
    }

    /// States made at the first step.
    fn first(self, sim: &Sim, states: &mut States) {
        sim.begin("state");
        let params = sim.params.borrow();
        for (param, shape) in params.iter() {
            if self != Optimizer::Adagrad && sim.grad_of(param.id).is_none() {
                continue;
            }
            let (n, dtype) = (param.tensor.n, param.tensor.dtype);
            let mut keep = |n, dtype| states.kept.push(sim.alloc_as(n, dtype, Kind::Optimizer));
            match self {
                Optimizer::AdamW | Optimizer::AdamWForLoop => {
                    keep(n, dtype);
                    keep(n, dtype);
                }
                Optimizer::AmsGrad => (0..3).for_each(|_| keep(n, dtype)),
                Optimizer::AdamWFused => {
                    keep(1, Dtype::F32);
                    keep(n, dtype);
                    keep(n, dtype);
                }
                Optimizer::PagedAdamW | Optimizer::PagedAdamW8bit if n >= PAGED_FROM => {
                    if self == Optimizer::PagedAdamW8bit {
                        (0..2).for_each(|_| keep(n.div_ceil(256), Dtype::F32));
                    }
                }
                Optimizer::PagedAdamW => (0..2).for_each(|_| keep(n, Dtype::F32)),
                Optimizer::AdamW8bit | Optimizer::PagedAdamW8bit => {
                    if n < 4096 {
                        keep(n, Dtype::F32);
                        keep(n, Dtype::F32);
                    } else {
                        for _ in 0..2 {
                            keep(n, Dtype::U8);
                            keep(n.div_ceil(256), Dtype::F32);
                        }
                    }
                }
                Optimizer::Sgd => {}
                Optimizer::SgdMomentum | Optimizer::RmsProp | Optimizer::Adagrad | Optimizer::Lion => {
                    keep(n, dtype);
                }
                Optimizer::Adafactor => match shape.as_slice() {
                    [.., rows, columns] => {
                        let outer = n / (rows * columns);
                        keep(outer * rows, dtype);
                        keep(outer * columns, dtype);
                    }
                    _ => keep(n, dtype),
                },
                Optimizer::Muon => {
                    keep(n, dtype);
                    if !is_inner_matrix(sim, param, shape) {
                        keep(n, dtype);
                    }
                }
            }
        }
        drop(params);
        states.ready = true;
    }
}

/// True for a matrix of a block: the parameters that Muon takes.
fn is_inner_matrix(sim: &Sim, param: &Param, shape: &[u64]) -> bool {
    let log = sim.log.borrow();
    let of = log.allocations.get(param.tensor.storage.slot as usize);
    shape.len() == 2 && of.is_some_and(|allocation| matches!(allocation.scope, Scope::Block(_)))
}

fn trained(sim: &Sim) -> Vec<(u64, Dtype)> {
    let params = sim.params.borrow();
    params
        .iter()
        .filter(|(p, _)| sim.grad_of(p.id).is_some())
        .map(|(p, _)| (p.tensor.n, p.tensor.dtype))
        .collect()
}

/// One temporary for each parameter, all at once.
fn all(sim: &Sim, which: impl Fn(&Param, &[u64]) -> bool) -> Vec<Tensor> {
    let params = sim.params.borrow();
    params
        .iter()
        .filter(|(p, shape)| sim.grad_of(p.id).is_some() && which(p, shape))
        .map(|(p, _)| sim.alloc_as(p.tensor.n, p.tensor.dtype, Kind::StepTemporary))
        .collect()
}

/// One parameter after the other: its update lives until the next one's is made.
fn adafactor(sim: &Sim) {
    let mut last = None;
    let params = sim.params.borrow();
    for (param, shape) in params.iter() {
        if sim.grad_of(param.id).is_none() {
            continue;
        }
        let (n, dtype) = (param.tensor.n, param.tensor.dtype);
        let temporary = |n, dtype| sim.alloc_as(n, dtype, Kind::StepTemporary);
        if let [.., rows, columns] = *shape.as_slice() {
            let outer = n / (rows * columns);
            let row = temporary(outer * rows, dtype);
            let column = temporary(outer * columns, dtype);
            let partial = staging(rows, columns) * outer;
            if partial > 0 {
                drop(temporary(partial, Dtype::U8));
            }
            let update = temporary(n, dtype);
            drop((row, column));
            last = Some(update);
        } else {
            let square = temporary(n, dtype);
            let update = temporary(n, dtype);
            drop(square);
            last = Some(update);
        }
    }
    drop(last);
}

/// Newton-Schulz in 16 bits: the update, two square products, and two iterates.
fn muon(sim: &Sim) {
    let mut before: Option<Tensor> = None;
    let params = sim.params.borrow();
    for (param, shape) in params.iter() {
        if sim.grad_of(param.id).is_none() || !is_inner_matrix(sim, param, shape) {
            continue;
        }
        let (n, dtype) = (param.tensor.n, param.tensor.dtype);
        let side = shape[shape.len() - 1].min(n / shape[shape.len() - 1]);
        let temporary = |n, dtype| sim.alloc_as(n, dtype, Kind::StepTemporary);
        let update = temporary(n, dtype);
        drop(before.take());
        let mut iterate = if dtype == Dtype::Bf16 { update.clone() } else { temporary(n, Dtype::Bf16) };
        let mut gram = temporary(side * side, Dtype::Bf16);
        let mut square = temporary(side * side, Dtype::Bf16);
        for round in 0..5 {
            if round > 0 {
                gram = temporary(side * side, Dtype::Bf16);
                square = temporary(side * side, Dtype::Bf16);
            }
            iterate = temporary(n, Dtype::Bf16);
        }
        drop((gram, square));
        drop(update);
        before = Some(iterate);
    }
    drop(before);
}
