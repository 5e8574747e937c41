//! Layers that torchvision's models share: convolutions with their norms, the classifier's loss, images.

use super::Network;
use super::parts::{weight_dtype, within};
use crate::eager::ops::Conv;
use crate::eager::tensor::Param;
use crate::eager::{Kind, Layer, Run, Scope, Sim, Tensor};
use crate::model::Dtype;
use std::rc::Rc;

/// `nn.Conv2d`.
pub(crate) struct Conv2d {
    weight: Param,
    bias: Option<Param>,
    pub(crate) shape: Conv,
}

impl Conv2d {
    pub(crate) fn new(sim: &Sim, shape: Conv, bias: bool, dtype: Dtype) -> Conv2d {
        let weight =
            sim.param(&[shape.outputs, shape.inputs / shape.groups, shape.kernel, shape.kernel], dtype);
        let bias = bias.then(|| sim.param(&[shape.outputs], dtype));
        Conv2d { weight, bias, shape }
    }

    /// The output, and its side.
    pub(crate) fn forward(&self, sim: &Sim, run: &Run, x: &Tensor, side: u64) -> (Tensor, u64) {
        let out = within(sim, Layer::Convolution, || {
            sim.conv(x, &self.weight, self.bias.as_ref(), self.shape, run.batch, side)
        });
        (out, self.shape.side(side))
    }
}

/// `nn.BatchNorm2d`, with its running figures.
pub(crate) struct BatchNorm {
    weight: Param,
    bias: Param,
    channels: u64,
    _buffers: [Tensor; 3],
}

impl BatchNorm {
    pub(crate) fn new(sim: &Sim, channels: u64, dtype: Dtype) -> BatchNorm {
        let weight = sim.param(&[channels], dtype);
        let bias = sim.param(&[channels], dtype);
        let running = |n, dtype| sim.alloc_as(n, dtype, Kind::Input);
        let buffers = [running(channels, dtype), running(channels, dtype), running(1, Dtype::I64)];
        BatchNorm { weight, bias, channels, _buffers: buffers }
    }

    pub(crate) fn forward(&self, sim: &Sim, x: &Tensor) -> Tensor {
        if sim.grad_enabled.get() {
            within(sim, Layer::Norm, || sim.batch_norm(x, &self.weight, &self.bias, self.channels))
        } else {
            sim.begin("batch_norm");
            sim.like(x)
        }
    }
}

/// A convolution, its norm, and the activation in place if wanted.
pub(crate) fn conv_norm(
    sim: &Sim,
    run: &Run,
    (conv, norm): &(Conv2d, BatchNorm),
    x: &Tensor,
    side: u64,
    relu: bool,
) -> (Tensor, u64) {
    let (out, side) = conv.forward(sim, run, x, side);
    let out = norm.forward(sim, &out);
    (if relu { sim.relu_(out) } else { out }, side)
}

/// A batch of images.
fn images(sim: &Sim, run: &Run) -> Tensor {
    sim.scope(Scope::Embedding);
    sim.begin("input");
    sim.alloc_as(run.batch * 3 * run.length * run.length, weight_dtype(run), Kind::Input)
}

/// `cross_entropy(out.float(), labels)`.
fn class_loss(sim: &Sim, run: &Run, logits: &Tensor) -> Tensor {
    sim.scope(Scope::Loss);
    sim.begin("labels");
    let labels = sim.alloc_as(run.batch, Dtype::I64, Kind::Input);
    let logits = sim.to(logits, Dtype::F32);
    sim.cross_entropy(&logits, &labels)
}

/// A network that sorts images into classes.
pub(crate) trait Classifier {
    fn logits(self: &Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor;
}

/// Any classifier, as a step runs it.
pub(crate) struct Classes<T>(Rc<T>);

impl<T: Classifier + 'static> Classes<T> {
    pub(crate) fn of(network: T) -> Rc<dyn Network> {
        Rc::new(Classes(Rc::new(network)))
    }
}

impl<T: Classifier> Network for Classes<T> {
    fn batch(&self, sim: &Sim, run: &Run) -> Tensor {
        images(sim, run)
    }

    fn loss(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Tensor {
        let logits = self.0.logits(sim, run, x);
        class_loss(sim, run, &logits)
    }

    fn infer(self: Rc<Self>, sim: &Sim, run: &Run, x: &Tensor) -> Vec<Tensor> {
        vec![self.0.logits(sim, run, x)]
    }
}
