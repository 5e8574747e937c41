//! Bytes that one layer keeps for backward, by implementation and by the way in which it is cut.

use super::Term;
use crate::model::{Activation, Attention, Decoder};
use crate::settings::Precision;

/// The part that is recomputed, in Korthikanti's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    None,
    /// The attention core, whose tensors grow with s^2.
    Selective,
    Full,
}

/// The fused GPT layer of Megatron-LM: s, b, h, a, tensor degree t, sequence parallelism.
#[must_use]
pub fn megatron(
    s: u64,
    b: u64,
    h: u64,
    a: u64,
    t: u64,
    sequence_parallel: bool,
    recompute: Recompute,
) -> Term {
    let (sbh, core, t_) = ((s * b * h) as f64, 5.0 * (a * s) as f64 / h as f64, t as f64);
    let (value, equation) = match (recompute, t, sequence_parallel) {
        (Recompute::None, 1, _) => (sbh * (34.0 + core), "s b h (34 + 5 a s / h)"),
        (Recompute::None, _, false) => {
            (sbh * (10.0 + 24.0 / t_ + core / t_), "s b h (10 + 24 / t + 5 a s / (h t))")
        }
        (Recompute::None, _, true) => (sbh / t_ * (34.0 + core), "s b h / t (34 + 5 a s / h)"),
        (Recompute::Selective, _, false) => (sbh * (10.0 + 24.0 / t_), "s b h (10 + 24 / t)"),
        (Recompute::Selective, _, true) => (34.0 * sbh / t_, "34 s b h / t"),
        (Recompute::Full, _, _) => (2.0 * sbh, "2 s b h"),
    };
    Term::bytes(
        "activations of a layer",
        value,
        equation,
        &[("s", s as f64), ("b", b as f64), ("h", h as f64), ("a", a as f64), ("t", t_)],
        "Korthikanti et al. 2022, table 2",
    )
}

/// Factor on the activations of all layers that the first stage holds with interleaved 1F1B: 1 + (p - 1) / (p v); 1 if
/// nothing is interleaved.
#[must_use]
pub fn interleave_penalty(p: u64, v: u64) -> f64 {
    if v > 1 { 1.0 + (p - 1) as f64 / (p * v) as f64 } else { 1.0 }
}

/// Activations outside the stage's layers: embedding dropout, and with one stage the final norm, the head's input and
/// fp32 logits.
#[must_use]
pub fn megatron_ends(s: u64, b: u64, h: u64, vocab: u64, p: u64, t: u64) -> Term {
    let (sbh, t_) = ((s * b * h) as f64, t as f64);
    let tail = if p == 1 { 4.0 * sbh * (1.0 + vocab as f64 / h as f64) / t_ } else { 0.0 };
    Term::bytes(
        "activations outside of layers",
        sbh * p as f64 / t_ + tail,
        "s b h p / t + [p = 1] 4 s b h / t (1 + V / h)",
        &[("s", s as f64), ("b", b as f64), ("h", h as f64), ("V", vocab as f64), ("p", p as f64), ("t", t_)],
        "Korthikanti et al. 2022, section 4.3",
    )
}

/// One more forward of the attention core, as a share of a step's operations: counted strictly, and as the paper prints
/// it.
#[must_use]
pub fn selective_overhead(s: u64, h: u64) -> (f64, f64) {
    (s as f64 / (18 * h) as f64, s as f64 / (6 * h) as f64)
}

/// Bytes a token of one layer, split by the way in which tensor parallelism divides them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerToken {
    /// Tensors of the residual stream's width: replicated, or cut with sequence parallelism.
    pub wide: f64,
    /// Cut by tensor parallelism.
    pub cut: f64,
    /// The part of `cut` that the attention core keeps: selective recomputation drops it.
    pub core: f64,
    /// Times the length: attention scores if they are tensors (also cut, also the core's).
    pub scores: f64,
    /// Once, whatever the tokens, cut: autocast's copies of the layer's weights.
    pub once: f64,
}

impl PerToken {
    /// Of one token in a sequence of `length`, uncut.
    #[must_use]
    pub fn total(&self, length: u64) -> f64 {
        self.wide + self.cut + self.scores * length as f64
    }
}

/// The fused block of Megatron with Transformer Engine: fused norms, flash attention, fused gate, 16 bits, no dropout.
#[must_use]
pub fn fused(decoder: &Decoder) -> PerToken {
    let Decoder { hidden: h, heads: a, kv_heads: k, head_dim: d, intermediate: f, .. } = *decoder;
    let core = (4 * a * d + 4 * k * d + 4 * a) as f64;
    PerToken { wide: (8 * h) as f64, cut: core + (6 * f) as f64, core, ..PerToken::default() }
}

/// As Hugging Face's eager execution saves it, with attention `sdpa` (its flash kernel) or `eager`.
///
/// Styles without coefficients of their own take Llama's (RMS norm, gate) or GPT-2's (layer norm, five-operator GELU)
/// by their family.
#[must_use]
pub fn eager(decoder: &Decoder, precision: Precision, layer: u64) -> PerToken {
    let (h, a, k, d) =
        (decoder.hidden as f64, decoder.heads as f64, decoder.kv_heads as f64, decoder.head_dim as f64);
    let f = decoder.intermediate as f64;
    let x = precision.bytes().activation as f64;
    let autocast = precision.is_autocast();
    let scores = decoder.attention == Attention::Eager;
    let ungated = !decoder.style.is_gated();
    let normed = decoder.style.has_head_norms();
    // On CUDA, flash kernels want 16 bits and the memory-efficient ones know no grouped heads: then scores are tensors,
    // keys and values repeated.
    let math = !scores && precision == Precision::Fp32 && decoder.kv_heads != decoder.heads;
    let mut kept = PerToken::default();
    if ungated {
        let dropout = if decoder.residual_dropout > 0.0 { 2.0 * x * h } else { 0.0 };
        let square = if decoder.attention_dropout > 0.0 { 3.0 * x } else { 2.0 * x };
        // Of 16 h in 16 bits: queries, keys, values and the core's output are 8 h.
        let core = x * 4.0 * h + if scores { 0.0 } else { 4.0 * a };
        kept.core = core;
        // GELU written out, five operators; under CUDA's autocast `pow` and the operators after it run in fp32 (on CPU
        // it does not).
        let written = decoder.activation == Activation::GeluNew;
        kept.cut = core + if autocast && written { 16.0 } else { 5.0 * x } * f;
        kept.wide = x * 4.0 * h + dropout + if autocast { 4.0 * h + 16.0 } else { 8.0 };
        kept.scores = if scores { a * (square + if autocast { 2.0 } else { 0.0 }) } else { 0.0 };
    } else {
        let core = if math {
            4.0 * x * a * d
        } else {
            x * 2.0 * (a * d + k * d) + if scores { 0.0 } else { 4.0 * a }
        };
        let norms = if normed { 6.0 * (a * d + k * d) + 4.0 * (a + k) } else { 0.0 };
        kept.core = core;
        kept.cut = core + norms + 4.0 * x * f;
        // Two RMS norms: an fp32 copy, the normalised tensor, the output, each h wide, and fp32 scales.
        kept.wide = match precision {
            Precision::Fp32 => 24.0 * h,
            Precision::AmpBf16 | Precision::AmpFp16 => 26.0 * h,
            _ => 16.0 * h,
        } + 8.0;
        if math {
            kept.scores = x * a;
        }
        if scores {
            // Repeated keys and values, scores in both widths, probabilities.
            kept.cut += 2.0 * x * (a - k) * d;
            kept.core += 2.0 * x * (a - k) * d;
            kept.scores = 3.0 * x * a;
        }
    }
    if let Some(moe) = decoder.moe.as_ref().filter(|moe| layer >= moe.dense_layers) {
        let e = moe.top_k as f64;
        // Instead of the dense part: permuted inputs and outputs, the experts' own, routing in fp32; then the shared
        // expert.
        kept.cut -= 4.0 * x * f;
        kept.cut += 4.0 * x * e * moe.expert_intermediate as f64 + 4.0 * x * moe.shared_intermediate as f64;
        kept.wide += 2.0 * x * e * h + 4.0 * moe.experts as f64 + 40.0 * e;
    }
    if autocast {
        kept.once = 2.0 * (super::parameters::layer(decoder, layer).total() as f64 - 2.0 * h);
    }
    kept
}

/// A whole model's layers for T tokens, uncut.
#[must_use]
pub fn eager_total(decoder: &Decoder, precision: Precision, batch: u64, length: u64) -> Term {
    let tokens = (batch * length) as f64;
    let sum: f64 = (0..decoder.layers)
        .map(|layer| {
            let kept = eager(decoder, precision, layer);
            kept.total(length) * tokens + kept.once
        })
        .sum();
    Term::bytes(
        "activations",
        sum,
        "sum over layers of T (wide + cut + scores s) + once",
        &[
            ("T", tokens),
            ("L", decoder.layers as f64),
            ("h", decoder.hidden as f64),
            ("f", decoder.intermediate as f64),
        ],
        "transformers' modules in eager execution, counted with saved-tensor hooks",
    )
}

/// Dropless experts in 16 bits: bytes a token, with `imbalance` times the average load on the worst rank.
#[must_use]
pub fn moe(h: u64, experts: u64, top_k: u64, inner: u64, fused: bool, imbalance: f64) -> Term {
    let (h, e, f) = (h as f64, top_k as f64 * imbalance, inner as f64);
    let experts_part = if fused { 4.0 * e * f + 2.0 * e * f } else { 8.0 * e * f };
    Term::bytes(
        "activations of experts",
        8.0 * experts as f64 + 14.0 * top_k as f64 + 4.0 * e * h + experts_part,
        "8 E + 14 e + 2 e h + (6 or 8) e f_e + 2 e h, e times the imbalance",
        &[("E", experts as f64), ("e", top_k as f64), ("h", h), ("f_e", f), ("imbalance", imbalance)],
        "routing in fp32, permuted inputs, gate and up, outputs for the weighted sum",
    )
}

/// The extra key-value buffers of a ring over c ranks.
#[must_use]
pub fn context_ring(tokens: u64, kv_heads: u64, head_dim: u64, c: u64) -> Term {
    let value = if c > 1 { 2.0 * 4.0 * (kv_heads * head_dim) as f64 * tokens as f64 / c as f64 } else { 0.0 };
    Term::bytes(
        "ring buffers",
        value,
        "2 x 4 k d T / c",
        &[("k", kv_heads as f64), ("d", head_dim as f64), ("T", tokens as f64), ("c", c as f64)],
        "context parallelism: the block at work and the one on its way",
    )
}
