//! Scaled dot-product attention: the kernel that PyTorch takes on Hopper, the tensors that it keeps, and its workspace.

use crate::eager::sim::{Grads, Sim};
use crate::eager::tensor::Tensor;
use crate::model::Dtype;

/// The shape of one attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub batch: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub queries: u64,
    pub keys: u64,
    /// Of queries and keys.
    pub dim: u64,
    pub value_dim: u64,
}

impl Heads {
    /// Of whole sequences that attend to themselves.
    #[must_use]
    pub fn own(batch: u64, length: u64, heads: u64, kv_heads: u64, dim: u64) -> Heads {
        Heads { batch, heads, kv_heads, queries: length, keys: length, dim, value_dim: dim }
    }

    fn rows(&self) -> u64 {
        self.batch * self.heads * self.queries
    }

    fn scores(&self) -> u64 {
        self.rows() * self.keys
    }

    /// Of both products, without regard to a mask.
    fn flops(&self) -> u64 {
        2 * self.scores() * (self.dim + self.value_dim)
    }
}

impl Sim {
    /// `scaled_dot_product_attention`, causal or over everything. A mask of bytes becomes one of numbers, for each
    /// layer again, and is kept.
    ///
    /// 16-bit tensors go to cuDNN's kernel (heads of up to 128, as its backward pass needs), or to flash attention;
    /// 32-bit ones to the memory-efficient kernel, which knows no groups of heads: with these the scores become a
    /// tensor.
    pub fn sdpa(&self, q: &Tensor, k: &Tensor, v: &Tensor, h: Heads, mask: Option<&Tensor>) -> Tensor {
        let (v, k, q) = match self.amp.get() {
            Some(_) => (self.for_product(v), self.for_product(k), self.for_product(q)),
            None => (v.clone(), k.clone(), q.clone()),
        };
        self.count(h.flops());
        let bias = mask.map(|_| {
            self.begin("where");
            self.alloc(h.batch * h.queries * h.keys, q.dtype)
        });
        if q.dtype == Dtype::F32 {
            return if h.heads == h.kv_heads {
                self.efficient(&q, &k, &v, h, bias.as_ref())
            } else {
                self.written_out(&q, &k, &v, h)
            };
        }
        if h.dim <= 128 && h.value_dim <= 128 {
            self.cudnn(&q, &k, &v, h, bias.as_ref())
        } else {
            self.flash(&q, &k, &v, h)
        }
    }

    /// cuDNN: keeps inputs, output, and a number a row. Its backward sums the queries' gradient in 32 bits, and keys'
    /// and values' for every query head if these share them.
    fn cudnn(&self, q: &Tensor, k: &Tensor, v: &Tensor, h: Heads, bias: Option<&Tensor>) -> Tensor {
        let mut op = self.op("_scaled_dot_product_cudnn_attention", &[q, k, v]);
        op.save(q);
        op.save(k);
        op.save(v);
        if let Some(bias) = bias {
            op.save(bias);
        }
        let out = self.alloc(h.rows() * h.value_dim, q.dtype);
        let wanted = op.wanted();
        let row = if wanted { self.alloc(h.rows(), Dtype::F32) } else { self.alloc(0, Dtype::F32) };
        let (seed, offset) = (self.alloc(1, Dtype::I64), self.alloc(1, Dtype::I64));
        self.touch(256);
        op.save(&out);
        op.save(&row);
        op.save(&seed);
        op.save(&offset);
        let sizes = [q.n, k.n, v.n];
        op.finish(out, move |s, c| {
            s.begin("_scaled_dot_product_cudnn_attention_backward");
            let grads = grads_of(s, sizes, c.grad().dtype);
            let mut workspace = h.rows() * h.dim * 4 + h.rows() * 4 + 256;
            if h.heads != h.kv_heads {
                workspace += h.batch * h.heads * h.keys * (h.dim + h.value_dim) * 2;
            }
            s.touch(workspace);
            grads
        })
    }

    /// Flash attention: as cuDNN's, with the sums padded to 128 rows and 32 columns.
    fn flash(&self, q: &Tensor, k: &Tensor, v: &Tensor, h: Heads) -> Tensor {
        let mut op = self.op("_scaled_dot_product_flash_attention", &[q, k, v]);
        op.save(q);
        op.save(k);
        op.save(v);
        let out = self.alloc(h.rows() * h.value_dim, q.dtype);
        let row = self.alloc(h.rows(), Dtype::F32);
        let state = self.alloc(2, Dtype::I64);
        op.save(&out);
        op.save(&row);
        op.save(&state);
        let sizes = [q.n, k.n, v.n];
        op.finish(out, move |s, c| {
            s.begin("_scaled_dot_product_flash_attention_backward");
            let grads = grads_of(s, sizes, c.grad().dtype);
            let rounded = h.queries.next_multiple_of(128);
            let row = s.alloc(h.batch * h.heads * rounded, Dtype::F32);
            let sum = s.alloc(h.batch * h.heads * rounded * h.dim.next_multiple_of(32), Dtype::F32);
            let shared = (h.heads != h.kv_heads)
                .then(|| s.alloc(h.batch * h.heads * h.keys * (h.dim + h.value_dim), Dtype::Bf16));
            drop((row, sum, shared));
            grads
        })
    }

    /// The memory-efficient kernel for 32 bits: its backward keeps blocks of 64 x 64 of the queries' gradient.
    fn efficient(&self, q: &Tensor, k: &Tensor, v: &Tensor, h: Heads, bias: Option<&Tensor>) -> Tensor {
        let mut op = self.op("_scaled_dot_product_efficient_attention", &[q, k, v]);
        op.save(q);
        op.save(k);
        op.save(v);
        if let Some(bias) = bias {
            op.save(bias);
        }
        let out = self.alloc(h.rows() * h.value_dim, q.dtype);
        let padded = h.batch * h.heads * h.queries.next_multiple_of(32);
        let row = self.alloc(if op.wanted() { padded } else { 0 }, Dtype::F32);
        op.save(&out);
        op.save(&row);
        let sizes = [q.n, k.n, v.n];
        op.finish(out, move |s, c| {
            s.begin("_scaled_dot_product_efficient_attention_backward");
            let grads = grads_of(s, sizes, c.grad().dtype);
            let delta = s.alloc(h.rows(), Dtype::F32);
            let blocks = h.batch * h.heads * h.queries.div_ceil(64) * h.dim.div_ceil(64);
            s.touch(
                blocks * (64 * 64 * 4 + if h.queries.is_multiple_of(64) && h.dim <= 64 { 256 } else { 16 }),
            );
            drop(delta);
            grads
        })
    }

    /// PyTorch's own attention in single operators, for 32-bit tensors whose query heads share keys.
    fn written_out(&self, q: &Tensor, k: &Tensor, v: &Tensor, h: Heads) -> Tensor {
        let q = self.scale(q);
        let mask = {
            let ones = self.alloc(h.queries * h.keys, Dtype::Bool);
            let lower = self.alloc(h.queries * h.keys, Dtype::Bool);
            drop(ones);
            let mask = self.alloc(h.queries * h.keys, q.dtype);
            drop(lower);
            mask
        };
        let repeat = h.heads / h.kv_heads;
        let k = self.repeat_heads(k, repeat);
        let v = self.repeat_heads(v, repeat);
        let k = self.scale(&k);
        let q = self.contiguous(&q);
        let scores = self.bmm(&q, &k, h.scores());
        drop(q);
        let scores = self.add(&scores, &mask);
        let weights = self.safe_softmax(&scores, h);
        drop(scores);
        let out = self.bmm(&weights, &v, h.rows() * h.value_dim);
        self.contiguous(&out)
    }

    /// Hugging Face's eager attention: scores, softmax and dropout as tensors. `full`: softmax in 32 bits whatever the
    /// type. The weights are given back too, and the block holds them to its end.
    pub fn eager_attention(
        &self,
        (q, k, v): (&Tensor, &Tensor, &Tensor),
        h: Heads,
        mask: Option<&Tensor>,
        full: bool,
        dropout: f64,
    ) -> (Tensor, Option<Tensor>) {
        self.count(h.flops());
        let repeat = h.heads / h.kv_heads;
        let dtype = q.dtype;
        let (k, v) = (self.repeat_heads(k, repeat), self.repeat_heads(v, repeat));
        let mut weights = {
            // Transposed heads are copied before a batched product; repeated ones were already.
            let scores = {
                let (k, q) = (self.for_product(&k), self.for_product(q));
                let q = self.contiguous(&q);
                let k = if repeat == 1 { self.contiguous(&k) } else { k };
                self.bmm(&q, &k, h.scores())
            };
            self.scale(&scores)
        };
        if let Some(mask) = mask {
            weights = self.add(&weights, mask);
        }
        weights = {
            let scores = if full { self.to(&weights, Dtype::F32) } else { self.for_full(&weights) };
            let probabilities = self.softmax(&scores, scores.dtype);
            drop(scores);
            if full { self.to(&probabilities, dtype) } else { probabilities }
        };
        if !full {
            weights = self.to(&weights, v.dtype);
        }
        weights = self.dropout(&weights, dropout, self.grad_enabled.get());
        let out = {
            let (v, weights) = (self.for_product(&v), self.for_product(&weights));
            let v = if repeat == 1 { self.contiguous(&v) } else { v };
            self.bmm(&weights, &v, h.rows() * h.value_dim)
        };
        (self.contiguous(&out), Some(weights))
    }

    /// `scaled_dot_product_attention` with a bias that wants a gradient: no kernel gives one, so the scores become a
    /// tensor, in 32 bits whatever the type. `strided`: keys and values are transposed views.
    pub fn biased_attention(
        &self,
        (q, k, v): (&Tensor, &Tensor, &Tensor),
        h: Heads,
        bias: &Tensor,
        dropout: f64,
        strided: bool,
    ) -> Tensor {
        self.count(h.flops());
        let (bias, v, k, q) =
            (self.for_product(bias), self.for_product(v), self.for_product(k), self.for_product(q));
        let amp = self.amp.replace(None);
        let dtype = q.dtype;
        let (q, k, v) = (self.to(&q, Dtype::F32), self.to(&k, Dtype::F32), self.to(&v, Dtype::F32));
        let weights = {
            let scores = {
                let (q, k) = (self.scale(&q), self.scale(&k));
                let q = self.contiguous(&q);
                let k = if strided { self.contiguous(&k) } else { k };
                self.bmm(&q, &k, h.scores())
            };
            let biased = self.add(&scores, &bias);
            drop(scores);
            self.safe_softmax(&biased, h)
        };
        let weights = self.dropout(&weights, dropout, true);
        let given = (dtype != Dtype::F32).then(|| self.alloc(weights.n, dtype));
        let v = if strided { self.contiguous(&v) } else { v };
        let out = self.bmm(&weights, &v, h.rows() * h.value_dim);
        let out = self.to(&out, dtype);
        drop((given, weights));
        self.amp.set(amp);
        self.contiguous(&out)
    }

    /// `expand` and `reshape`: a copy for each query head; the gradient is summed back.
    pub fn repeat_heads(&self, x: &Tensor, repeat: u64) -> Tensor {
        if repeat == 1 {
            return x.clone();
        }
        let op = self.op("clone", &[x]);
        let out = self.alloc(x.n * repeat, x.dtype);
        let n = x.n;
        op.finish(out, move |s, c| {
            s.begin("sum");
            vec![Some(s.alloc(n, c.grad().dtype))]
        })
    }

    fn safe_softmax(&self, x: &Tensor, h: Heads) -> Tensor {
        let mut op = self.op("_safe_softmax", &[x]);
        let out = self.like(x);
        let masked = self.alloc(x.n, Dtype::Bool);
        let rows = self.alloc(h.rows(), Dtype::Bool);
        self.touch(4);
        drop((masked, rows));
        op.save(&out);
        op.finish(out, |s, c| {
            s.begin("_softmax_backward_data");
            let product = s.like(c.grad());
            let out = s.like(c.grad());
            drop(product);
            vec![Some(out)]
        })
    }

    /// A mask made once for all layers: of bytes for `sdpa`, one for the whole batch; of numbers for eager attention,
    /// one for each.
    pub fn mask(&self, h: Heads, numbers: Option<Dtype>) -> Tensor {
        self.begin("mask");
        let n = h.queries * h.keys;
        let parts = (self.alloc(n, Dtype::Bool), self.alloc(n, Dtype::Bool));
        let bytes = self.alloc(n, Dtype::Bool);
        drop(parts);
        match numbers {
            Some(dtype) => self.alloc(h.batch * n, dtype),
            None => bytes,
        }
    }
}

fn grads_of(s: &Sim, sizes: [u64; 3], dtype: Dtype) -> Grads {
    sizes.iter().map(|&n| Some(s.alloc(n, dtype))).collect()
}
