//! Gemma 1, 2 and 3 (text).

use super::causal::{Causal, through_blocks};
use super::llama::{attend, head, update};
use super::parts::{Linear, RmsNorm, activate, rotary, rotate, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Decoder, DecoderStyle, Dtype};
use std::cell::RefCell;
use std::rc::Rc;

struct Block {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// Gemma 3: on heads.
    head_norms: Option<(RmsNorm, RmsNorm)>,
    gate: Linear,
    up: Linear,
    down: Linear,
    input_norm: RmsNorm,
    post_attention_norm: RmsNorm,
    /// Gemma 2 and 3: before and after the feed-forward block.
    feed_norms: Option<(RmsNorm, RmsNorm)>,
}

struct Gemma {
    d: Decoder,
    embed: Param,
    layers: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
}

struct Shared {
    heads: Heads,
    /// Of full layers, and of sliding ones if they differ.
    angles: Vec<(Tensor, Tensor)>,
    full_mask: Option<Tensor>,
    sliding_mask: Option<Tensor>,
    cache: Option<RefCell<Vec<Tensor>>>,
}

pub(crate) fn build(sim: &Sim, d: &Decoder, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let embed = sim.param(&[d.vocab, d.hidden], dtype);
    let (queries, keys) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
    let layers = (0..d.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            let linear = |i, o, bias| Linear::new(sim, i, o, bias, dtype);
            let norm = |width| RmsNorm::new(sim, width, dtype);
            let q = linear(d.hidden, queries, d.qkv_bias);
            let k = linear(d.hidden, keys, d.qkv_bias);
            let v = linear(d.hidden, keys, d.qkv_bias);
            let o = linear(queries, d.hidden, d.out_bias);
            let third = d.style == DecoderStyle::Gemma3;
            let head_norms = third.then(|| (norm(d.head_dim), norm(d.head_dim)));
            let gate = linear(d.hidden, d.intermediate, d.mlp_bias);
            let up = linear(d.hidden, d.intermediate, d.mlp_bias);
            let down = linear(d.intermediate, d.hidden, d.mlp_bias);
            let input_norm = norm(d.hidden);
            let post_attention_norm = norm(d.hidden);
            let feed_norms = (d.style != DecoderStyle::Gemma).then(|| (norm(d.hidden), norm(d.hidden)));
            Block { q, k, v, o, head_norms, gate, up, down, input_norm, post_attention_norm, feed_norms }
        })
        .collect();
    sim.scope(Scope::Head);
    let norm = RmsNorm::new(sim, d.hidden, dtype);
    let head = head(sim, d, &embed, dtype);
    Ok(Rc::new(Gemma { d: d.clone(), embed, layers, norm, head }))
}

impl Gemma {
    fn slides(&self, at: usize) -> bool {
        let pattern = self.d.sliding_pattern.max(1) as usize;
        self.d.sliding_window.is_some() && (pattern == 1 || !(at + 1).is_multiple_of(pattern))
    }

    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let layer = &self.layers[at];
        let mut hidden = layer.input_norm.forward_gemma(sim, x);
        hidden = within(sim, Layer::Attention, || self.attention(sim, run, at, &hidden, shared));
        if layer.feed_norms.is_some() {
            hidden = layer.post_attention_norm.forward_gemma(sim, &hidden);
        }
        hidden = sim.add(x, &hidden);
        let residual = hidden.clone();
        hidden = match &layer.feed_norms {
            Some((before, _)) => before.forward_gemma(sim, &hidden),
            None => layer.post_attention_norm.forward_gemma(sim, &hidden),
        };
        hidden = within(sim, Layer::FeedForward, || {
            let product = {
                let gate = {
                    let gate = layer.gate.forward(sim, &hidden);
                    activate(sim, self.d.activation, &gate)
                };
                let up = layer.up.forward(sim, &hidden);
                sim.mul(&gate, &up)
            };
            layer.down.forward(sim, &product)
        });
        if let Some((_, after)) = &layer.feed_norms {
            hidden = after.forward_gemma(sim, &hidden);
        }
        sim.add(&residual, &hidden)
    }

    fn attention(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let (layer, h) = (&self.layers[at], shared.heads);
        let slides = self.slides(at);
        let mask = if slides { shared.sliding_mask.as_ref() } else { shared.full_mask.as_ref() };
        let how = run.attention(self.d.attention);
        let fp32 = sim.amp.get().is_none() && x.dtype == Dtype::F32;
        let whole = how == Attention::Eager || (h.heads != h.kv_heads && (fp32 || mask.is_some()));
        let mut q = sim.copied_back(&layer.q.forward(sim, x));
        let mut k = sim.copied_back(&layer.k.forward(sim, x));
        let mut v = layer.v.forward(sim, x);
        if whole {
            v = sim.copied_back(&v);
        }
        if let Some((q_norm, k_norm)) = &layer.head_norms {
            q = q_norm.forward_gemma(sim, &q);
            k = k_norm.forward_gemma(sim, &k);
        }
        let (cos, sin) = &shared.angles[if slides { shared.angles.len() - 1 } else { 0 }];
        (q, k) = {
            let q = rotate(sim, &q, cos, sin);
            let k = rotate(sim, &k, cos, sin);
            (q, k)
        };
        if let Some(cache) = &shared.cache {
            (k, v) = update(sim, cache, &k, &v);
        }
        let (out, _weights) = attend(sim, how, (&q, &k, &v), h, mask, self.d.attention_dropout);
        layer.o.forward(sim, &out)
    }
}

impl Causal for Gemma {
    fn states(self: &Rc<Self>, sim: &Sim, run: &Run, ids: &Tensor) -> (Tensor, Option<Vec<Tensor>>) {
        let d = &self.d;
        let training = run.mode == Mode::Train;
        sim.scope(Scope::Embedding);
        let mut hidden = sim.embedding(ids, &self.embed, d.hidden);
        hidden = sim.scale(&hidden);
        let embeds = hidden.clone();
        let heads = Heads::own(run.batch, run.length, d.heads, d.kv_heads, d.head_dim);
        let eager = run.attention(d.attention) == Attention::Eager;
        let numbers = eager.then_some(hidden.dtype);
        let full_mask = eager.then(|| sim.mask(heads, numbers));
        let bites = d.sliding_window.is_some_and(|w| run.length > w);
        let sliding_mask = (bites || (eager && d.sliding_window.is_some())).then(|| sim.mask(heads, numbers));
        let sets = if d.style == DecoderStyle::Gemma3 { 2 } else { 1 };
        let angles = (0..sets).map(|_| rotary(sim, run.length, d.head_dim, hidden.dtype)).collect();
        let cache = (!training).then(|| RefCell::new(Vec::new()));
        let shared = Rc::new(Shared { heads, angles, full_mask, sliding_mask, cache });
        hidden = through_blocks(sim, run, self, &shared, self.layers.len(), hidden, Self::layer);
        sim.scope(Scope::Head);
        hidden = self.norm.forward_gemma(sim, &hidden);
        drop(embeds);
        let cache = Rc::into_inner(shared).and_then(|s| s.cache).map(RefCell::into_inner);
        (hidden, cache)
    }

    fn logits(&self, sim: &Sim, hidden: &Tensor) -> Tensor {
        let mut logits = self.head.forward(sim, hidden);
        if self.d.logit_softcap {
            logits = sim.scale(&logits);
            logits = sim.keeps_output("tanh", &logits);
            logits = sim.scale(&logits);
        }
        logits
    }
}
