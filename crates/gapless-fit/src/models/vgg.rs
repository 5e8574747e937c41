//! torchvision's VGG.

use super::parts::{Linear, weight_dtype};
use super::vision::{BatchNorm, Classes, Classifier, Conv2d};
use super::{BuildError, Network};
use crate::eager::ops::Conv;
use crate::eager::{Mode, Run, Scope, Sim, Tensor};
use std::rc::Rc;

enum Layer {
    Conv(Box<(Conv2d, Option<BatchNorm>)>),
    Pool,
}

struct Vgg {
    layers: Vec<Layer>,
    channels: u64,
    classifier: [Linear; 3],
}

/// Pixels a side that the classifier sees, and its inner size.
const POOLED: u64 = 7;
const INNER: u64 = 4096;

pub(crate) fn build(
    sim: &Sim,
    run: &Run,
    plan: &[u64],
    batch_norm: bool,
    classes: u64,
) -> Result<Rc<dyn Network>, BuildError> {
    let dtype = weight_dtype(run);
    let mut channels = 3;
    let layers = plan
        .iter()
        .enumerate()
        .map(|(at, &outputs)| {
            sim.scope(Scope::Block(at as u16));
            if outputs == 0 {
                return Layer::Pool;
            }
            let shape = Conv {
                inputs: channels,
                outputs,
                kernel: 3,
                stride: 1,
                padding: 1,
                groups: 1,
                channels_last: false,
            };
            channels = outputs;
            let conv = Conv2d::new(sim, shape, true, dtype);
            Layer::Conv(Box::new((conv, batch_norm.then(|| BatchNorm::new(sim, outputs, dtype)))))
        })
        .collect();
    sim.scope(Scope::Head);
    let linear = |i, o| Linear::new(sim, i, o, true, dtype);
    let classifier =
        [linear(channels * POOLED * POOLED, INNER), linear(INNER, INNER), linear(INNER, classes)];
    Ok(Classes::of(Vgg { layers, channels, classifier }))
}

impl Classifier for Vgg {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let training = run.mode == Mode::Train;
        let mut hidden = x.clone();
        let mut side = run.length;
        let mut channels = 3;
        for (at, layer) in self.layers.iter().enumerate() {
            sim.scope(Scope::Block(at as u16));
            hidden = match layer {
                Layer::Conv(unit) => {
                    let (conv, norm) = &**unit;
                    channels = conv.shape.outputs;
                    let (out, _) = conv.forward(sim, run, &hidden, side);
                    let out = match norm {
                        Some(norm) => norm.forward(sim, &out),
                        None => out,
                    };
                    sim.relu_(out)
                }
                Layer::Pool => {
                    side /= 2;
                    sim.max_pool(&hidden, run.batch * channels * side * side)
                }
            };
        }
        sim.scope(Scope::Head);
        if side != POOLED {
            let n = run.batch * self.channels * POOLED * POOLED;
            hidden = sim.pooled_to(&hidden, n);
        }
        for (at, linear) in self.classifier.iter().enumerate() {
            hidden = linear.forward(sim, &hidden);
            if at < 2 {
                hidden = sim.relu_(hidden);
                hidden = sim.dropout(&hidden, 0.5, training);
            }
        }
        hidden
    }
}
