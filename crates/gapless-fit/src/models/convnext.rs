//! torchvision's ConvNeXt.

use super::parts::{LayerNorm, Linear, activate, weight_dtype, within};
use super::vision::{Classes, Classifier, Conv2d};
use super::{BuildError, Network};
use crate::eager::ops::Conv;
use crate::eager::tensor::Param;
use crate::eager::{Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::Activation;
use std::rc::Rc;

struct Block {
    conv: Conv2d,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    scale: Param,
}

struct Stage {
    blocks: Vec<Block>,
    /// Between stages.
    down: Option<(LayerNorm, Conv2d)>,
}

struct ConvNext {
    channels: Vec<u64>,
    stem: (Conv2d, LayerNorm),
    stages: Vec<Stage>,
    norm: LayerNorm,
    head: Linear,
}

fn shape(inputs: u64, outputs: u64, kernel: u64, stride: u64, padding: u64, groups: u64) -> Conv {
    Conv { inputs, outputs, kernel, stride, padding, groups, channels_last: inputs != 3 }
}

pub(crate) fn build(
    sim: &Sim,
    run: &Run,
    channels: &[u64],
    blocks: &[u64],
    classes: u64,
) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    let (Some(&first), Some(&last)) = (channels.first(), channels.last()) else {
        return Err(BuildError::Shape("ConvNeXt needs at least one stage".to_owned()));
    };
    if channels.len() != blocks.len() {
        return Err(BuildError::Shape("ConvNeXt's stages need channels and blocks each".to_owned()));
    }
    sim.scope(Scope::Embedding);
    let stem =
        (Conv2d::new(sim, shape(3, first, 4, 4, 0, 1), true, dtype), LayerNorm::new(sim, first, dtype));
    let mut count = 0;
    let stages = channels
        .iter()
        .zip(blocks)
        .enumerate()
        .map(|(stage, (&width, &many))| {
            let blocks = (0..many)
                .map(|_| {
                    sim.scope(Scope::Block(count));
                    count += 1;
                    let scale = sim.param(&[width, 1, 1], dtype);
                    Block {
                        conv: Conv2d::new(sim, shape(width, width, 7, 1, 3, width), true, dtype),
                        norm: LayerNorm::new(sim, width, dtype),
                        up: Linear::new(sim, width, 4 * width, true, dtype),
                        down: Linear::new(sim, 4 * width, width, true, dtype),
                        scale,
                    }
                })
                .collect();
            let down = channels.get(stage + 1).map(|&next| {
                let norm = LayerNorm::new(sim, width, dtype);
                (norm, Conv2d::new(sim, shape(width, next, 2, 2, 0, 1), true, dtype))
            });
            Stage { blocks, down }
        })
        .collect();
    sim.scope(Scope::Head);
    let norm = LayerNorm::new(sim, last, dtype);
    let head = Linear::new(sim, last, classes, true, dtype);
    Ok(Classes::of(ConvNext { channels: channels.to_vec(), stem, stages, norm, head }))
}

impl ConvNext {
    fn block(&self, sim: &Sim, run: &Run, block: &Block, x: Tensor, side: u64, drops: bool) -> Tensor {
        let mut result = within(sim, Layer::FeedForward, || {
            let mut inner = block.conv.forward(sim, run, &x, side).0;
            inner = block.norm.forward(sim, &inner);
            inner = block.up.forward(sim, &inner);
            inner = activate(sim, Activation::Gelu, &inner);
            inner = block.down.forward(sim, &inner);
            let inner = sim.copied_back(&inner);
            sim.mul(&block.scale.tensor, &inner)
        });
        if drops {
            let noise = sim.alloc(run.batch, result.dtype);
            result = sim.mul_rows(&result, &noise);
        }
        sim.add_(result, &x)
    }
}

impl Classifier for ConvNext {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let training = run.mode == Mode::Train;
        sim.scope(Scope::Embedding);
        let (mut hidden, mut side) = self.stem.0.forward(sim, run, x, run.length);
        hidden = self.stem.1.forward_strided(sim, &hidden);
        let mut at = 0;
        for (number, stage) in self.stages.iter().enumerate() {
            // The caller of a stage holds the stage's input.
            let given = hidden.clone();
            for (place, block) in stage.blocks.iter().enumerate() {
                sim.scope(Scope::Block(at));
                // The first block is never left out.
                let drops = training && at > 0;
                hidden = if training && run.checkpoints(usize::from(at)) {
                    let (model, run) = (Rc::clone(self), run.clone());
                    let again = move |sim: &Sim, x: &Tensor| {
                        let block = &model.stages[number].blocks[place];
                        model.block(sim, &run, block, x.clone(), side, drops)
                    };
                    sim.checkpoint(&hidden, Rc::new(again))
                } else {
                    self.block(sim, run, block, hidden, side, drops)
                };
                at += 1;
            }
            drop(given);
            if let Some((norm, conv)) = &stage.down {
                hidden = norm.forward(sim, &hidden);
                (hidden, side) = conv.forward(sim, run, &hidden, side);
            }
        }
        sim.scope(Scope::Head);
        let width = self.channels.last().copied().unwrap_or(1);
        let pooled = sim.mean(&hidden, hidden.n / (run.batch * width));
        let pooled = self.norm.forward(sim, &pooled);
        self.head.forward(sim, &pooled)
    }
}
