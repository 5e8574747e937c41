//! Operators that work element by element, casts, and the pieces of norms that are written out in Python.

use crate::eager::log::Kind;
use crate::eager::sim::Sim;
use crate::eager::tensor::{Edge, Tensor};
use crate::model::Dtype;

/// The type of an operator's output over two inputs.
fn promote(a: Dtype, b: Dtype) -> Dtype {
    match (a, b) {
        _ if a == b => a,
        (Dtype::F32, _) | (_, Dtype::F32) => Dtype::F32,
        (Dtype::Bf16, Dtype::F16) | (Dtype::F16, Dtype::Bf16) => Dtype::F32,
        (Dtype::Bf16 | Dtype::F16, _) => a,
        (_, Dtype::Bf16 | Dtype::F16) => b,
        _ => {
            if a.bytes() >= b.bytes() {
                a
            } else {
                b
            }
        }
    }
}

impl Sim {
    /// `x.to(dtype)`: `x` itself if it is of that type.
    pub fn to(&self, x: &Tensor, dtype: Dtype) -> Tensor {
        if x.dtype == dtype { x.clone() } else { self.cast(x, dtype, Kind::Temporary) }
    }

    fn cast(&self, x: &Tensor, dtype: Dtype, kind: Kind) -> Tensor {
        let op = self.op("_to_copy", &[x]);
        let (out, from) = (self.alloc_as(x.n, dtype, kind), x.dtype);
        op.finish(out, move |s, c| vec![Some(s.cast_grad(c.grad().clone(), from))])
    }

    /// As autocast hands a tensor to a matrix product: in its type, and a parameter's copy only once.
    pub(crate) fn for_product(&self, x: &Tensor) -> Tensor {
        let Some(dtype) = self.amp.get() else { return x.clone() };
        if x.dtype != Dtype::F32 {
            return x.clone();
        }
        // A tensor that takes no gradient is cast again at each use.
        let Some(Edge::Leaf(id)) = x.edge else { return self.to(x, dtype) };
        if let Some((_, cast)) = self.casts.borrow().iter().find(|(of, _)| *of == id) {
            return cast.clone();
        }
        let cast = self.cast(x, dtype, Kind::Cast);
        self.casts.borrow_mut().push((id, cast.clone()));
        cast
    }

    /// As autocast hands a tensor to an operator that it computes in 32 bits.
    pub(crate) fn for_full(&self, x: &Tensor) -> Tensor {
        if self.amp.get().is_some() && x.dtype.bytes() < 4 { self.to(x, Dtype::F32) } else { x.clone() }
    }

    /// Turns autocast on, or off: its copies of weights go.
    pub fn autocast(&self, dtype: Option<Dtype>) {
        self.amp.set(dtype);
        let casts = self.casts.take();
        drop(casts);
    }

    /// `a + b`, broadcast to the larger.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let op = self.op("add", &[a, b]);
        let out = self.alloc(a.n.max(b.n), promote(a.dtype, b.dtype));
        let shapes = [(a.n, a.dtype), (b.n, b.dtype)];
        op.finish(out, move |s, c| {
            shapes
                .iter()
                .zip(c.needs)
                .map(|(&(n, dtype), &needed)| needed.then(|| s.fit_grad(c.grad().clone(), n, dtype)))
                .collect()
        })
    }

    /// `a * b`, broadcast to the larger.
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let mut op = self.op("mul", &[a, b]);
        let (need_a, need_b) = (a.requires_grad(), b.requires_grad());
        // The generated code saves `other` first.
        if need_a {
            op.save(b);
        }
        if need_b {
            op.save(a);
        }
        let out = self.alloc(a.n.max(b.n), promote(a.dtype, b.dtype));
        let (of_a, of_b) = ((a.n, a.dtype), (b.n, b.dtype));
        op.finish(out, move |s, c| {
            let full = || {
                s.begin("mul");
                s.like(c.grad())
            };
            let cast = |grad: Tensor, dtype| s.cast_grad(grad, dtype);
            let second = need_b.then(|| cast(full(), of_b.1));
            let first = need_a.then(|| cast(full(), of_a.1));
            let fit = |grad: Option<Tensor>, (n, dtype)| grad.map(|g| s.fit_grad(g, n, dtype));
            let first = fit(first, of_a);
            vec![first, fit(second, of_b)]
        })
    }

    /// `x * scalar`, `x / scalar`: nothing is kept.
    pub fn scale(&self, x: &Tensor) -> Tensor {
        self.free_unary("mul", x)
    }

    /// `x + scalar`: the gradient passes through.
    pub fn shift(&self, x: &Tensor) -> Tensor {
        let op = self.op("add", &[x]);
        let out = self.like(x);
        op.finish(out, |_, c| vec![Some(c.grad().clone())])
    }

    /// One tensor in, one out; the gradient takes a tensor and nothing that was saved.
    pub fn free_unary(&self, name: &'static str, x: &Tensor) -> Tensor {
        let op = self.op(name, &[x]);
        let out = self.like(x);
        op.finish(out, move |s, c| {
            s.begin(name);
            vec![Some(s.like(c.grad()))]
        })
    }

    /// An activation that keeps its input.
    pub fn activation(&self, name: &'static str, x: &Tensor) -> Tensor {
        let mut op = self.op(name, &[x]);
        op.save(x);
        let out = self.like(x);
        op.finish(out, move |s, c| {
            s.begin(name);
            vec![Some(s.like(c.grad()))]
        })
    }

    /// A function that keeps its output.
    pub fn keeps_output(&self, name: &'static str, x: &Tensor) -> Tensor {
        let mut op = self.op(name, &[x]);
        let out = self.like(x);
        op.save(&out);
        op.finish(out, move |s, c| {
            s.begin(name);
            vec![Some(s.like(c.grad()))]
        })
    }

    /// `x.pow(k)` for a number `k`: autocast computes it in 32 bits.
    pub fn pow(&self, x: &Tensor) -> Tensor {
        let x = self.for_full(x);
        let mut op = self.op("pow", &[&x]);
        op.save(&x);
        let out = self.like(&x);
        op.finish(out, |s, c| {
            s.begin("pow");
            let power = s.like(&c.saved[0]);
            s.begin("mul");
            let scaled = s.like(&c.saved[0]);
            s.begin("mul");
            let out = s.like(c.grad());
            drop((power, scaled));
            vec![Some(out)]
        })
    }

    /// The mean over the last dimension of `width`.
    pub fn mean(&self, x: &Tensor, width: u64) -> Tensor {
        let op = self.op("mean", &[x]);
        let (out, n) = (self.alloc(x.n / width, x.dtype), x.n);
        op.finish(out, move |s, c| {
            s.begin("div");
            vec![Some(s.alloc(n, c.grad().dtype))]
        })
    }

    /// `torch.rsqrt(x)`.
    pub fn rsqrt(&self, x: &Tensor) -> Tensor {
        let mut op = self.op("rsqrt", &[x]);
        let out = self.like(x);
        op.save(&out);
        op.finish(out, |s, c| {
            s.begin("rsqrt");
            let (cube, half) = (s.like(c.grad()), s.like(c.grad()));
            let out = s.like(c.grad());
            drop((cube, half));
            vec![Some(out)]
        })
    }

    /// A tensor times one number for each row of `width`: both sides' gradients.
    pub fn mul_rows(&self, x: &Tensor, rows: &Tensor) -> Tensor {
        let mut op = self.op("mul", &[x, rows]);
        let (need_x, need_rows) = (x.requires_grad(), rows.requires_grad());
        if need_x {
            op.save(rows);
        }
        if need_rows {
            op.save(x);
        }
        let out = self.alloc(x.n, promote(x.dtype, rows.dtype));
        let (of_x, of_rows) = (x.dtype, (rows.n, rows.dtype));
        op.finish(out, move |s, c| {
            let full = || {
                s.begin("mul");
                s.like(c.grad())
            };
            let of_row = need_rows.then(&full);
            let of_x = need_x.then(|| s.cast_grad(full(), of_x));
            let of_row = of_row.map(|g| {
                s.begin("sum");
                let sum = s.alloc(of_rows.0, g.dtype);
                drop(g);
                s.cast_grad(sum, of_rows.1)
            });
            vec![of_x, of_row]
        })
    }

    /// Dropout: a mask of one byte an element is kept. Autocast leaves the type alone.
    pub fn dropout(&self, x: &Tensor, p: f64, training: bool) -> Tensor {
        if p == 0.0 || !training {
            return x.clone();
        }
        if !(self.grad_enabled.get() && x.requires_grad()) {
            self.begin("dropout");
            return self.like(x);
        }
        let mut op = self.op("native_dropout", &[x]);
        let out = self.like(x);
        let mask = self.alloc(x.n, Dtype::Bool);
        op.save(&mask);
        op.finish(out, |s, c| {
            s.begin("native_dropout_backward");
            vec![Some(s.like(c.grad()))]
        })
    }

    /// A view whose gradient must be copied to be viewed back: transposed heads.
    pub fn copied_back(&self, x: &Tensor) -> Tensor {
        let op = self.op("view", &[x]);
        op.finish(x.detach(), |s, c| {
            s.begin("clone");
            vec![Some(s.like(c.grad()))]
        })
    }

    /// `.contiguous()` of a tensor that is not: a copy. The gradient is viewed back.
    pub fn contiguous(&self, x: &Tensor) -> Tensor {
        let op = self.op("clone", &[x]);
        let out = self.like(x);
        op.finish(out, |_, c| vec![Some(c.grad().clone())])
    }

    /// A part of a tensor as a view: its gradient is a whole one with zeros.
    pub fn slice(&self, x: &Tensor, n: u64) -> Tensor {
        let op = self.op("slice", &[x]);
        let whole = x.n;
        op.finish(x.detach().view(n), move |s, c| {
            s.begin("slice_backward");
            vec![Some(s.alloc(whole, c.grad().dtype))]
        })
    }

    /// `torch.cat`: gradients are views of the whole.
    pub fn cat(&self, parts: &[&Tensor]) -> Tensor {
        let op = self.op("cat", parts);
        let dtype = parts.iter().fold(parts[0].dtype, |d, p| promote(d, p.dtype));
        let out = self.alloc(parts.iter().map(|p| p.n).sum(), dtype);
        let sizes: Vec<(u64, Dtype)> = parts.iter().map(|p| (p.n, p.dtype)).collect();
        op.finish(out, move |s, c| {
            sizes
                .iter()
                .zip(c.needs)
                .map(|(&(n, dtype), &needed)| needed.then(|| s.cast_grad(c.grad().view(n), dtype)))
                .collect()
        })
    }

    /// `split` or `chunk` or `unbind`: views; the gradients are put together.
    pub fn split(&self, x: &Tensor, sizes: &[u64]) -> Vec<Tensor> {
        let op = self.op("split", &[x]);
        let mut out: Vec<Tensor> = sizes.iter().map(|&n| x.detach().view(n)).collect();
        let (n, count) = (x.n, sizes.len());
        let sizes = sizes.to_vec();
        op.finish_many(&mut out, move |s, c| {
            // If a part got no gradient, zeros stand for it.
            let dtype = c.grads.iter().flatten().next().map_or(Dtype::F32, |g| g.dtype);
            let missing: Vec<Tensor> =
                (0..count).filter(|&i| c.grads[i].is_none()).map(|i| s.alloc(sizes[i], dtype)).collect();
            s.begin("cat");
            let out = s.alloc(n, dtype);
            drop(missing);
            vec![Some(out)]
        });
        out
    }
}
