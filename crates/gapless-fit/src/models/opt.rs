//! OPT: the norm before each part, or after it (350M, which also projects a narrower embedding).

use super::causal::{Causal, through_blocks};
use super::llama::{attend, head, update};
use super::parts::{LayerNorm, Linear, activate, tokens, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Decoder};
use std::cell::RefCell;
use std::rc::Rc;

struct Block {
    k: Linear,
    v: Linear,
    q: Linear,
    out: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    final_norm: LayerNorm,
}

struct Opt {
    d: Decoder,
    words: Param,
    positions: Param,
    /// From the embedding's width and back.
    projections: Option<(Linear, Linear)>,
    layers: Vec<Block>,
    norm: Option<LayerNorm>,
    head: Linear,
}

struct Shared {
    heads: Heads,
    mask: Option<Tensor>,
    cache: Option<RefCell<Vec<Tensor>>>,
    training: bool,
}

/// The table of positions has two rows more than there are.
const OFFSET: u64 = 2;

pub(crate) fn build(sim: &Sim, d: &Decoder, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let width = d.embed_dim.unwrap_or(d.hidden);
    let words = sim.param(&[d.vocab, width], dtype);
    let positions = sim.param(&[d.max_positions + OFFSET, d.hidden], dtype);
    let projections = d.embed_dim.map(|width| {
        let out = Linear::new(sim, d.hidden, width, false, dtype);
        (Linear::new(sim, width, d.hidden, false, dtype), out)
    });
    let norm = (!d.post_norm).then(|| LayerNorm::new(sim, d.hidden, dtype));
    let layers = (0..d.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            // `enable_bias` is for all of them.
            let linear = |i, o| Linear::new(sim, i, o, d.qkv_bias, dtype);
            Block {
                k: linear(d.hidden, d.hidden),
                v: linear(d.hidden, d.hidden),
                q: linear(d.hidden, d.hidden),
                out: linear(d.hidden, d.hidden),
                attention_norm: LayerNorm::new(sim, d.hidden, dtype),
                up: linear(d.hidden, d.intermediate),
                down: linear(d.intermediate, d.hidden),
                final_norm: LayerNorm::new(sim, d.hidden, dtype),
            }
        })
        .collect();
    sim.scope(Scope::Head);
    let narrow = Decoder { hidden: width, ..d.clone() };
    let head = head(sim, &narrow, &words, dtype);
    Ok(Rc::new(Opt { d: d.clone(), words, positions, projections, layers, norm, head }))
}

impl Opt {
    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let (layer, d) = (&self.layers[at], &self.d);
        let normed =
            |norm: &LayerNorm, x: &Tensor, here: bool| if here { norm.forward(sim, x) } else { x.clone() };
        let mut hidden = normed(&layer.attention_norm, x, !d.post_norm);
        let _weights;
        (hidden, _weights) = within(sim, Layer::Attention, || {
            let q = {
                let q = layer.q.forward(sim, &hidden);
                sim.scale(&q)
            };
            let mut k = layer.k.forward(sim, &hidden);
            let mut v = layer.v.forward(sim, &hidden);
            if let Some(cache) = &shared.cache {
                (k, v) = update(sim, cache, &k, &v);
            }
            let how = run.attention(d.attention);
            let (out, weights) =
                attend(sim, how, (&q, &k, &v), shared.heads, shared.mask.as_ref(), d.attention_dropout);
            (layer.out.forward(sim, &out), weights)
        });
        hidden = sim.dropout(&hidden, d.residual_dropout, shared.training);
        hidden = sim.add(x, &hidden);
        hidden = normed(&layer.attention_norm, &hidden, d.post_norm);
        let residual = hidden.clone();
        hidden = normed(&layer.final_norm, &hidden, !d.post_norm);
        let before = sim.layer(Layer::FeedForward);
        hidden = layer.up.forward(sim, &hidden);
        hidden = activate(sim, d.activation, &hidden);
        hidden = layer.down.forward(sim, &hidden);
        sim.layer(before);
        hidden = sim.dropout(&hidden, d.residual_dropout, shared.training);
        hidden = sim.add(&residual, &hidden);
        normed(&layer.final_norm, &hidden, d.post_norm)
    }
}

impl Causal for Opt {
    fn states(self: &Rc<Self>, sim: &Sim, run: &Run, ids: &Tensor) -> (Tensor, Option<Vec<Tensor>>) {
        let d = &self.d;
        let training = run.mode == Mode::Train;
        sim.scope(Scope::Embedding);
        let mut words = sim.embedding(ids, &self.words, d.embed_dim.unwrap_or(d.hidden));
        if let Some((project_in, _)) = &self.projections {
            words = project_in.forward(sim, &words);
        }
        let places = tokens(sim, run.batch * run.length);
        let positions = sim.embedding(&places, &self.positions, d.hidden);
        let mut hidden = sim.add(&words, &positions);
        let heads = Heads::own(run.batch, run.length, d.heads, d.heads, d.head_dim);
        let mask =
            (run.attention(d.attention) == Attention::Eager).then(|| sim.mask(heads, Some(hidden.dtype)));
        let cache = (!training).then(|| RefCell::new(Vec::new()));
        let shared = Rc::new(Shared { heads, mask, cache, training });
        hidden = through_blocks(sim, run, self, &shared, self.layers.len(), hidden, Self::layer);
        sim.scope(Scope::Head);
        if let Some(norm) = &self.norm {
            hidden = norm.forward(sim, &hidden);
        }
        if let Some((_, project_out)) = &self.projections {
            hidden = project_out.forward(sim, &hidden);
        }
        drop((words, positions));
        let cache = Rc::into_inner(shared).and_then(|s| s.cache).map(RefCell::into_inner);
        (hidden, cache)
    }

    fn logits(&self, sim: &Sim, hidden: &Tensor) -> Tensor {
        self.head.forward(sim, hidden)
    }
}
