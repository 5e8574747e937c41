//! Vision transformers: torchvision's (with `nn.MultiheadAttention`) and Hugging Face's.

use super::parts::{LayerNorm, Linear, activate, through_block, weight_dtype, within};
use super::vision::{Classes, Classifier, Conv2d};
use super::{BuildError, Network};
use crate::eager::ops::{Conv, Heads};
use crate::eager::tensor::Param;
use crate::eager::{Layer, Run, Scope, Sim, Tensor};
use crate::model::{Activation, Dtype};
use std::rc::Rc;

/// The numbers of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: u64,
    pub(crate) hidden: u64,
    pub(crate) heads: u64,
    pub(crate) intermediate: u64,
    pub(crate) patch: u64,
    pub(crate) image: u64,
    pub(crate) classes: u64,
    pub(crate) hugging_face: bool,
}

#[allow(clippy::large_enum_variant)] // there is one for each block
enum Attention {
    /// One matrix for queries, keys and values, in the order of tokens first.
    Packed {
        weight: Param,
        bias: Param,
        out: Linear,
    },
    Apart {
        q: Linear,
        k: Linear,
        v: Linear,
        out: Linear,
    },
}

struct Block {
    norm_1: LayerNorm,
    attention: Attention,
    norm_2: LayerNorm,
    up: Linear,
    down: Linear,
}

struct Vit {
    s: Shape,
    class: Param,
    positions: Param,
    patches: Conv2d,
    layers: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

pub(crate) fn build(sim: &Sim, run: &Run, s: Shape) -> Result<Rc<dyn Network>, BuildError> {
    if s.patch == 0 || s.heads == 0 || !run.length.is_multiple_of(s.patch) {
        return Err(BuildError::Shape(format!(
            "an image of {} pixels a side is not a whole number of patches of {}: choose a multiple of {}",
            run.length, s.patch, s.patch
        )));
    }
    let dtype = weight_dtype(run);
    sim.scope(Scope::Embedding);
    let shape = Conv {
        inputs: 3,
        outputs: s.hidden,
        kernel: s.patch,
        stride: s.patch,
        padding: 0,
        groups: 1,
        channels_last: false,
    };
    let class = sim.param(&[1, 1, s.hidden], dtype);
    // torchvision's is built for the images that it sees.
    let image = if s.hugging_face { s.image } else { run.length };
    let count = (image / s.patch) * (image / s.patch) + 1;
    let (patches, positions) = if s.hugging_face {
        let positions = sim.param(&[1, count, s.hidden], dtype);
        (Conv2d::new(sim, shape, true, dtype), positions)
    } else {
        let patches = Conv2d::new(sim, shape, true, dtype);
        (patches, sim.param(&[1, count, s.hidden], dtype))
    };
    let layers = (0..s.layers)
        .map(|at| {
            sim.scope(Scope::Block(at as u16));
            let linear = |i, o| Linear::new(sim, i, o, true, dtype);
            let norm = || LayerNorm::new(sim, s.hidden, dtype);
            let norm_1 = norm();
            let attention = if s.hugging_face {
                let (q, k, v) =
                    (linear(s.hidden, s.hidden), linear(s.hidden, s.hidden), linear(s.hidden, s.hidden));
                Attention::Apart { q, k, v, out: linear(s.hidden, s.hidden) }
            } else {
                let weight = sim.param(&[3 * s.hidden, s.hidden], dtype);
                let bias = sim.param(&[3 * s.hidden], dtype);
                Attention::Packed { weight, bias, out: linear(s.hidden, s.hidden) }
            };
            let norm_2 = norm();
            let up = linear(s.hidden, s.intermediate);
            Block { norm_1, attention, norm_2, up, down: linear(s.intermediate, s.hidden) }
        })
        .collect();
    sim.scope(Scope::Head);
    let norm = LayerNorm::new(sim, s.hidden, dtype);
    let head = Linear::new(sim, s.hidden, s.classes, true, dtype);
    Ok(Classes::of(Vit { s, class, positions, patches, layers, norm, head }))
}

impl Vit {
    /// torchvision's hidden states lie with tokens first, so each norm copies them for a moment.
    fn normed(&self, sim: &Sim, norm: &LayerNorm, x: &Tensor) -> Tensor {
        if self.s.hugging_face { norm.forward(sim, x) } else { norm.forward_strided(sim, x) }
    }

    fn layer(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, tokens: u64) -> Tensor {
        let (s, layer) = (self.s, &self.layers[at]);
        let h = Heads::own(run.batch, tokens, s.heads, s.heads, s.hidden / s.heads);
        let mut hidden = self.normed(sim, &layer.norm_1, x);
        hidden = within(sim, Layer::Attention, || match &layer.attention {
            Attention::Apart { q, k, v, out } => {
                let context = {
                    let q = q.forward(sim, &hidden);
                    let k = k.forward(sim, &hidden);
                    let v = v.forward(sim, &hidden);
                    sim.sdpa(&q, &k, &v, h, None)
                };
                out.forward(sim, &context)
            }
            Attention::Packed { weight, bias, out } => {
                let all = self.packed(sim, &hidden, weight, bias);
                let third = all.n / 3;
                let part = || {
                    let part = sim.slice(&all, third);
                    if all.dtype == Dtype::F32 { sim.copied_back(&part) } else { part }
                };
                let (q, k, v) = (part(), part(), part());
                drop(all);
                let mut context = sim.sdpa(&q, &k, &v, h, None);
                if context.dtype == Dtype::F32 {
                    context = sim.contiguous(&context);
                }
                let out = out.forward(sim, &context);
                sim.copied_back(&out)
            }
        });
        let residual = sim.add(&hidden, x);
        drop(hidden);
        let fed = within(sim, Layer::FeedForward, || {
            let normed = self.normed(sim, &layer.norm_2, &residual);
            let mut inner = layer.up.forward(sim, &normed);
            inner = activate(sim, Activation::Gelu, &inner);
            layer.down.forward(sim, &inner)
        });
        sim.add(&residual, &fed)
    }

    /// `nn.MultiheadAttention`'s projection: tokens first by a copy, the product and the bias apart, and then three
    /// parts by a copy.
    fn packed(&self, sim: &Sim, x: &Tensor, weight: &Param, bias: &Param) -> Tensor {
        let b = sim.for_product(&bias.tensor);
        let w = sim.for_product(&weight.tensor);
        let product = {
            let cast = sim.for_product(x);
            let ordered = sim.contiguous(&cast);
            drop(cast);
            let w = Param { tensor: w, ..weight.clone() };
            sim.linear(&ordered, &w, None, 3 * self.s.hidden)
        };
        let sum = sim.add(&product, &b);
        drop(product);
        let back = sim.copied_back(&sum);
        drop(sum);
        sim.contiguous(&back)
    }
}

impl Classifier for Vit {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let s = self.s;
        sim.scope(Scope::Embedding);
        let tokens = (run.length / s.patch) * (run.length / s.patch) + 1;
        let mut hidden = {
            let (patches, _) = self.patches.forward(sim, run, x, run.length);
            let class = sim.spread(&self.class.tensor, run.batch);
            sim.cat(&[&class, &patches])
        };
        hidden = sim.add(&hidden, &self.positions.tensor);
        for at in 0..self.layers.len() {
            let (model, again) = (Rc::clone(self), run.clone());
            let layer = move |sim: &Sim, x: &Tensor| model.layer(sim, &again, at, x, tokens);
            hidden = through_block(sim, run, at, &hidden, layer);
        }
        sim.scope(Scope::Head);
        hidden = self.normed(sim, &self.norm, &hidden);
        let first = sim.slice(&hidden, run.batch * s.hidden);
        self.head.forward(sim, &first)
    }
}
