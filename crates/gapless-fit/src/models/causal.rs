//! Code that causal language models share: blocks one after another, and a head whose logits are the loss or the
//! answer.

use super::Network;
use super::parts::through_block;
use crate::eager::{Run, Scope, Sim, Tensor};
use std::rc::Rc;

/// A causal language model: its stack of blocks, and its head.
pub(crate) trait Causal {
    /// Hidden states after the last norm, and in inference the tensors of the cache.
    fn states(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> (Tensor, Option<Vec<Tensor>>);

    fn logits(&self, sim: &Sim, hidden: &Tensor) -> Tensor;
}

impl<T: Causal> Network for T {
    fn loss(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let (hidden, _) = self.states(sim, run, x);
        let logits = self.logits(sim, &hidden);
        sim.scope(Scope::Loss);
        sim.causal_loss(&logits, run.batch * run.length, run.batch)
    }

    fn infer(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Vec<Tensor> {
        let (mut hidden, cache) = self.states(sim, run, x);
        if run.last_logits {
            let last = sim.slice(&hidden, hidden.n / run.length.max(1));
            // A matrix product over rows that lie apart copies them first.
            hidden = if run.batch > 1 { sim.contiguous(&last) } else { last };
        }
        let logits = self.logits(sim, &hidden);
        let mut out = cache.unwrap_or_default();
        out.push(logits);
        out
    }
}

/// Runs the `count` blocks of `model`, each on the output of the one before, with what all of them share; in training
/// those that the run names are checkpointed.
pub(crate) fn through_blocks<M: 'static, S: 'static>(
    sim: &Sim,
    run: &Run,
    model: &Rc<M>,
    shared: &Rc<S>,
    count: usize,
    mut hidden: Tensor,
    layer: fn(&M, &Sim, &Run, usize, &Tensor, &S) -> Tensor,
) -> Tensor {
    let own = Rc::new(run.clone());
    for at in 0..count {
        let (model, shared, own) = (Rc::clone(model), Rc::clone(shared), Rc::clone(&own));
        hidden = through_block(sim, run, at, &hidden, move |sim, x| layer(&model, sim, &own, at, x, &shared));
    }
    hidden
}
