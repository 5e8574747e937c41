//! torchvision's DenseNet: every layer of a block reads the outputs of all layers before it.

use super::parts::{Linear, through_block, weight_dtype};
use super::vision::{BatchNorm, Classes, Classifier, Conv2d, conv_norm};
use super::{BuildError, Network};
use crate::eager::ops::Conv;
use crate::eager::{Run, Scope, Sim, Tensor};
use std::rc::Rc;

/// A norm with ReLU, and the convolution behind it.
type Unit = (BatchNorm, Conv2d);

struct Block {
    layers: Vec<[Unit; 2]>,
    /// To the next block: half the channels, a quarter of the pixels.
    transition: Option<Unit>,
}

struct DenseNet {
    stem: (Conv2d, BatchNorm),
    blocks: Vec<Block>,
    norm: BatchNorm,
    head: Linear,
}

/// Channels within a layer, as a multiple of those it adds.
const BOTTLENECK: u64 = 4;

pub(crate) fn build(
    sim: &Sim,
    run: &Run,
    blocks: &[u64],
    growth: u64,
    first: u64,
    classes: u64,
) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    let conv = |inputs, outputs, kernel, stride| {
        let shape =
            Conv { inputs, outputs, kernel, stride, padding: kernel / 2, groups: 1, channels_last: false };
        Conv2d::new(sim, shape, false, dtype)
    };
    let unit = |inputs, outputs, kernel| -> Unit {
        let norm = BatchNorm::new(sim, inputs, dtype);
        (norm, conv(inputs, outputs, kernel, 1))
    };
    sim.scope(Scope::Embedding);
    let stem = (conv(3, first, 7, 2), BatchNorm::new(sim, first, dtype));
    let mut channels = first;
    let mut built = Vec::with_capacity(blocks.len());
    for (at, &count) in blocks.iter().enumerate() {
        sim.scope(Scope::Block(at as u16));
        let layers = (0..count)
            .map(|_| {
                let inner = unit(channels, BOTTLENECK * growth, 1);
                channels += growth;
                [inner, unit(BOTTLENECK * growth, growth, 3)]
            })
            .collect();
        let transition = (at + 1 < blocks.len()).then(|| {
            channels /= 2;
            unit(2 * channels, channels, 1)
        });
        built.push(Block { layers, transition });
    }
    sim.scope(Scope::Head);
    let norm = BatchNorm::new(sim, channels, dtype);
    let head = Linear::new(sim, channels, classes, true, dtype);
    Ok(Classes::of(DenseNet { stem, blocks: built, norm, head }))
}

impl DenseNet {
    fn block(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, side: u64) -> Tensor {
        let mut features = vec![x.clone()];
        for [inner, outer] in &self.blocks[at].layers {
            let bottleneck = {
                let all = sim.cat(&features.iter().collect::<Vec<_>>());
                forward(sim, run, inner, &all, side)
            };
            features.push(forward(sim, run, outer, &bottleneck, side));
        }
        sim.cat(&features.iter().collect::<Vec<_>>())
    }
}

fn forward(sim: &Sim, run: &Run, (norm, conv): &Unit, x: &Tensor, side: u64) -> Tensor {
    let normed = sim.relu_(norm.forward(sim, x));
    conv.forward(sim, run, &normed, side).0
}

impl Classifier for DenseNet {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        sim.scope(Scope::Embedding);
        let (mut hidden, mut side) = conv_norm(sim, run, &self.stem, x, run.length, true);
        side = (side + 2 - 3) / 2 + 1;
        hidden = sim.max_pool(&hidden, run.batch * self.stem.0.shape.outputs * side * side);
        for (at, block) in self.blocks.iter().enumerate() {
            let (model, again) = (Rc::clone(self), run.clone());
            let dense = move |sim: &Sim, x: &Tensor| model.block(sim, &again, at, x, side);
            hidden = through_block(sim, run, at, &hidden, dense);
            if let Some(unit) = &block.transition {
                hidden = forward(sim, run, unit, &hidden, side);
                side /= 2;
                hidden = sim.pooled_to(&hidden, run.batch * unit.1.shape.outputs * side * side);
            }
        }
        sim.scope(Scope::Head);
        hidden = self.norm.forward(sim, &hidden);
        hidden = sim.relu_(hidden);
        hidden = sim.mean(&hidden, side * side);
        self.head.forward(sim, &hidden)
    }
}
