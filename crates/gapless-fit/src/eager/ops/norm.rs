//! Norms and softmax as PyTorch's own operators.

use crate::eager::sim::Sim;
use crate::eager::tensor::{Param, Tensor};
use crate::model::Dtype;

impl Sim {
    /// `nn.LayerNorm` over `width`; autocast computes it in 32 bits.
    pub fn layer_norm(&self, x: &Tensor, weight: &Param, bias: &Param, width: u64) -> Tensor {
        let x = self.for_full(x);
        let mut op = self.op("native_layer_norm", &[&x, &weight.tensor, &bias.tensor]);
        op.save(&x);
        op.save(&weight.tensor);
        op.save(&bias.tensor);
        let out = self.like(&x);
        let rows = x.n / width;
        let mean = self.alloc(rows, Dtype::F32);
        let deviation = self.alloc(rows, Dtype::F32);
        op.save(&mean);
        op.save(&deviation);
        let w_type = weight.tensor.dtype;
        op.finish(out, move |s, c| {
            s.begin("native_layer_norm_backward");
            let of_x = c.needs[0].then(|| s.like(c.grad()));
            let of_w = c.needs[1].then(|| s.alloc(width, w_type));
            let of_b = c.needs[2].then(|| s.alloc(width, w_type));
            vec![of_x, of_w, of_b]
        })
    }

    /// `softmax(x, dtype)`; the gradient takes a product of gradient and output beside its own.
    pub fn softmax(&self, x: &Tensor, dtype: Dtype) -> Tensor {
        let mut op = self.op("_softmax", &[x]);
        let out = self.alloc(x.n, dtype);
        op.save(&out);
        let x_type = x.dtype;
        op.finish(out, move |s, c| {
            s.begin("_softmax_backward_data");
            let product = s.like(c.grad());
            let out = s.alloc(c.grad().n, x_type);
            drop(product);
            vec![Some(out)]
        })
    }
}
