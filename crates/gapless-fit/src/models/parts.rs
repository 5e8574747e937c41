//! Layers that several families share.

use crate::eager::tensor::Param;
use crate::eager::{Kernel, Kind, Layer, Mode, Run, Scope, Sim, Tensor};
use crate::model::{Activation, Dtype};
use crate::settings::Lora;
use std::rc::Rc;

/// The adapter behind a linear layer whose matrix is frozen, as PEFT's `Linear.forward` runs it.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    down: Param,
    up: Param,
    /// DoRA's learned norms.
    magnitude: Option<Param>,
    outputs: u64,
    lora: Lora,
}

impl Adapter {
    /// Of a layer whose weight gets one.
    pub(crate) fn new(sim: &Sim, weight: &Param, outputs: u64) -> Option<Box<Adapter>> {
        let lora = sim.lora.get().filter(|_| weight.adapted)?;
        let inputs = weight.tensor.n / outputs;
        let dtype = if lora.narrow { weight.tensor.dtype } else { Dtype::F32 };
        let down = sim.param_as(&[lora.rank, inputs], dtype, true);
        let up = sim.param_as(&[outputs, lora.rank], dtype, true);
        let magnitude = lora.dora.then(|| sim.param_as(&[outputs], dtype, true));
        Some(Box::new(Adapter { down, up, magnitude, outputs, lora }))
    }

    /// `result` is the frozen layer's output for `x`.
    pub(crate) fn forward(
        &self,
        sim: &Sim,
        x: &Tensor,
        result: Tensor,
        weight: &Param,
        bias: bool,
    ) -> Tensor {
        let before = result.dtype;
        let four = matches!(weight.kernel, Kernel::Dequantise { .. });
        // The classes for quantised layers copy the result first, and leave casts to autocast.
        let result = if four { sim.contiguous(&result) } else { result };
        let casts = !four || sim.amp.get().is_none();
        let x = if casts { sim.to(x, self.down.tensor.dtype) } else { x.clone() };
        let Some(magnitude) = &self.magnitude else {
            let dropped = if self.lora.dropout { sim.dropout(&x, 0.05, true) } else { x };
            let low = sim.linear(&dropped, &self.down, None, self.lora.rank);
            drop(dropped);
            let high = sim.linear(&low, &self.up, None, self.outputs);
            drop(low);
            let mut scaled = sim.scale(&high);
            drop(high);
            if four && casts {
                scaled = sim.to(&scaled, before);
            }
            let sum = sim.add(&result, &scaled);
            drop((scaled, result));
            return sim.to(&sum, before);
        };
        let dora = self.dora(sim, &x, &result, weight, magnitude, bias);
        let sum = sim.add(&result, &dora);
        drop((dora, result));
        sim.to(&sum, before)
    }

    /// PEFT makes the whole weight with its adapter in every pass, for its norm.
    fn dora(
        &self,
        sim: &Sim,
        x: &Tensor,
        result: &Tensor,
        weight: &Param,
        magnitude: &Param,
        bias: bool,
    ) -> Tensor {
        let (n, inputs) = (weight.tensor.n, weight.tensor.n / self.outputs);
        let dtype = self.down.tensor.dtype;
        let wanted = sim.grad_enabled.replace(false);
        sim.begin("dora");
        // No backward pass uses this product, but the tensors saved for its gradient live as long as it does.
        let eye = sim.alloc(inputs * inputs, dtype);
        let low = sim.alloc(inputs * self.lora.rank, dtype);
        let product = sim.alloc(n, dtype);
        let whole =
            (weight.tensor.dtype != dtype || weight.kernel != Kernel::Plain).then(|| sim.alloc(n, dtype));
        let norm = {
            let scaled = sim.alloc(n, dtype);
            let sum = sim.alloc(n, dtype);
            drop(scaled);
            let norm = sim.alloc(self.outputs, dtype);
            drop(sum);
            norm
        };
        sim.grad_enabled.set(wanted);
        let scale = sim.scale(&magnitude.tensor);
        let low_result = sim.linear(x, &self.down, None, self.lora.rank);
        let high = sim.linear(&low_result, &self.up, None, self.outputs);
        drop(low_result);
        let base = if bias { sim.shift(result) } else { result.clone() };
        let first = {
            let less = sim.shift(&scale);
            sim.mul(&less, &base)
        };
        let second = {
            let product = sim.mul(&scale, &high);
            drop(high);
            sim.scale(&product)
        };
        let out = sim.add(&first, &second);
        drop((first, second, base, eye, low, product, whole, norm));
        out
    }
}

/// A linear layer's parameters.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    weight: Param,
    bias: Option<Param>,
    outputs: u64,
    adapter: Option<Box<Adapter>>,
}

impl Linear {
    pub(crate) fn new(sim: &Sim, inputs: u64, outputs: u64, bias: bool, dtype: Dtype) -> Linear {
        let weight = sim.param(&[outputs, inputs], dtype);
        let bias = bias.then(|| sim.param(&[outputs], dtype));
        let adapter = Adapter::new(sim, &weight, outputs);
        Linear { weight, bias, outputs, adapter }
    }

    /// With another layer's matrix.
    pub(crate) fn tied(weight: &Param, bias: Option<Param>, outputs: u64) -> Linear {
        Linear { weight: weight.clone(), bias, outputs, adapter: None }
    }

    pub(crate) fn forward(&self, sim: &Sim, x: &Tensor) -> Tensor {
        let out = sim.linear(x, &self.weight, self.bias.as_ref(), self.outputs);
        match &self.adapter {
            Some(adapter) => adapter.forward(sim, x, out, &self.weight, self.bias.is_some()),
            None => out,
        }
    }
}

/// `nn.LayerNorm`.
#[derive(Clone, Debug)]
pub(crate) struct LayerNorm {
    weight: Param,
    bias: Param,
    width: u64,
}

impl LayerNorm {
    pub(crate) fn new(sim: &Sim, width: u64, dtype: Dtype) -> LayerNorm {
        LayerNorm { weight: sim.param(&[width], dtype), bias: sim.param(&[width], dtype), width }
    }

    pub(crate) fn forward(&self, sim: &Sim, x: &Tensor) -> Tensor {
        within(sim, Layer::Norm, || sim.layer_norm(x, &self.weight, &self.bias, self.width))
    }

    /// For a tensor that is not contiguous.
    pub(crate) fn forward_strided(&self, sim: &Sim, x: &Tensor) -> Tensor {
        within(sim, Layer::Norm, || sim.layer_norm_strided(x, &self.weight, &self.bias, self.width))
    }
}

/// Hugging Face's RMSNorm, written out in Python.
#[derive(Clone, Debug)]
pub(crate) struct RmsNorm {
    weight: Param,
    width: u64,
}

impl RmsNorm {
    pub(crate) fn new(sim: &Sim, width: u64, dtype: Dtype) -> RmsNorm {
        RmsNorm { weight: sim.param(&[width], dtype), width }
    }

    pub(crate) fn forward(&self, sim: &Sim, x: &Tensor) -> Tensor {
        within(sim, Layer::Norm, || {
            let dtype = x.dtype;
            let hidden = sim.to(x, Dtype::F32);
            let hidden = normalised(sim, hidden, self.width);
            let cast = sim.to(&hidden, dtype);
            sim.mul(&self.weight.tensor, &cast)
        })
    }

    /// Gemma's: the weight is added to one, and all of it is in 32 bits.
    pub(crate) fn forward_gemma(&self, sim: &Sim, x: &Tensor) -> Tensor {
        within(sim, Layer::Norm, || {
            let hidden = sim.to(x, Dtype::F32);
            let output = normalised(sim, hidden, self.width);
            let output = {
                let weight = sim.to(&self.weight.tensor, Dtype::F32);
                let weight = sim.shift(&weight);
                sim.mul(&output, &weight)
            };
            sim.to(&output, x.dtype)
        })
    }
}

fn normalised(sim: &Sim, hidden: Tensor, width: u64) -> Tensor {
    let variance = {
        let squares = sim.pow(&hidden);
        sim.mean(&squares, width)
    };
    let deviation = {
        let shifted = sim.shift(&variance);
        sim.rsqrt(&shifted)
    };
    sim.mul_rows(&hidden, &deviation)
}

/// Runs the block of that number; in training one that the run names is run again in the backward pass.
pub(crate) fn through_block(
    sim: &Sim,
    run: &Run,
    at: usize,
    x: &Tensor,
    block: impl Fn(&Sim, &Tensor) -> Tensor + 'static,
) -> Tensor {
    sim.scope(Scope::Block(at as u16));
    if run.mode == Mode::Train && run.checkpoints(at) {
        sim.checkpoint(x, Rc::new(block))
    } else {
        block(sim, x)
    }
}

/// Runs `code` as a layer of that kind.
pub(crate) fn within<T>(sim: &Sim, layer: Layer, code: impl FnOnce() -> T) -> T {
    let before = sim.layer(layer);
    let out = code();
    sim.layer(before);
    out
}

/// The activation of a feed-forward block.
pub(crate) fn activate(sim: &Sim, kind: Activation, x: &Tensor) -> Tensor {
    match kind {
        Activation::Gelu => sim.activation("gelu", x),
        Activation::GeluTanh => sim.activation("gelu", x),
        Activation::Silu => sim.activation("silu", x),
        Activation::Relu => sim.keeps_output("relu", x),
        Activation::GeluNew => gelu_new(sim, x),
        Activation::Quick => {
            let gate = {
                let scaled = sim.scale(x);
                sim.keeps_output("sigmoid", &scaled)
            };
            sim.mul(x, &gate)
        }
    }
}

/// GPT-2's own: `0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3)))`.
fn gelu_new(sim: &Sim, x: &Tensor) -> Tensor {
    let half = sim.scale(x);
    let inner = {
        let cube = {
            let power = sim.pow(x);
            sim.scale(&power)
        };
        let sum = sim.add(x, &cube);
        drop(cube);
        let scaled = sim.scale(&sum);
        drop(sum);
        sim.keeps_output("tanh", &scaled)
    };
    let one = sim.shift(&inner);
    drop(inner);
    sim.mul(&half, &one)
}

/// Cosines and sines of rotary positions, `[1, length, dim]` each.
pub(crate) fn rotary(sim: &Sim, length: u64, dim: u64, dtype: Dtype) -> (Tensor, Tensor) {
    sim.begin("rotary");
    let angle = || sim.alloc_as(length * dim, Dtype::F32, Kind::Input);
    let freqs = sim.alloc(length * dim / 2, Dtype::F32);
    let both = angle();
    let raw = angle();
    let cos = angle();
    drop(raw);
    let raw = angle();
    let sin = angle();
    drop(raw);
    let out = if dtype == Dtype::F32 {
        (cos, sin)
    } else {
        let cast = || sim.alloc_as(length * dim, dtype, Kind::Input);
        (cast(), cast())
    };
    drop((freqs, both));
    out
}

fn rotate_half(sim: &Sim, x: &Tensor) -> Tensor {
    let first = sim.slice(x, x.n / 2);
    let second = sim.slice(x, x.n / 2);
    let negative = sim.free_unary("neg", &second);
    sim.cat(&[&negative, &first])
}

/// `q * cos + rotate_half(q) * sin`.
pub(crate) fn rotate(sim: &Sim, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let direct = sim.mul(x, cos);
    let turned = {
        let half = rotate_half(sim, x);
        sim.mul(&half, sin)
    };
    sim.add(&direct, &turned)
}

/// The dtype that weights are kept in.
pub(crate) fn weight_dtype(run: &Run) -> Dtype {
    run.precision.weights()
}

/// Indices of one batch of tokens.
pub(crate) fn tokens(sim: &Sim, n: u64) -> Tensor {
    sim.begin("input");
    sim.alloc_as(n, Dtype::I64, Kind::Input)
}
