//! T5, encoder and decoder on sequences of one length, with labels as long as the input.

use super::parts::{Linear, activate, through_block, tokens, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Kind, Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Dtype, EncoderDecoder};
use std::cell::RefCell;
use std::rc::Rc;

struct Attend {
    norm: Param,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// In the first block of each stack: a number for each head and distance.
    distances: Option<Param>,
}

struct Feed {
    norm: Param,
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
}

struct Block {
    own: Attend,
    /// In the decoder: over the encoder's output.
    cross: Option<Attend>,
    feed: Feed,
}

struct Stack {
    blocks: Vec<Block>,
    norm: Param,
}

struct T5 {
    e: EncoderDecoder,
    words: Param,
    encoder: Stack,
    decoder: Stack,
    head: Linear,
}

/// Values that the blocks of one stack share.
struct Shared {
    heads: Heads,
    /// Made by the first block.
    bias: RefCell<Option<Tensor>>,
    cross_bias: RefCell<Option<Tensor>>,
    encoded: Option<Tensor>,
    cache: Option<RefCell<Vec<Tensor>>>,
    training: bool,
}

/// The value that the first block makes, also when it is run again; the other blocks are given it.
fn given(place: &RefCell<Option<Tensor>>, first: bool, make: impl FnOnce() -> Tensor) -> Tensor {
    let known = place.borrow().clone();
    match known {
        Some(known) if !first => known,
        known => {
            let made = make();
            if known.is_none() {
                place.replace(Some(made.clone()));
            }
            made
        }
    }
}

pub(crate) fn build(sim: &Sim, e: &EncoderDecoder, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let words = sim.param(&[e.vocab, e.hidden], dtype);
    let inner = e.heads * e.head_dim;
    let linear = |i, o| Linear::new(sim, i, o, false, dtype);
    let attend = |first: bool| Attend {
        q: linear(e.hidden, inner),
        k: linear(e.hidden, inner),
        v: linear(e.hidden, inner),
        o: linear(inner, e.hidden),
        distances: first.then(|| sim.param(&[e.relative_buckets, e.heads], dtype)),
        norm: sim.param(&[e.hidden], dtype),
    };
    let mut count = 0;
    let mut stack = |layers: u64, decoder: bool| {
        let blocks = (0..layers)
            .map(|at| {
                sim.scope(Scope::Block(count));
                count += 1;
                let own = attend(at == 0);
                let cross = decoder.then(|| attend(false));
                let up = linear(e.hidden, e.intermediate);
                let gate = e.gated.then(|| linear(e.hidden, e.intermediate));
                let down = linear(e.intermediate, e.hidden);
                Block { own, cross, feed: Feed { gate, up, down, norm: sim.param(&[e.hidden], dtype) } }
            })
            .collect();
        Stack { blocks, norm: sim.param(&[e.hidden], dtype) }
    };
    let encoder = stack(e.encoder_layers, false);
    let decoder = stack(e.decoder_layers, true);
    sim.scope(Scope::Head);
    let head = if e.tied {
        sim.begin("tied");
        drop(sim.alloc_as(e.vocab * e.hidden, dtype, Kind::Weight));
        Linear::tied(&words, None, e.vocab)
    } else {
        linear(e.hidden, e.vocab)
    };
    Ok(Rc::new(T5 { e: e.clone(), words, encoder, decoder, head }))
}

impl T5 {
    /// Its own norm: only the squares are in 32 bits, and the product becomes so.
    fn norm(&self, sim: &Sim, weight: &Param, x: &Tensor) -> Tensor {
        within(sim, Layer::Norm, || {
            let variance = {
                let squares = {
                    let full = sim.to(x, Dtype::F32);
                    sim.pow(&full)
                };
                sim.mean(&squares, self.e.hidden)
            };
            let mut hidden = {
                let deviation = {
                    let shifted = sim.shift(&variance);
                    sim.rsqrt(&shifted)
                };
                sim.mul_rows(x, &deviation)
            };
            if weight.tensor.dtype != Dtype::F32 {
                hidden = sim.to(&hidden, weight.tensor.dtype);
            }
            sim.mul(&weight.tensor, &hidden)
        })
    }

    fn stack(
        self: &Rc<Self>,
        sim: &Sim,
        run: &Run,
        ids: &Tensor,
        encoded: Option<Tensor>,
    ) -> (Tensor, Option<Vec<Tensor>>) {
        let e = &self.e;
        let training = run.mode == Mode::Train;
        let decoder = encoded.is_some();
        let stack = if decoder { &self.decoder } else { &self.encoder };
        sim.scope(Scope::Embedding);
        let embeds = sim.embedding(ids, &self.words, e.hidden);
        let mut hidden = sim.dropout(&embeds, e.dropout, training);
        let heads = Heads::own(run.batch, run.length, e.heads, e.heads, e.head_dim);
        let first = if decoder { self.encoder.blocks.len() } else { 0 };
        let recomputes = (0..stack.blocks.len()).any(|at| run.checkpoints(first + at));
        // The model's default is to cache, in training too, unless blocks are recomputed.
        let cache = (decoder && !(training && recomputes)).then(|| RefCell::new(Vec::new()));
        let shared = Rc::new(Shared {
            heads,
            bias: RefCell::default(),
            cross_bias: RefCell::default(),
            encoded,
            cache,
            training,
        });
        for at in 0..stack.blocks.len() {
            let (model, shared, again) = (Rc::clone(self), Rc::clone(&shared), run.clone());
            let block = move |sim: &Sim, x: &Tensor| model.block(sim, &again, at, x, &shared);
            hidden = through_block(sim, run, first + at, &hidden, block);
        }
        sim.scope(Scope::Head);
        hidden = self.norm(sim, &stack.norm, &hidden);
        hidden = sim.dropout(&hidden, e.dropout, training);
        drop(embeds);
        let cache = Rc::into_inner(shared).and_then(|s| s.cache).map(RefCell::into_inner);
        (hidden, cache)
    }

    fn block(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, shared: &Shared) -> Tensor {
        let stack = if shared.encoded.is_some() { &self.decoder } else { &self.encoder };
        let (block, e) = (&stack.blocks[at], &self.e);
        let mut hidden = {
            let normed = self.norm(sim, &block.own.norm, x);
            let out = within(sim, Layer::Attention, || {
                self.attend(sim, run, &block.own, &normed, None, at == 0, shared)
            });
            let out = sim.dropout(&out, e.dropout, shared.training);
            sim.add(x, &out)
        };
        if let (Some(cross), Some(encoded)) = (&block.cross, &shared.encoded) {
            let normed = self.norm(sim, &cross.norm, &hidden);
            let out = within(sim, Layer::Attention, || {
                self.attend(sim, run, cross, &normed, Some(encoded), at == 0, shared)
            });
            let out = sim.dropout(&out, e.dropout, shared.training);
            hidden = sim.add(&hidden, &out);
        }
        let fed = within(sim, Layer::FeedForward, || {
            let normed = self.norm(sim, &block.feed.norm, &hidden);
            let mut inner = {
                let up = block.feed.up.forward(sim, &normed);
                activate(sim, e.activation, &up)
            };
            if let Some(gate) = &block.feed.gate {
                let linear = gate.forward(sim, &normed);
                inner = sim.mul(&inner, &linear);
            }
            inner = sim.dropout(&inner, e.dropout, shared.training);
            block.feed.down.forward(sim, &inner)
        });
        let fed = sim.dropout(&fed, e.dropout, shared.training);
        sim.add(&hidden, &fed)
    }

    /// Over itself with a learned bias, or over the encoder's output with one of zeros.
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        sim: &Sim,
        run: &Run,
        attend: &Attend,
        x: &Tensor,
        encoded: Option<&Tensor>,
        first: bool,
        shared: &Shared,
    ) -> Tensor {
        let h = shared.heads;
        let eager = run.attention(self.e.attention) == Attention::Eager;
        let q = sim.copied_back(&attend.q.forward(sim, x));
        let source = encoded.unwrap_or(x);
        let mut k = sim.copied_back(&attend.k.forward(sim, source));
        let mut v = sim.copied_back(&attend.v.forward(sim, source));
        if let Some(cache) = &shared.cache {
            (k, v) = (sim.cat(&[&k]), sim.cat(&[&v]));
            cache.borrow_mut().extend([k.detach(), v.detach()]);
        }
        let scores = h.heads * h.queries * h.keys;
        let out = if encoded.is_some() {
            let bias = given(&shared.cross_bias, first, || sim.alloc(scores, q.dtype));
            if eager {
                self.eager(sim, (&q, &k, &v), h, &bias, shared)
            } else {
                sim.sdpa(&q, &k, &v, h, None)
            }
        } else {
            let bias = given(&shared.bias, first, || self.distances(sim, attend, h.queries * h.keys));
            let bias = if shared.encoded.is_some() && !eager {
                let mask = sim.alloc(h.queries * h.keys, Dtype::Bool);
                sim.masked_fill(&bias, &mask)
            } else {
                bias
            };
            if eager {
                self.eager(sim, (&q, &k, &v), h, &bias, shared)
            } else {
                let dropout = if shared.training { self.e.dropout } else { 0.0 };
                sim.biased_attention((&q, &k, &v), h, &bias, dropout, shared.cache.is_none())
            }
        };
        attend.o.forward(sim, &out)
    }

    fn eager(
        &self,
        sim: &Sim,
        qkv: (&Tensor, &Tensor, &Tensor),
        h: Heads,
        bias: &Tensor,
        shared: &Shared,
    ) -> Tensor {
        let dropout = if shared.training { self.e.dropout } else { 0.0 };
        sim.eager_attention(qkv, h, Some(bias), false, dropout).0
    }

    /// The bias by distance: which of the buckets each pair falls into, and its row of the table.
    fn distances(&self, sim: &Sim, attend: &Attend, pairs: u64) -> Tensor {
        let Some(table) = &attend.distances else { return sim.alloc(pairs * self.e.heads, Dtype::F32) };
        let buckets = {
            let whole = || sim.alloc(pairs, Dtype::I64);
            let (distance, absolute, near) = (whole(), whole(), sim.alloc(pairs, Dtype::Bool));
            let far = whole();
            drop((whole(), near));
            drop((distance, absolute, far));
            whole()
        };
        sim.embedding(&buckets, table, self.e.heads)
    }

    fn body(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> (Tensor, Vec<Tensor>) {
        let (encoded, _) = self.stack(sim, run, x, None);
        let shifted = tokens(sim, run.batch * run.length);
        let (mut hidden, cache) = self.stack(sim, run, &shifted, Some(encoded.clone()));
        if self.e.tied {
            hidden = sim.scale(&hidden);
        }
        let mut held = cache.unwrap_or_default();
        held.push(encoded);
        (self.head.forward(sim, &hidden), held)
    }
}

impl Network for T5 {
    fn loss(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let (logits, _held) = self.body(sim, run, x);
        sim.scope(Scope::Loss);
        sim.cross_entropy(&logits, x)
    }

    fn infer(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Vec<Tensor> {
        let (logits, mut held) = self.body(sim, run, x);
        held.push(logits);
        held
    }
}
