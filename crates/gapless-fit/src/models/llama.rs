//! Llama and its close relatives: Mistral, Qwen 2 and 3, Phi-3, and with experts Mixtral and Qwen 3 MoE.

use super::causal::{Causal, through_blocks};
use super::moe::Experts;
use super::parts::{Linear, RmsNorm, activate, rotary, rotate, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Kind, Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Decoder, DecoderStyle, Dtype};
use std::cell::RefCell;
use std::rc::Rc;

struct Block {
    qkv: Qkv,
    o: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    mlp: Mlp,
    input_norm: RmsNorm,
    post_norm: RmsNorm,
}

#[allow(clippy::large_enum_variant)] // there is one for each block
enum Qkv {
    Apart {
        q: Linear,
        k: Linear,
        v: Linear,
    },
    /// Phi-3: one matrix for all.
    Fused(Linear),
}

#[allow(clippy::large_enum_variant)] // there is one for each block
enum Mlp {
    Gated {
        gate: Linear,
        up: Linear,
        down: Linear,
    },
    /// Gate and up in one matrix.
    Fused {
        gate_up: Linear,
        down: Linear,
    },
    Experts(Experts),
}

struct Llama {
    d: Decoder,
    embed: Param,
    layers: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
}

/// Inputs of every layer beside the hidden states.
struct Shared {
    heads: Heads,
    cos: Tensor,
    sin: Tensor,
    /// A mask of numbers for eager attention, else one of bytes if the sequence is longer than the sliding window.
    mask: Option<Tensor>,
    cache: Option<RefCell<Vec<Tensor>>>,
}

pub(crate) fn build(sim: &Sim, d: &Decoder, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let embed = sim.param(&[d.vocab, d.hidden], dtype);
    let (queries, keys) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
    let has_norms = matches!(d.style, DecoderStyle::Qwen3 | DecoderStyle::Qwen3Moe);
    let layers = (0..d.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            let linear = |i, o, bias| Linear::new(sim, i, o, bias, dtype);
            let (o, qkv);
            if d.style == DecoderStyle::Phi3 {
                o = linear(queries, d.hidden, d.out_bias);
                qkv = Qkv::Fused(linear(d.hidden, queries + 2 * keys, d.qkv_bias));
            } else {
                let q = linear(d.hidden, queries, d.qkv_bias);
                let k = linear(d.hidden, keys, d.qkv_bias);
                let v = linear(d.hidden, keys, d.qkv_bias);
                qkv = Qkv::Apart { q, k, v };
                o = linear(queries, d.hidden, d.out_bias);
            }
            let norm = || has_norms.then(|| RmsNorm::new(sim, d.head_dim, dtype));
            let (q_norm, k_norm) = (norm(), norm());
            let mlp = match &d.moe {
                Some(moe) if at >= moe.dense_layers => Mlp::Experts(Experts::new(sim, d, moe, dtype)),
                _ if d.style == DecoderStyle::Phi3 => Mlp::Fused {
                    gate_up: linear(d.hidden, 2 * d.intermediate, d.mlp_bias),
                    down: linear(d.intermediate, d.hidden, d.mlp_bias),
                },
                _ => Mlp::Gated {
                    gate: linear(d.hidden, d.intermediate, d.mlp_bias),
                    up: linear(d.hidden, d.intermediate, d.mlp_bias),
                    down: linear(d.intermediate, d.hidden, d.mlp_bias),
                },
            };
            let input_norm = RmsNorm::new(sim, d.hidden, dtype);
            let post_norm = RmsNorm::new(sim, d.hidden, dtype);
            Block { qkv, o, q_norm, k_norm, mlp, input_norm, post_norm }
        })
        .collect();
    sim.scope(Scope::Head);
    let norm = RmsNorm::new(sim, d.hidden, dtype);
    let head = head(sim, d, &embed, dtype);
    Ok(Rc::new(Llama { d: d.clone(), embed, layers, norm, head }))
}

/// The language-model head. A tied one is allocated too, before it is replaced by the embedding.
pub(crate) fn head(sim: &Sim, d: &Decoder, embed: &Param, dtype: Dtype) -> Linear {
    if d.tied {
        sim.begin("tied");
        drop(sim.alloc_as(d.vocab * d.hidden, dtype, Kind::Weight));
        Linear::tied(embed, None, d.vocab)
    } else {
        Linear::new(sim, d.hidden, d.vocab, false, dtype)
    }
}

impl Llama {
    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let layer = &self.layers[at];
        let residual = x;
        let mut hidden = layer.input_norm.forward(sim, x);
        let _weights;
        (hidden, _weights) =
            within(sim, Layer::Attention, || self.attention(sim, run, layer, &hidden, shared));
        hidden = sim.add(residual, &hidden);
        let residual = hidden.clone();
        hidden = layer.post_norm.forward(sim, &hidden);
        hidden = within(sim, Layer::FeedForward, || match &layer.mlp {
            Mlp::Gated { gate, up, down } => {
                let product = {
                    let gate = {
                        let gate = gate.forward(sim, &hidden);
                        activate(sim, self.d.activation, &gate)
                    };
                    let up = up.forward(sim, &hidden);
                    sim.mul(&gate, &up)
                };
                down.forward(sim, &product)
            }
            Mlp::Fused { gate_up, down } => {
                let both = gate_up.forward(sim, &hidden);
                let parts = sim.split(&both, &[both.n / 2, both.n / 2]);
                let product = {
                    let gate = activate(sim, self.d.activation, &parts[0]);
                    sim.mul(&parts[1], &gate)
                };
                down.forward(sim, &product)
            }
            Mlp::Experts(experts) => experts.forward(sim, &hidden),
        });
        sim.add(&residual, &hidden)
    }

    fn attention(
        &self,
        sim: &Sim,
        run: &Run,
        layer: &Block,
        x: &Tensor,
        shared: &Shared,
    ) -> (Tensor, Option<Tensor>) {
        let h = shared.heads;
        let project = |linear: &Linear, norm: &Option<RmsNorm>| {
            let out = linear.forward(sim, x);
            let out = sim.copied_back(&out);
            match norm {
                Some(norm) => norm.forward(sim, &out),
                None => out,
            }
        };
        // If the scores become a tensor, or keys are repeated, the values' gradient comes back in another order too.
        let how = run.attention(self.d.attention);
        let fp32 = sim.amp.get().is_none() && x.dtype == Dtype::F32;
        let repeated = h.heads != h.kv_heads && (fp32 || shared.mask.is_some());
        let whole = how == Attention::Eager || repeated;
        let (mut q, mut k, mut v) = match &layer.qkv {
            Qkv::Apart { q, k, v } => {
                let q = project(q, &layer.q_norm);
                let k = project(k, &layer.k_norm);
                let v = v.forward(sim, x);
                (q, k, if whole { sim.copied_back(&v) } else { v })
            }
            Qkv::Fused(linear) => {
                let all = linear.forward(sim, x);
                let tokens = h.batch * h.queries;
                let part = |heads| sim.slice(&all, tokens * heads * h.dim);
                let (q, k, v) = (part(h.heads), part(h.kv_heads), part(h.kv_heads));
                (sim.copied_back(&q), sim.copied_back(&k), if whole { sim.copied_back(&v) } else { v })
            }
        };
        (q, k) = {
            let turn = |x: &Tensor| {
                if matches!(layer.qkv, Qkv::Fused(_)) {
                    // The whole head is turned; the rest, which is empty, is still appended by a copy.
                    let rest = sim.slice(x, 0);
                    let turned = rotate(sim, x, &shared.cos, &shared.sin);
                    sim.cat(&[&turned, &rest])
                } else {
                    rotate(sim, x, &shared.cos, &shared.sin)
                }
            };
            let q = turn(&q);
            let k = turn(&k);
            (q, k)
        };
        if let Some(cache) = &shared.cache {
            (k, v) = update(sim, cache, &k, &v);
        }
        let (mut attended, weights) =
            attend(sim, how, (&q, &k, &v), h, shared.mask.as_ref(), self.d.attention_dropout);
        if matches!(layer.qkv, Qkv::Fused(_)) && !fp32 {
            // Heads were contiguous before attention, so its output is too, and transposing it back takes a copy.
            attended = sim.contiguous(&attended);
        }
        (layer.o.forward(sim, &attended), weights)
    }
}

/// `DynamicCache.update`: new keys and values are appended by a copy.
pub(crate) fn update(sim: &Sim, cache: &RefCell<Vec<Tensor>>, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
    sim.begin("cat");
    let k = sim.alloc_as(k.n, k.dtype, Kind::KvCache);
    let v = sim.alloc_as(v.n, v.dtype, Kind::KvCache);
    cache.borrow_mut().extend([k.clone(), v.clone()]);
    (k, v)
}

/// Attention by the chosen implementation, heads contiguous again; and the weights, if there are any.
pub(crate) fn attend(
    sim: &Sim,
    how: Attention,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    h: Heads,
    mask: Option<&Tensor>,
    dropout: f64,
) -> (Tensor, Option<Tensor>) {
    match how {
        Attention::Sdpa | Attention::Flash => {
            let repeat = h.heads / h.kv_heads;
            if mask.is_some() && repeat > 1 {
                let (k, v) = (sim.repeat_heads(k, repeat), sim.repeat_heads(v, repeat));
                (sim.sdpa(q, &k, &v, Heads { kv_heads: h.heads, ..h }, mask), None)
            } else {
                (sim.sdpa(q, k, v, h, mask), None)
            }
        }
        Attention::Eager => sim.eager_attention((q, k, v), h, mask, true, dropout),
    }
}

impl Causal for Llama {
    fn states(self: &Rc<Self>, sim: &Sim, run: &Run, ids: &Tensor) -> (Tensor, Option<Vec<Tensor>>) {
        let d = &self.d;
        sim.scope(Scope::Embedding);
        let embeds = sim.embedding(ids, &self.embed, d.hidden);
        let mut hidden = embeds.clone();
        let positions = super::parts::tokens(sim, run.length);
        let heads = Heads::own(run.batch, run.length, d.heads, d.kv_heads, d.head_dim);
        let sliding = d.sliding_window.is_some_and(|w| run.length > w);
        let mask = match run.attention(d.attention) {
            Attention::Eager => Some(sim.mask(heads, Some(hidden.dtype))),
            _ => sliding.then(|| sim.mask(heads, None)),
        };
        let (cos, sin) = rotary(sim, run.length, d.head_dim, hidden.dtype);
        let training = run.mode == Mode::Train;
        let shared =
            Rc::new(Shared { heads, cos, sin, mask, cache: (!training).then(|| RefCell::new(Vec::new())) });
        hidden = through_blocks(sim, run, self, &shared, self.layers.len(), hidden, Self::layer);
        sim.scope(Scope::Head);
        hidden = self.norm.forward(sim, &hidden);
        drop((positions, embeds));
        let cache = Rc::into_inner(shared).and_then(|s| s.cache).map(RefCell::into_inner);
        (hidden, cache)
    }

    fn logits(&self, sim: &Sim, hidden: &Tensor) -> Tensor {
        self.head.forward(sim, hidden)
    }
}
