//! Convolutions, batch norm and pooling.
//!
//! cuDNN's tensor-core kernels want channels last: with channels first, copies of input, filter and output in that
//! order are its workspace. Workspaces that its heuristics choose beyond that were seen to vary by the shape (filters
//! of 1 x 1: the partial sums of eight parts for the filter's gradient): that part of the figure is an estimate, which
//! rarely lies at the peak.

use crate::eager::sim::Sim;
use crate::eager::tensor::{Param, Tensor};
use crate::model::Dtype;

/// A convolution's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    pub inputs: u64,
    pub outputs: u64,
    pub kernel: u64,
    pub stride: u64,
    pub padding: u64,
    pub groups: u64,
    /// True if tensors lie with their channels last already.
    pub channels_last: bool,
}

impl Conv {
    /// Pixels a side of the output.
    #[must_use]
    pub fn side(&self, side: u64) -> u64 {
        (side + 2 * self.padding).saturating_sub(self.kernel) / self.stride + 1
    }

    fn plain(&self) -> bool {
        self.kernel == 1 && self.stride == 1
    }

    fn forward_workspace(&self, x: u64, w: u64, out: u64) -> u64 {
        if self.groups > 1 {
            0
        } else if self.channels_last {
            if self.plain() { 0 } else { w }
        } else if self.plain() {
            0
        } else {
            x + out + if self.kernel > 1 { w } else { 0 }
        }
    }

    fn filter_workspace(&self, x: u64, w: u64, out: u64) -> u64 {
        if self.groups > 1 && self.groups == self.inputs && !self.channels_last {
            // PyTorch's own kernels for single channels.
            0
        } else if self.groups > 1 {
            2 * x
        } else if self.plain() {
            8 * w
        } else if self.channels_last {
            x.max(w)
        } else {
            x + out + w
        }
    }
}

impl Sim {
    /// `conv2d`: `side` pixels a side come in, `batch` images.
    pub fn conv(
        &self,
        x: &Tensor,
        weight: &Param,
        bias: Option<&Param>,
        c: Conv,
        batch: u64,
        side: u64,
    ) -> Tensor {
        let b = bias.map(|b| self.for_product(&b.tensor));
        let w = self.for_product(&weight.tensor);
        let x = self.for_product(x);
        let mut op = match &b {
            Some(b) => self.op("convolution", &[&x, &w, b]),
            None => self.op("convolution", &[&x, &w]),
        };
        let (need_x, need_w) = (x.requires_grad(), w.requires_grad());
        if need_w {
            op.save(&x);
        }
        if need_x || need_w {
            op.save(&w);
        }
        let out_side = c.side(side);
        let out = self.alloc(batch * c.outputs * out_side * out_side, x.dtype);
        self.count(2 * out.n * w.n / c.outputs);
        let sizes = [x.bytes(), w.bytes(), out.bytes()];
        self.workspace(c.forward_workspace(sizes[0], sizes[1], sizes[2]));
        let (x_n, w_n, dtype) = (x.n, w.n, x.dtype);
        op.finish(out, move |s, ctx| {
            s.begin("convolution_backward");
            let of_x = need_x.then(|| {
                let of_x = s.alloc(x_n, dtype);
                s.workspace(c.forward_workspace(sizes[2], sizes[1], sizes[0]));
                of_x
            });
            let of_w = need_w.then(|| {
                let of_w = s.alloc(w_n, dtype);
                s.workspace(c.filter_workspace(sizes[0], sizes[1], sizes[2]));
                of_w
            });
            let of_b = (ctx.needs.len() > 2 && ctx.needs[2]).then(|| s.alloc(c.outputs, dtype));
            vec![of_x, of_w, of_b]
        })
    }

    fn workspace(&self, bytes: u64) {
        if bytes > 0 {
            drop(self.alloc_as(bytes, Dtype::U8, crate::eager::Kind::Workspace));
        }
    }

    /// `nn.BatchNorm2d` in training: the input is kept, and two numbers a channel.
    pub fn batch_norm(&self, x: &Tensor, weight: &Param, bias: &Param, channels: u64) -> Tensor {
        let mut op = self.op("batch_norm", &[x, &weight.tensor, &bias.tensor]);
        op.save(x);
        op.save(&weight.tensor);
        let out = self.like(x);
        let (mean, deviation) = (self.alloc(channels, Dtype::F32), self.alloc(channels, Dtype::F32));
        op.save(&mean);
        op.save(&deviation);
        let w_type = weight.tensor.dtype;
        op.finish(out, move |s, c| {
            s.begin("batch_norm_backward");
            let of_x = s.like(c.grad());
            vec![Some(of_x), Some(s.alloc(channels, w_type)), Some(s.alloc(channels, w_type))]
        })
    }

    /// `relu_`: in place, and its output is kept.
    pub fn relu_(&self, x: Tensor) -> Tensor {
        let mut op = self.op("relu_", &[&x]);
        op.save(&x);
        op.finish(x, |s, c| {
            s.begin("threshold_backward");
            vec![Some(s.like(c.grad()))]
        })
    }

    /// An activation in place whose gradient needs its input: a copy of that is kept.
    pub fn keeps_copy(&self, name: &'static str, x: Tensor) -> Tensor {
        let mut op = self.op(name, &[&x]);
        if op.wanted() {
            let copy = self.like(&x);
            op.save(&copy);
        }
        op.finish(x, move |s, c| {
            s.begin(name);
            vec![Some(s.like(c.grad()))]
        })
    }

    /// `dropout_`: in place, and the noise is kept.
    pub fn dropout_(&self, x: Tensor, training: bool) -> Tensor {
        if !training {
            return x;
        }
        let mut op = self.op("dropout_", &[&x]);
        let noise = self.like(&x);
        op.save(&noise);
        op.finish(x, |s, c| {
            s.begin("mul");
            vec![Some(s.like(c.grad()))]
        })
    }

    /// `a += b`: both gradients are the output's.
    pub fn add_(&self, a: Tensor, b: &Tensor) -> Tensor {
        let op = self.op("add_", &[&a, b]);
        let (of_a, of_b) = (a.dtype, b.dtype);
        op.finish(a, move |s, c| {
            let grad = c.grad();
            vec![Some(s.cast_grad(grad.clone(), of_a)), Some(s.cast_grad(grad.clone(), of_b))]
        })
    }

    /// `max_pool2d` to `n` elements: the places of the largest are kept, eight bytes each.
    pub fn max_pool(&self, x: &Tensor, n: u64) -> Tensor {
        let mut op = self.op("max_pool2d_with_indices", &[x]);
        op.save(x);
        let out = self.alloc(n, x.dtype);
        let indices = self.alloc(n, Dtype::I64);
        op.save(&indices);
        let whole = x.n;
        op.finish(out, move |s, c| {
            s.begin("max_pool2d_with_indices_backward");
            vec![Some(s.alloc(whole, c.grad().dtype))]
        })
    }

    /// `layer_norm` of a tensor that is not contiguous: a copy for a moment, in both passes.
    pub fn layer_norm_strided(&self, x: &Tensor, weight: &Param, bias: &Param, width: u64) -> Tensor {
        let out = self.layer_norm(x, weight, bias, width);
        self.touch(out.bytes());
        out
    }

    /// A view that repeats a tensor for each image: its gradient is summed.
    pub fn spread(&self, x: &Tensor, batch: u64) -> Tensor {
        let op = self.op("expand", &[x]);
        let n = x.n;
        op.finish(x.detach().view(n * batch), move |s, c| {
            s.begin("sum");
            vec![Some(s.alloc(n, c.grad().dtype))]
        })
    }

    /// Adaptive pooling to `n` elements.
    pub fn pooled_to(&self, x: &Tensor, n: u64) -> Tensor {
        let mut op = self.op("_adaptive_avg_pool2d", &[x]);
        op.save(x);
        let (out, whole) = (self.alloc(n, x.dtype), x.n);
        op.finish(out, move |s, c| {
            s.begin("_adaptive_avg_pool2d_backward");
            vec![Some(s.alloc(whole, c.grad().dtype))]
        })
    }
}
