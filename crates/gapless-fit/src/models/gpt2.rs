//! GPT-2.

use super::causal::{Causal, through_blocks};
use super::llama::head;
use super::parts::{Adapter, LayerNorm, Linear, activate, tokens, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Decoder};
use std::cell::RefCell;
use std::rc::Rc;

/// `Conv1D`: a linear layer whose matrix is stored the other way round.
struct Conv1d {
    weight: Param,
    bias: Param,
    outputs: u64,
    adapter: Option<Box<Adapter>>,
}

impl Conv1d {
    fn new(sim: &Sim, inputs: u64, outputs: u64, run: &Run) -> Conv1d {
        let dtype = weight_dtype(run);
        let (weight, bias) = (sim.param(&[inputs, outputs], dtype), sim.param(&[outputs], dtype));
        let adapter = Adapter::new(sim, &weight, outputs);
        Conv1d { weight, bias, outputs, adapter }
    }

    fn forward(&self, sim: &Sim, x: &Tensor) -> Tensor {
        let out = sim.conv1d(x, &self.weight, &self.bias, self.outputs);
        match &self.adapter {
            Some(adapter) => adapter.forward(sim, x, out, &self.weight, true),
            None => out,
        }
    }
}

struct Block {
    ln_1: LayerNorm,
    attention: Conv1d,
    projection: Conv1d,
    ln_2: LayerNorm,
    up: Conv1d,
    down: Conv1d,
}

struct Gpt2 {
    d: Decoder,
    words: Param,
    positions: Param,
    layers: Vec<Block>,
    ln_f: LayerNorm,
    head: Linear,
}

struct Shared {
    heads: Heads,
    mask: Option<Tensor>,
    cache: Option<RefCell<Vec<Tensor>>>,
    training: bool,
}

pub(crate) fn build(sim: &Sim, d: &Decoder, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let words = sim.param(&[d.vocab, d.hidden], dtype);
    let positions = sim.param(&[d.max_positions, d.hidden], dtype);
    let layers = (0..d.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            let norm = || LayerNorm::new(sim, d.hidden, dtype);
            let conv = |i, o| Conv1d::new(sim, i, o, run);
            Block {
                ln_1: norm(),
                attention: conv(d.hidden, 3 * d.hidden),
                projection: conv(d.hidden, d.hidden),
                ln_2: norm(),
                up: conv(d.hidden, d.intermediate),
                down: conv(d.intermediate, d.hidden),
            }
        })
        .collect();
    sim.scope(Scope::Head);
    let ln_f = LayerNorm::new(sim, d.hidden, dtype);
    let head = head(sim, d, &words, dtype);
    Ok(Rc::new(Gpt2 { d: d.clone(), words, positions, layers, ln_f, head }))
}

impl Gpt2 {
    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let layer = &self.layers[at];
        let mut hidden = layer.ln_1.forward(sim, x);
        let (attended, _weights) =
            within(sim, Layer::Attention, || self.attention(sim, run, layer, &hidden, shared));
        hidden = sim.add(&attended, x);
        let residual = hidden.clone();
        hidden = layer.ln_2.forward(sim, &hidden);
        let fed = within(sim, Layer::FeedForward, || {
            let mut inner = layer.up.forward(sim, &hidden);
            inner = activate(sim, self.d.activation, &inner);
            inner = layer.down.forward(sim, &inner);
            sim.dropout(&inner, self.d.residual_dropout, shared.training)
        });
        sim.add(&residual, &fed)
    }

    fn attention(
        &self,
        sim: &Sim,
        run: &Run,
        layer: &Block,
        x: &Tensor,
        shared: &Shared,
    ) -> (Tensor, Option<Tensor>) {
        let d = &self.d;
        let all = layer.attention.forward(sim, x);
        let third = all.n / 3;
        let parts = sim.split(&all, &[third, third, third]);
        drop(all);
        let (q, mut k, mut v) = (parts[0].clone(), parts[1].clone(), parts[2].clone());
        if let Some(cache) = &shared.cache {
            (k, v) = super::llama::update(sim, cache, &k, &v);
        }
        let (mut out, weights) = match run.attention(d.attention) {
            Attention::Eager => sim.eager_attention(
                (&q, &k, &v),
                shared.heads,
                shared.mask.as_ref(),
                false,
                d.attention_dropout,
            ),
            _ => (sim.sdpa(&q, &k, &v, shared.heads, None), None),
        };
        out = layer.projection.forward(sim, &out);
        (sim.dropout(&out, d.residual_dropout, shared.training), weights)
    }
}

impl Causal for Gpt2 {
    fn states(self: &Rc<Self>, sim: &Sim, run: &Run, ids: &Tensor) -> (Tensor, Option<Vec<Tensor>>) {
        let d = &self.d;
        let training = run.mode == Mode::Train;
        sim.scope(Scope::Embedding);
        let words = sim.embedding(ids, &self.words, d.hidden);
        let places = tokens(sim, run.length);
        let positions = sim.embedding(&places, &self.positions, d.hidden);
        let mut hidden = sim.add(&words, &positions);
        let heads = Heads::own(run.batch, run.length, d.heads, d.heads, d.head_dim);
        let mask =
            (run.attention(d.attention) == Attention::Eager).then(|| sim.mask(heads, Some(hidden.dtype)));
        hidden = sim.dropout(&hidden, d.embed_dropout, training);
        let cache = (!training).then(|| RefCell::new(Vec::new()));
        let shared = Rc::new(Shared { heads, mask, cache, training });
        hidden = through_blocks(sim, run, self, &shared, self.layers.len(), hidden, Self::layer);
        sim.scope(Scope::Head);
        hidden = self.ln_f.forward(sim, &hidden);
        drop((words, positions));
        let cache = Rc::into_inner(shared).and_then(|s| s.cache).map(RefCell::into_inner);
        (hidden, cache)
    }

    fn logits(&self, sim: &Sim, hidden: &Tensor) -> Tensor {
        self.head.forward(sim, hidden)
    }
}
