//! DeepSeek V3: latent attention, and experts beside a shared one.

use super::causal::{Causal, through_blocks};
use super::llama::{head, update};
use super::moe::run_experts;
use super::parts::{Linear, RmsNorm, activate, rotary, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Decoder, Dtype, Mla, Moe};
use std::cell::RefCell;
use std::rc::Rc;

struct Gated {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Gated {
    fn new(sim: &Sim, d: &Decoder, inner: u64, dtype: Dtype) -> Gated {
        let hidden = d.hidden;
        let linear = |i, o| Linear::new(sim, i, o, d.mlp_bias, dtype);
        Gated { gate: linear(hidden, inner), up: linear(hidden, inner), down: linear(inner, hidden) }
    }

    fn forward(&self, sim: &Sim, d: &Decoder, x: &Tensor) -> Tensor {
        let product = {
            let gate = {
                let gate = self.gate.forward(sim, x);
                activate(sim, d.activation, &gate)
            };
            let up = self.up.forward(sim, x);
            sim.mul(&gate, &up)
        };
        self.down.forward(sim, &product)
    }
}

#[allow(clippy::large_enum_variant)] // there is one for each block
enum Feed {
    Dense(Gated),
    Experts { router: Param, gate_up: Param, down: Param, shared: Gated },
}

#[allow(clippy::large_enum_variant)] // there is one for each block
enum Query {
    Whole(Linear),
    Low { down: Linear, norm: RmsNorm, up: Linear },
}

struct Block {
    q: Query,
    kv_down: Linear,
    kv_norm: RmsNorm,
    kv_up: Linear,
    o: Linear,
    feed: Feed,
    input_norm: RmsNorm,
    post_norm: RmsNorm,
}

struct Deepseek {
    d: Decoder,
    mla: Mla,
    moe: Option<Moe>,
    embed: Param,
    layers: Vec<Block>,
    norm: RmsNorm,
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
    let Some(mla) = d.mla.clone() else {
        return Err(BuildError::Shape(
            "DeepSeek's attention needs kv_lora_rank and the sizes of its heads".to_owned(),
        ));
    };
    sim.scope(Scope::Embedding);
    let embed = sim.param(&[d.vocab, d.hidden], dtype);
    let head_dim = mla.nope_dim + mla.rope_dim;
    let layers = (0..d.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            let linear = |i, o, bias| Linear::new(sim, i, o, bias, dtype);
            let q = match mla.q_rank {
                Some(rank) => Query::Low {
                    down: linear(d.hidden, rank, d.qkv_bias),
                    norm: RmsNorm::new(sim, rank, dtype),
                    up: linear(rank, d.heads * head_dim, false),
                },
                None => Query::Whole(linear(d.hidden, d.heads * head_dim, false)),
            };
            let kv_down = linear(d.hidden, mla.kv_rank + mla.rope_dim, d.qkv_bias);
            let kv_norm = RmsNorm::new(sim, mla.kv_rank, dtype);
            let kv_up = linear(mla.kv_rank, d.heads * (mla.nope_dim + mla.value_dim), false);
            let o = linear(d.heads * mla.value_dim, d.hidden, d.out_bias);
            let feed = match &d.moe {
                Some(moe) if at >= moe.dense_layers => {
                    let gate_up = sim.param(&[moe.experts, 2 * moe.expert_intermediate, d.hidden], dtype);
                    let down = sim.param(&[moe.experts, d.hidden, moe.expert_intermediate], dtype);
                    let router = sim.param(&[moe.experts, d.hidden], dtype);
                    let shared = Gated::new(sim, d, moe.shared_intermediate, dtype);
                    Feed::Experts { router, gate_up, down, shared }
                }
                _ => Feed::Dense(Gated::new(sim, d, d.intermediate, dtype)),
            };
            let input_norm = RmsNorm::new(sim, d.hidden, dtype);
            let post_norm = RmsNorm::new(sim, d.hidden, dtype);
            Block { q, kv_down, kv_norm, kv_up, o, feed, input_norm, post_norm }
        })
        .collect();
    sim.scope(Scope::Head);
    let norm = RmsNorm::new(sim, d.hidden, dtype);
    let head = head(sim, d, &embed, dtype);
    Ok(Rc::new(Deepseek { d: d.clone(), mla, moe: d.moe.clone(), embed, layers, norm, head }))
}

/// Pairs of neighbours turned: `cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin))`.
fn turn_pairs(sim: &Sim, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let (first, second) = (sim.slice(x, x.n / 2), sim.slice(x, x.n / 2));
    let real = {
        let (a, b) = (sim.mul(&first, cos), sim.mul(&second, sin));
        sim.add(&a, &b)
    };
    let imaginary = {
        let (a, b) = (sim.mul(&second, cos), sim.mul(&first, sin));
        sim.add(&a, &b)
    };
    sim.cat(&[&real, &imaginary])
}

impl Deepseek {
    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let layer = &self.layers[at];
        let mut hidden = layer.input_norm.forward(sim, x);
        hidden = within(sim, Layer::Attention, || self.attention(sim, run, layer, &hidden, shared));
        hidden = sim.add(x, &hidden);
        let residual = hidden.clone();
        hidden = layer.post_norm.forward(sim, &hidden);
        hidden = within(sim, Layer::FeedForward, || match &layer.feed {
            Feed::Dense(gated) => gated.forward(sim, &self.d, &hidden),
            Feed::Experts { router, gate_up, down, shared } => {
                let (weights, indices) = self.route(sim, router, &hidden);
                let moe = self.moe.as_ref().expect("a layer with experts");
                let inner = moe.expert_intermediate;
                let act = self.d.activation;
                let out =
                    run_experts(sim, &hidden, &weights, &indices, gate_up, down, self.d.hidden, inner, act);
                let shared = shared.forward(sim, &self.d, &hidden);
                sim.add(&out, &shared)
            }
        });
        sim.add(&residual, &hidden)
    }

    /// Scores in 32 bits, of which some groups and then some experts are chosen.
    fn route(&self, sim: &Sim, router: &Param, x: &Tensor) -> (Tensor, Tensor) {
        let moe = self.moe.as_ref().expect("a layer with experts");
        let logits = {
            let full = sim.to(x, Dtype::F32);
            let weight = sim.to(&router.tensor, Dtype::F32);
            let weight = Param { tensor: weight, ..router.clone() };
            sim.linear(&full, &weight, None, moe.experts)
        };
        let scores = sim.keeps_output("sigmoid", &logits);
        let (values, indices) = sim.topk(&scores, moe.top_k, moe.experts);
        let weights = sim.to(&values, Dtype::F32);
        (sim.scale(&weights), indices)
    }

    fn attention(&self, sim: &Sim, run: &Run, layer: &Block, x: &Tensor, shared: &Shared) -> Tensor {
        let (d, mla, h) = (&self.d, &self.mla, shared.heads);
        let rows = h.batch * h.queries;
        let q = match &layer.q {
            Query::Whole(q) => q.forward(sim, x),
            Query::Low { down, norm, up } => {
                let low = {
                    let low = down.forward(sim, x);
                    norm.forward(sim, &low)
                };
                up.forward(sim, &low)
            }
        };
        let q = sim.copied_back(&q);
        let q_parts = sim.split(&q, &[rows * d.heads * mla.nope_dim, rows * d.heads * mla.rope_dim]);
        let low = layer.kv_down.forward(sim, x);
        let low_parts = sim.split(&low, &[rows * mla.kv_rank, rows * mla.rope_dim]);
        let kv_low = layer.kv_norm.forward(sim, &low_parts[0]);
        let q_turn = turn_pairs(sim, &q_parts[1], &shared.cos, &shared.sin);
        let k_turn = turn_pairs(sim, &low_parts[1], &shared.cos, &shared.sin);
        // The cache has the latent, and the turned part that all heads share.
        let (kv_low, k_turn) = match &shared.cache {
            Some(cache) => update(sim, cache, &kv_low, &k_turn),
            None => (kv_low, k_turn),
        };
        let q_all = sim.cat(&[&q_parts[0], &q_turn]);
        let kv = sim.copied_back(&layer.kv_up.forward(sim, &kv_low));
        let kv_parts = sim.split(&kv, &[rows * d.heads * mla.nope_dim, rows * d.heads * mla.value_dim]);
        let k = sim.filled(&kv_parts[0], &k_turn, rows * d.heads * (mla.nope_dim + mla.rope_dim), d.heads);
        let v = kv_parts[1].clone();
        let how = run.attention(d.attention);
        let (mut out, _weights) =
            super::llama::attend(sim, how, (&q_all, &k, &v), h, shared.mask.as_ref(), d.attention_dropout);
        if how != Attention::Eager && (q_all.dtype != Dtype::F32 || sim.amp.get().is_some()) {
            out = sim.contiguous(&out);
        }
        layer.o.forward(sim, &out)
    }
}

impl Causal for Deepseek {
    fn states(self: &Rc<Self>, sim: &Sim, run: &Run, ids: &Tensor) -> (Tensor, Option<Vec<Tensor>>) {
        let (d, mla) = (&self.d, &self.mla);
        let training = run.mode == Mode::Train;
        sim.scope(Scope::Embedding);
        let embeds = sim.embedding(ids, &self.embed, d.hidden);
        let mut hidden = embeds.clone();
        let heads = Heads {
            value_dim: mla.value_dim,
            ..Heads::own(run.batch, run.length, d.heads, d.heads, mla.nope_dim + mla.rope_dim)
        };
        let mask =
            (run.attention(d.attention) == Attention::Eager).then(|| sim.mask(heads, Some(hidden.dtype)));
        let (cos, sin) = rotary(sim, run.length, mla.rope_dim, hidden.dtype);
        let cache = (!training).then(|| RefCell::new(Vec::new()));
        let shared = Rc::new(Shared { heads, cos, sin, mask, cache });
        hidden = through_blocks(sim, run, self, &shared, self.layers.len(), hidden, Self::layer);
        sim.scope(Scope::Head);
        hidden = self.norm.forward(sim, &hidden);
        drop(embeds);
        let cache = Rc::into_inner(shared).and_then(|s| s.cache).map(RefCell::into_inner);
        (hidden, cache)
    }

    fn logits(&self, sim: &Sim, hidden: &Tensor) -> Tensor {
        self.head.forward(sim, hidden)
    }
}
