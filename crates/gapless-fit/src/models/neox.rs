//! GPT-NeoX and Pythia: attention and feed-forward side by side, or one after the other; a part of each head turned.

use super::causal::{Causal, through_blocks};
use super::llama::{attend, head, update};
use super::parts::{LayerNorm, Linear, activate, rotary, rotate, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Decoder, Dtype};
use std::cell::RefCell;
use std::rc::Rc;

struct Block {
    input_norm: LayerNorm,
    post_norm: LayerNorm,
    qkv: Linear,
    dense: Linear,
    up: Linear,
    down: Linear,
}

struct Neox {
    d: Decoder,
    words: Param,
    layers: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

struct Shared {
    heads: Heads,
    cos: Tensor,
    sin: Tensor,
    mask: Option<Tensor>,
    cache: Option<RefCell<Vec<Tensor>>>,
}

pub(crate) fn build(sim: &Sim, d: &Decoder, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let words = sim.param(&[d.vocab, d.hidden], dtype);
    let layers = (0..d.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            let linear = |i, o, bias| Linear::new(sim, i, o, bias, dtype);
            let norm = || LayerNorm::new(sim, d.hidden, dtype);
            Block {
                input_norm: norm(),
                post_norm: norm(),
                qkv: linear(d.hidden, 3 * d.hidden, d.qkv_bias),
                dense: linear(d.hidden, d.hidden, d.out_bias),
                up: linear(d.hidden, d.intermediate, d.mlp_bias),
                down: linear(d.intermediate, d.hidden, d.mlp_bias),
            }
        })
        .collect();
    sim.scope(Scope::Head);
    let norm = LayerNorm::new(sim, d.hidden, dtype);
    let head = head(sim, d, &words, dtype);
    Ok(Rc::new(Neox { d: d.clone(), words, layers, norm, head }))
}

impl Neox {
    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let layer = &self.layers[at];
        let attended = {
            let normed = layer.input_norm.forward(sim, x);
            within(sim, Layer::Attention, || self.attention(sim, run, layer, &normed, shared))
        };
        if !self.d.parallel_residual {
            let sum = sim.add(&attended, x);
            let fed = self.feed(sim, layer, &sum);
            return sim.add(&fed, &sum);
        }
        let fed = self.feed(sim, layer, x);
        let sum = sim.add(&fed, &attended);
        sim.add(&sum, x)
    }

    fn feed(&self, sim: &Sim, layer: &Block, x: &Tensor) -> Tensor {
        within(sim, Layer::FeedForward, || {
            let normed = layer.post_norm.forward(sim, x);
            let mut inner = layer.up.forward(sim, &normed);
            inner = activate(sim, self.d.activation, &inner);
            layer.down.forward(sim, &inner)
        })
    }

    fn attention(&self, sim: &Sim, run: &Run, layer: &Block, x: &Tensor, shared: &Shared) -> Tensor {
        let h = shared.heads;
        let all = {
            let all = layer.qkv.forward(sim, x);
            sim.copied_back(&all)
        };
        let third = all.n / 3;
        let parts = sim.split(&all, &[third, third, third]);
        drop(all);
        let turned = third / self.d.head_dim * self.d.rotary_dim;
        let (q_turn, q_rest) = (sim.slice(&parts[0], turned), sim.slice(&parts[0], third - turned));
        let (k_turn, k_rest) = (sim.slice(&parts[1], turned), sim.slice(&parts[1], third - turned));
        let (q, mut k) = {
            let q = rotate(sim, &q_turn, &shared.cos, &shared.sin);
            let k = rotate(sim, &k_turn, &shared.cos, &shared.sin);
            let q = sim.cat(&[&q, &q_rest]);
            (q, sim.cat(&[&k, &k_rest]))
        };
        drop((q_turn, k_turn, q_rest, k_rest));
        let mut v = parts[2].clone();
        if let Some(cache) = &shared.cache {
            (k, v) = update(sim, cache, &k, &v);
        }
        let how = run.attention(self.d.attention);
        let (mut out, _weights) =
            attend(sim, how, (&q, &k, &v), h, shared.mask.as_ref(), self.d.attention_dropout);
        if how != Attention::Eager && (q.dtype != Dtype::F32 || sim.amp.get().is_some()) {
            // Heads were contiguous before attention, so its output is too, and transposing it back takes a copy.
            out = sim.contiguous(&out);
        }
        layer.dense.forward(sim, &out)
    }
}

impl Causal for Neox {
    fn states(self: &Rc<Self>, sim: &Sim, run: &Run, ids: &Tensor) -> (Tensor, Option<Vec<Tensor>>) {
        let d = &self.d;
        let training = run.mode == Mode::Train;
        sim.scope(Scope::Embedding);
        let words = sim.embedding(ids, &self.words, d.hidden);
        let mut hidden = words.clone();
        let heads = Heads::own(run.batch, run.length, d.heads, d.heads, d.head_dim);
        let mask =
            (run.attention(d.attention) == Attention::Eager).then(|| sim.mask(heads, Some(hidden.dtype)));
        let (cos, sin) = rotary(sim, run.length, d.rotary_dim, hidden.dtype);
        let cache = (!training).then(|| RefCell::new(Vec::new()));
        let shared = Rc::new(Shared { heads, cos, sin, mask, cache });
        hidden = through_blocks(sim, run, self, &shared, self.layers.len(), hidden, Self::layer);
        sim.scope(Scope::Head);
        hidden = self.norm.forward(sim, &hidden);
        drop(words);
        let cache = Rc::into_inner(shared).and_then(|s| s.cache).map(RefCell::into_inner);
        (hidden, cache)
    }

    fn logits(&self, sim: &Sim, hidden: &Tensor) -> Tensor {
        self.head.forward(sim, hidden)
    }
}
