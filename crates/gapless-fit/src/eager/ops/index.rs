//! Looking up rows, and the operators of expert layers.

use crate::eager::sim::Sim;
use crate::eager::tensor::{Param, Tensor};
use crate::model::Dtype;

impl Sim {
    /// `nn.Embedding` of rows of `width`. Past 3072 indices the gradient is summed by segments, for which there is a
    /// bound only.
    pub fn embedding(&self, indices: &Tensor, weight: &Param, width: u64) -> Tensor {
        let w = &weight.tensor;
        let mut op = self.op("embedding", &[w]);
        op.save(indices);
        let out = self.alloc(indices.n * width, w.dtype);
        let (n, count) = (w.n, indices.n);
        op.finish(out, move |s, c| {
            s.begin("embedding_dense_backward");
            let dtype = c.grad().dtype;
            if count <= 3072 {
                return vec![Some(s.alloc(n, dtype))];
            }
            let (sorted, order) = (s.alloc(count, Dtype::I64), s.alloc(count, Dtype::I64));
            s.touch(4 * 8 * count);
            let out = s.alloc(n, dtype);
            let segments = count.min(n / width);
            let offsets = s.alloc(3 * segments, Dtype::I64);
            let partial = count / 10 + segments;
            let starts = s.alloc(partial, Dtype::I64);
            s.touch(partial * width.next_multiple_of(32) * 4);
            drop((sorted, order, offsets, starts));
            vec![Some(out)]
        })
    }

    /// `x[indices]` along the first dimension, rows of `width`.
    pub fn index_rows(&self, x: &Tensor, indices: &Tensor, width: u64) -> Tensor {
        let mut op = self.op("index", &[x]);
        op.save(indices);
        let (out, n, count) = (self.alloc(indices.n * width, x.dtype), x.n, indices.n);
        op.finish(out, move |s, c| {
            s.begin("index_put");
            let out = s.alloc(n, c.grad().dtype);
            s.touch(32 * count);
            vec![Some(out)]
        })
    }

    /// `masked_fill`: the mask has one byte a row.
    pub fn masked_fill(&self, x: &Tensor, mask: &Tensor) -> Tensor {
        let mut op = self.op("masked_fill", &[x]);
        op.save(mask);
        let out = self.like(x);
        op.finish(out, |s, c| {
            s.begin("masked_fill");
            vec![Some(s.like(c.grad()))]
        })
    }

    /// The same in place.
    pub fn masked_fill_(&self, x: Tensor, mask: &Tensor) -> Tensor {
        let mut op = self.op("masked_fill_", &[&x]);
        op.save(mask);
        op.finish(x, |s, c| {
            s.begin("masked_fill");
            vec![Some(s.like(c.grad()))]
        })
    }

    /// `_grouped_mm`: rows sorted by expert times each expert's matrix. Autocast does not know it.
    pub fn grouped_mm(&self, x: &Tensor, weight: &Param, rows: u64, outputs: u64) -> Tensor {
        let w = &weight.tensor;
        let mut op = self.op("_grouped_mm", &[x, w]);
        if w.requires_grad() {
            op.save(x);
        }
        if x.requires_grad() {
            op.save(w);
        }
        let out = self.alloc(rows * outputs, x.dtype);
        self.count(2 * x.n * outputs);
        let pointers = if x.dtype == Dtype::F32 { 0 } else { 68_096 };
        self.touch(pointers);
        let (x_n, w_n) = (x.n, w.n);
        op.finish(out, move |s, c| {
            s.begin("_grouped_mm");
            let dtype = c.grad().dtype;
            let of_w = c.needs[1].then(|| s.alloc(w_n, dtype));
            s.touch(pointers);
            s.begin("_grouped_mm");
            let of_x = c.needs[0].then(|| s.alloc(x_n, dtype));
            s.touch(pointers);
            vec![of_x, of_w]
        })
    }

    /// The sum over `k` neighbours of rows; the gradient is spread by a copy.
    pub fn sum_groups(&self, x: &Tensor, k: u64) -> Tensor {
        let op = self.op("sum", &[x]);
        let (out, n) = (self.alloc(x.n / k, x.dtype), x.n);
        op.finish(out, move |s, c| {
            s.begin("clone");
            vec![Some(s.alloc(n, c.grad().dtype))]
        })
    }

    /// `topk` of `k` from rows of `of`: values, and their places.
    pub fn topk(&self, x: &Tensor, k: u64, of: u64) -> (Tensor, Tensor) {
        let mut op = self.op("topk", &[x]);
        let n = x.n / of * k;
        let values = self.alloc(n, x.dtype);
        let indices = self.alloc(n, Dtype::I64);
        op.save(&indices);
        let (whole, dtype) = (x.n, x.dtype);
        let values = op.finish(values, move |s, _| {
            s.begin("scatter");
            vec![Some(s.alloc(whole, dtype))]
        });
        (values, indices)
    }
}

impl Sim {
    /// A new tensor of `n` elements, filled by two assignments to slices: `a`, and `b` spread over `heads`. Each
    /// assignment's gradient copies the whole and the part.
    pub fn filled(&self, a: &Tensor, b: &Tensor, n: u64, heads: u64) -> Tensor {
        let op = self.op("copy_", &[a, b]);
        let out = self.alloc(n, a.dtype);
        let (a_n, b_n) = (a.n, b.n);
        op.finish(out, move |s, c| {
            let dtype = c.grad().dtype;
            s.begin("copy_");
            let whole = s.alloc(n, dtype);
            let part = s.alloc(b_n * heads, dtype);
            drop(s.alloc(b_n * heads, dtype));
            let again = s.alloc(n, dtype);
            drop(whole);
            let of_a = s.alloc(a_n, dtype);
            drop(again);
            s.begin("sum");
            let of_b = s.alloc(b_n, dtype);
            drop(part);
            vec![Some(of_a), Some(of_b)]
        })
    }
}
