//! torchvision's MobileNet and EfficientNet.

use super::parts::{Linear, through_block, weight_dtype, within};
use super::vision::{BatchNorm, Classes, Classifier, Conv2d};
use super::{BuildError, Network};
use crate::eager::ops::Conv;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Inverted, InvertedBlock, InvertedFamily};
use std::rc::Rc;

type Unit = (Conv2d, BatchNorm);

struct Block {
    s: InvertedBlock,
    expand: Option<Unit>,
    each: Unit,
    squeeze: Option<(Conv2d, Conv2d)>,
    project: Unit,
}

struct Network2d {
    family: InvertedFamily,
    stem: Unit,
    blocks: Vec<Block>,
    last: Unit,
    inner: Option<Linear>,
    head: Linear,
}

/// Dropout before the classifier: its probability does not matter to memory.
const DROPOUT: f64 = 0.2;

pub(crate) fn build(sim: &Sim, run: &Run, network: &Inverted) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    let shape = |inputs, outputs, kernel, stride, groups| Conv {
        inputs,
        outputs,
        kernel,
        stride,
        padding: (kernel - 1) / 2,
        groups,
        channels_last: false,
    };
    let unit = |inputs, outputs, kernel, stride, groups| -> Unit {
        let conv = Conv2d::new(sim, shape(inputs, outputs, kernel, stride, groups), false, dtype);
        (conv, BatchNorm::new(sim, outputs, dtype))
    };
    sim.scope(Scope::Embedding);
    let stem = unit(3, network.stem, 3, 2, 1);
    let mut blocks = Vec::with_capacity(network.blocks.len());
    for (at, &s) in network.blocks.iter().enumerate() {
        sim.scope(Scope::Block(at as u16));
        let expand = (s.expanded != s.inputs).then(|| unit(s.inputs, s.expanded, 1, 1, 1));
        let each = unit(s.expanded, s.expanded, s.kernel, s.stride, s.expanded);
        let squeeze = (s.squeeze > 0).then(|| {
            let first = Conv2d::new(sim, shape(s.expanded, s.squeeze, 1, 1, 1), true, dtype);
            (first, Conv2d::new(sim, shape(s.squeeze, s.expanded, 1, 1, 1), true, dtype))
        });
        blocks.push(Block { s, expand, each, squeeze, project: unit(s.expanded, s.outputs, 1, 1, 1) });
    }
    sim.scope(Scope::Head);
    let from = network.blocks.last().map_or(network.stem, |block| block.outputs);
    let last = unit(from, network.last, 1, 1, 1);
    let inner = (network.inner > 0).then(|| Linear::new(sim, network.last, network.inner, true, dtype));
    let from = if network.inner > 0 { network.inner } else { network.last };
    let head = Linear::new(sim, from, network.classes, true, dtype);
    Ok(Classes::of(Network2d { family: network.family, stem, blocks, last, inner, head }))
}

impl Network2d {
    /// A convolution, its norm, and the activation in place.
    fn unit(&self, sim: &Sim, run: &Run, unit: &Unit, x: &Tensor, side: u64, hard: bool) -> (Tensor, u64) {
        let (out, side) = unit.0.forward(sim, run, x, side);
        let out = unit.1.forward(sim, &out);
        (self.activated(sim, out, hard), side)
    }

    fn activated(&self, sim: &Sim, x: Tensor, hard: bool) -> Tensor {
        match self.family {
            _ if hard => sim.keeps_copy("hardswish_", x),
            InvertedFamily::EfficientNet => sim.keeps_copy("silu_", x),
            // ReLU6.
            InvertedFamily::MobileNetV2 => sim.keeps_copy("hardtanh_", x),
            InvertedFamily::MobileNetV3 => sim.relu_(x),
        }
    }

    fn block(&self, sim: &Sim, run: &Run, at: usize, x: &Tensor, side: u64) -> Tensor {
        let block = &self.blocks[at];
        let hard = block.s.hard;
        let mut out = match &block.expand {
            Some(expand) => self.unit(sim, run, expand, x, side, hard).0,
            None => x.clone(),
        };
        let mut side = side;
        (out, side) = self.unit(sim, run, &block.each, &out, side, hard);
        if let Some((first, second)) = &block.squeeze {
            out = within(sim, Layer::Convolution, || {
                let pooled = sim.mean(&out, side * side);
                let mut scale = first.forward(sim, run, &pooled, 1).0;
                drop(pooled);
                if self.family == InvertedFamily::EfficientNet {
                    scale = sim.keeps_copy("silu_", scale);
                    scale = second.forward(sim, run, &scale, 1).0;
                    scale = sim.keeps_output("sigmoid", &scale);
                } else {
                    scale = sim.keeps_output("relu", &scale);
                    scale = second.forward(sim, run, &scale, 1).0;
                    scale = sim.activation("hardsigmoid", &scale);
                }
                sim.mul(&scale, &out)
            });
        }
        out = block.project.0.forward(sim, run, &out, side).0;
        out = block.project.1.forward(sim, &out);
        if !block.s.adds() {
            return out;
        }
        match self.family {
            InvertedFamily::MobileNetV2 => sim.add(x, &out),
            InvertedFamily::MobileNetV3 => sim.add_(out, x),
            InvertedFamily::EfficientNet => {
                // The first block is never left out.
                if run.mode == Mode::Train && at > 0 {
                    let noise = sim.alloc(run.batch, out.dtype);
                    out = sim.mul_rows(&out, &noise);
                }
                sim.add_(out, x)
            }
        }
    }
}

impl Classifier for Network2d {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let training = run.mode == Mode::Train;
        sim.scope(Scope::Embedding);
        let hard = self.family == InvertedFamily::MobileNetV3;
        let (mut hidden, mut side) = self.unit(sim, run, &self.stem, x, run.length, hard);
        for (at, block) in self.blocks.iter().enumerate() {
            let (model, again) = (Rc::clone(self), run.clone());
            let residual = move |sim: &Sim, x: &Tensor| model.block(sim, &again, at, x, side);
            hidden = through_block(sim, run, at, &hidden, residual);
            side = block.each.0.shape.side(side);
        }
        sim.scope(Scope::Head);
        (hidden, side) = self.unit(sim, run, &self.last, &hidden, side, hard);
        hidden = sim.mean(&hidden, side * side);
        if let Some(inner) = &self.inner {
            let out = inner.forward(sim, &hidden);
            hidden = sim.keeps_copy("hardswish_", out);
        }
        hidden = match self.family {
            InvertedFamily::MobileNetV2 => sim.dropout(&hidden, DROPOUT, training),
            _ => sim.dropout_(hidden, training),
        };
        self.head.forward(sim, &hidden)
    }
}
