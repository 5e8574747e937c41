//! torchvision's residual networks.

use super::parts::{Linear, through_block, weight_dtype};
use super::vision::{BatchNorm, Classes, Classifier, Conv2d, conv_norm};
use super::{BuildError, Network};
use crate::eager::ops::Conv;
use crate::eager::{Run, Scope, Sim, Tensor};
use std::rc::Rc;

type Unit = (Conv2d, BatchNorm);

struct Block {
    convs: Vec<Unit>,
    downsample: Option<Unit>,
}

struct ResNet {
    stem: Unit,
    blocks: Vec<Block>,
    head: Linear,
    features: u64,
}

pub(crate) fn build(
    sim: &Sim,
    run: &Run,
    stages: &[u64],
    bottleneck: bool,
    groups: u64,
    base_width: u64,
    classes: u64,
) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    let unit = |inputs, outputs, kernel, stride, groups| {
        let shape =
            Conv { inputs, outputs, kernel, stride, padding: kernel / 2, groups, channels_last: false };
        (Conv2d::new(sim, shape, false, dtype), BatchNorm::new(sim, outputs, dtype))
    };
    sim.scope(Scope::Embedding);
    let stem = unit(3, 64, 7, 2, 1);
    let mut inputs = 64;
    let mut blocks = Vec::new();
    for (stage, &count) in stages.iter().enumerate() {
        let planes = 64u64 << stage;
        let outputs = if bottleneck { 4 * planes } else { planes };
        for at in 0..count {
            sim.scope(Scope::Block(blocks.len() as u16));
            let stride = if at == 0 && stage > 0 { 2 } else { 1 };
            let convs = if bottleneck {
                let width = planes * base_width / 64 * groups;
                vec![
                    unit(inputs, width, 1, 1, 1),
                    unit(width, width, 3, stride, groups),
                    unit(width, outputs, 1, 1, 1),
                ]
            } else {
                vec![unit(inputs, planes, 3, stride, 1), unit(planes, planes, 3, 1, 1)]
            };
            let downsample = (stride != 1 || inputs != outputs).then(|| unit(inputs, outputs, 1, stride, 1));
            blocks.push(Block { convs, downsample });
            inputs = outputs;
        }
    }
    sim.scope(Scope::Head);
    let head = Linear::new(sim, inputs, classes, true, dtype);
    Ok(Classes::of(ResNet { stem, blocks, head, features: inputs }))
}

impl ResNet {
    fn block(&self, sim: &Sim, run: &Run, block: &Block, x: &Tensor, side: u64) -> Tensor {
        let mut out = x.clone();
        let mut out_side = side;
        for (at, unit) in block.convs.iter().enumerate() {
            (out, out_side) = conv_norm(sim, run, unit, &out, out_side, at + 1 < block.convs.len());
        }
        let identity = match &block.downsample {
            Some(unit) => conv_norm(sim, run, unit, x, side, false).0,
            None => x.clone(),
        };
        let out = sim.add_(out, &identity);
        sim.relu_(out)
    }
}

impl Classifier for ResNet {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        sim.scope(Scope::Embedding);
        let (mut hidden, mut side) = conv_norm(sim, run, &self.stem, x, run.length, true);
        side = (side + 2 - 3) / 2 + 1;
        hidden = sim.max_pool(&hidden, run.batch * 64 * side * side);
        for (at, block) in self.blocks.iter().enumerate() {
            let (model, again) = (Rc::clone(self), run.clone());
            let residual = move |sim: &Sim, x: &Tensor| model.block(sim, &again, &model.blocks[at], x, side);
            hidden = through_block(sim, run, at, &hidden, residual);
            side = block.convs.iter().fold(side, |side, (conv, _)| conv.shape.side(side));
        }
        sim.scope(Scope::Head);
        let pooled = sim.mean(&hidden, hidden.n / (run.batch * self.features));
        self.head.forward(sim, &pooled)
    }
}
