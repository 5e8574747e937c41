//! Matrix products, plain and batched.

use crate::eager::ledger::Kernel;
use crate::eager::sim::Sim;
use crate::eager::tensor::{Param, Tensor};
use crate::model::Dtype;

impl Sim {
    /// `nn.Linear`: from `inputs` to `outputs` features. Under autocast both sides are cast, from the last argument to
    /// the first.
    pub fn linear(&self, x: &Tensor, weight: &Param, bias: Option<&Param>, outputs: u64) -> Tensor {
        if weight.kernel != Kernel::Plain {
            return self.stored_product(&self.for_product(x), weight, outputs);
        }
        let b = bias.map(|b| self.for_product(&b.tensor));
        let w = self.for_product(&weight.tensor);
        let x = self.for_product(x);
        self.product(&x, &w, b.as_ref(), outputs)
    }

    /// GPT-2's `Conv1D`: the same with the weight transposed, and the bias as first argument of the call.
    pub fn conv1d(&self, x: &Tensor, weight: &Param, bias: &Param, outputs: u64) -> Tensor {
        if weight.kernel != Kernel::Plain {
            return self.stored_product(&self.for_product(x), weight, outputs);
        }
        let w = self.for_product(&weight.tensor);
        let x = self.for_product(x);
        let b = self.for_product(&bias.tensor);
        self.product(&x, &w, Some(&b), outputs)
    }

    /// A product with a frozen weight that is stored in another format: it is dequantised for as long as the product
    /// takes, or a kernel reads it as it is.
    fn stored_product(&self, x: &Tensor, weight: &Param, outputs: u64) -> Tensor {
        let (w_n, kernel, dtype) = (weight.tensor.n, weight.kernel, x.dtype);
        let (x_n, out_n) = (x.n, x.n / (w_n / outputs) * outputs);
        let mut op = self.op("stored_mm", &[x]);
        let whole = move |s: &Sim| {
            let scales = match kernel {
                Kernel::Dequantise { scales } if scales > 0 => Some(s.alloc(scales, Dtype::F32)),
                _ => None,
            };
            let whole = s.alloc(w_n, dtype);
            (whole, scales)
        };
        let out = match kernel {
            Kernel::Int8 => {
                // It is quantised in 16 bits.
                let half = (dtype != Dtype::F16).then(|| self.alloc(x_n, Dtype::F16));
                let (bytes, scales) =
                    (self.alloc(x_n, Dtype::I8), self.alloc(x_n / (w_n / outputs), Dtype::F32));
                drop(half);
                let wide = self.alloc(out_n, Dtype::I32);
                let out = self.alloc(out_n, dtype);
                drop((wide, bytes, scales));
                op.save(x);
                out
            }
            Kernel::Direct { inputs } => {
                let bytes = inputs.then(|| self.alloc(x_n, Dtype::F8));
                let out = self.alloc(out_n, dtype);
                drop(bytes);
                out
            }
            Kernel::Dequantise { .. } | Kernel::Plain => {
                let copy = whole(self);
                let out = self.alloc(out_n, dtype);
                drop(copy);
                out
            }
        };
        self.count(2 * x_n * outputs);
        op.finish(out, move |s, _| {
            s.begin("stored_mm");
            let copy = whole(s);
            let grad = s.alloc(x_n, dtype);
            drop(copy);
            vec![Some(grad)]
        })
    }

    fn product(&self, x: &Tensor, w: &Tensor, b: Option<&Tensor>, outputs: u64) -> Tensor {
        let inputs = w.n / outputs;
        let mut op = match b {
            Some(b) => self.op("addmm", &[x, w, b]),
            None => self.op("mm", &[x, w]),
        };
        let (need_x, need_w) = (x.requires_grad(), w.requires_grad());
        if need_w {
            op.save(x);
        }
        if need_x {
            op.save(w);
        }
        let out = self.alloc(x.n / inputs * outputs, x.dtype);
        self.count(2 * x.n * outputs);
        let (x_n, w_n, b_n, dtype) = (x.n, w.n, b.map(|b| (b.n, b.dtype)), x.dtype);
        op.finish(out, move |s, c| {
            let of_x = || {
                need_x.then(|| {
                    s.begin("mm");
                    s.alloc(x_n, dtype)
                })
            };
            let of_w = || {
                need_w.then(|| {
                    s.begin("mm");
                    s.alloc(w_n, dtype)
                })
            };
            // The generated code goes through the arguments by name: mat1, mat2 and mat2, self.
            if let Some((b_n, b_type)) = b_n {
                let of_x = of_x();
                let of_w = of_w();
                let of_b = c.needs[2].then(|| s.fit_grad(c.grad().clone(), b_n, b_type));
                vec![of_x, of_w, of_b]
            } else {
                let of_w = of_w();
                vec![of_x(), of_w]
            }
        })
    }

    /// A batched product of `a` and `b` with `n` elements; the gradient of `b` comes first, as the arguments' names
    /// order them.
    pub fn bmm(&self, a: &Tensor, b: &Tensor, n: u64) -> Tensor {
        let b = self.for_product(b);
        let a = self.for_product(a);
        let mut op = self.op("bmm", &[&a, &b]);
        let (need_a, need_b) = (a.requires_grad(), b.requires_grad());
        if need_b {
            op.save(&a);
        }
        if need_a {
            op.save(&b);
        }
        let out = self.alloc(n, a.dtype);
        let (of_a, of_b) = ((a.n, a.dtype), (b.n, b.dtype));
        op.finish(out, move |s, _| {
            let b = need_b.then(|| {
                s.begin("bmm");
                s.alloc(of_b.0, of_b.1)
            });
            let a = need_a.then(|| {
                s.begin("bmm");
                s.alloc(of_a.0, of_a.1)
            });
            vec![a, b]
        })
    }
}
