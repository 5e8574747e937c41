//! BERT and RoBERTa, with the masked-language-model head.

use super::parts::{LayerNorm, Linear, activate, through_block, tokens, weight_dtype, within};
use super::{BuildError, Network};
use crate::eager::ops::Heads;
use crate::eager::tensor::Param;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Attention, Encoder, EncoderStyle};
use std::rc::Rc;

struct Block {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    out_norm: LayerNorm,
    up: Linear,
    down: Linear,
    down_norm: LayerNorm,
}

struct Bert {
    e: Encoder,
    words: Param,
    positions: Param,
    types: Param,
    norm: LayerNorm,
    layers: Vec<Block>,
    transform: Linear,
    transform_norm: LayerNorm,
    head: Linear,
    /// A bias that transformers makes beside the head's own, and does not use.
    _spare: Option<Param>,
}

pub(crate) fn build(sim: &Sim, e: &Encoder, run: &Run) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let words = sim.param(&[e.vocab, e.hidden], dtype);
    // RoBERTa's table counts its padding positions already.
    let positions = sim.param(&[e.max_positions, e.hidden], dtype);
    let types = sim.param(&[e.token_types, e.hidden], dtype);
    let norm = LayerNorm::new(sim, e.hidden, dtype);
    let layers = (0..e.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            let linear = |i, o| Linear::new(sim, i, o, true, dtype);
            Block {
                q: linear(e.hidden, e.hidden),
                k: linear(e.hidden, e.hidden),
                v: linear(e.hidden, e.hidden),
                out: linear(e.hidden, e.hidden),
                out_norm: LayerNorm::new(sim, e.hidden, dtype),
                up: linear(e.hidden, e.intermediate),
                down: linear(e.intermediate, e.hidden),
                down_norm: LayerNorm::new(sim, e.hidden, dtype),
            }
        })
        .collect();
    sim.scope(Scope::Head);
    let transform = Linear::new(sim, e.hidden, e.hidden, true, dtype);
    let transform_norm = LayerNorm::new(sim, e.hidden, dtype);
    let head = if e.tied {
        sim.begin("tied");
        drop(sim.alloc_as(e.vocab * e.hidden, dtype, crate::eager::Kind::Weight));
        Linear::tied(&words, Some(sim.param(&[e.vocab], dtype)), e.vocab)
    } else {
        Linear::new(sim, e.hidden, e.vocab, true, dtype)
    };
    let spare = (!e.tied).then(|| sim.param(&[e.vocab], dtype));
    Ok(Rc::new(Bert {
        e: e.clone(),
        words,
        positions,
        types,
        norm,
        layers,
        transform,
        transform_norm,
        head,
        _spare: spare,
    }))
}

impl Bert {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let e = &self.e;
        let training = run.mode == Mode::Train;
        let mut hidden = self.embed(sim, run, x, training);
        for at in 0..self.layers.len() {
            let (model, again) = (Rc::clone(self), run.clone());
            let layer = move |sim: &Sim, x: &Tensor| model.layer(sim, &again, at, x, training);
            hidden = through_block(sim, run, at, &hidden, layer);
        }
        sim.scope(Scope::Head);
        let transformed = {
            let mut inner = self.transform.forward(sim, &hidden);
            inner = activate(sim, e.activation, &inner);
            self.transform_norm.forward(sim, &inner)
        };
        self.head.forward(sim, &transformed)
    }

    fn embed(&self, sim: &Sim, run: &Run, ids: &Tensor, training: bool) -> Tensor {
        let e = &self.e;
        sim.scope(Scope::Embedding);
        let words = sim.embedding(ids, &self.words, e.hidden);
        let kinds = tokens(sim, run.batch * run.length);
        let types = sim.embedding(&kinds, &self.types, e.hidden);
        let mut sum = sim.add(&words, &types);
        // BERT's positions are the same for every row; RoBERTa counts them row by row.
        let rows = if e.style == EncoderStyle::Roberta { run.batch } else { 1 };
        let places = tokens(sim, rows * run.length);
        let positions = sim.embedding(&places, &self.positions, e.hidden);
        sum = sim.add(&sum, &positions);
        sum = self.norm.forward(sim, &sum);
        sim.dropout(&sum, e.hidden_dropout, training)
    }

    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, training: bool) -> Tensor {
        let e = &self.e;
        let layer = &self.layers[at];
        let h = Heads::own(run.batch, run.length, e.heads, e.heads, e.hidden / e.heads);
        let attended = within(sim, Layer::Attention, || {
            let (context, _weights) = {
                let q = layer.q.forward(sim, x);
                let k = layer.k.forward(sim, x);
                let v = layer.v.forward(sim, x);
                match run.attention(e.attention) {
                    Attention::Eager => {
                        sim.eager_attention((&q, &k, &v), h, None, false, e.attention_dropout)
                    }
                    _ => (sim.sdpa(&q, &k, &v, h, None), None),
                }
            };
            self.residual(sim, &layer.out, &layer.out_norm, &context, x, training)
        });
        within(sim, Layer::FeedForward, || {
            let inner = {
                let up = layer.up.forward(sim, &attended);
                activate(sim, e.activation, &up)
            };
            self.residual(sim, &layer.down, &layer.down_norm, &inner, &attended, training)
        })
    }

    /// `LayerNorm(dropout(dense(x)) + residual)`.
    fn residual(
        &self,
        sim: &Sim,
        dense: &Linear,
        norm: &LayerNorm,
        x: &Tensor,
        residual: &Tensor,
        training: bool,
    ) -> Tensor {
        let mut hidden = dense.forward(sim, x);
        hidden = sim.dropout(&hidden, self.e.hidden_dropout, training);
        let sum = sim.add(&hidden, residual);
        norm.forward(sim, &sum)
    }
}

impl Network for Bert {
    fn loss(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let logits = self.logits(sim, run, x);
        sim.scope(Scope::Loss);
        sim.cross_entropy(&logits, x)
    }

    fn infer(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Vec<Tensor> {
        vec![self.logits(sim, run, x)]
    }
}
