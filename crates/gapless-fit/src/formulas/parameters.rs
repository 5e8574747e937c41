//! Parameter counts from architecture numbers. If a file's headers are there, their exact sum comes first.

use super::{Term, Unit};
use crate::model::{Decoder, DecoderStyle, Mla, Moe};

/// Parameters by the way in which parallelism divides them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divided {
    /// Matrices that tensor parallelism cuts.
    pub sharded: u64,
    /// Norms, routers, biases added after a reduction: a copy on every tensor-parallel rank.
    pub replicated: u64,
    /// Routed experts: expert parallelism cuts these.
    pub experts: u64,
}

impl Divided {
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sharded + self.replicated + self.experts
    }
}

/// GPT-style: layer norms with biases, learned positions, tied head.
#[must_use]
pub fn gpt(layers: u64, hidden: u64, vocab: u64, positions: u64) -> Term {
    let value = layers * (12 * hidden * hidden + 13 * hidden) + (vocab + positions) * hidden + 2 * hidden;
    count(
        "parameters",
        value,
        "12 L h^2 (1 + 13/(12 h)) + (V + s_max) h + 2 h",
        &[("L", layers), ("h", hidden), ("V", vocab), ("s_max", positions)],
        "Korthikanti et al. 2022, Narayanan et al. 2021, with the exact biases",
    )
}

/// Llama-style: RMS norms, no biases, gated feed-forward, grouped queries.
#[must_use]
pub fn llama(decoder: &Decoder) -> Term {
    let Decoder {
        layers, hidden: h, heads: a, kv_heads: k, head_dim: d, intermediate: f, vocab, tied, ..
    } = *decoder;
    let layer = 2 * h * a * d + 2 * h * k * d + 3 * h * f + 2 * h;
    let value = layers * layer + h + vocab * h * (1 + u64::from(!tied));
    count(
        "parameters",
        value,
        "L (2 h a d + 2 h k d + 3 h f + 2 h) + h + V h (1 + untied)",
        &[
            ("L", layers),
            ("h", h),
            ("a", a),
            ("k", k),
            ("d", d),
            ("f", f),
            ("V", vocab),
            ("untied", u64::from(!tied)),
        ],
        "the shapes of transformers' LlamaForCausalLM",
    )
}

/// Multi-head latent attention of one layer, its norms included.
#[must_use]
pub fn mla(hidden: u64, heads: u64, mla: &Mla) -> Term {
    let Mla { q_rank, kv_rank, nope_dim, rope_dim, value_dim } = *mla;
    let query = match q_rank {
        Some(rank) => rank * (hidden + heads * (nope_dim + rope_dim) + 1),
        None => hidden * heads * (nope_dim + rope_dim),
    };
    let value = query
        + kv_rank * (hidden + heads * (nope_dim + value_dim) + 1)
        + hidden * rope_dim
        + heads * value_dim * hidden;
    count(
        "parameters of latent attention",
        value,
        "q_rank (h + a (d_nope + d_rope) + 1) + kv_rank (h + a (d_nope + d_v) + 1) + h d_rope + a d_v h",
        &[
            ("q_rank", q_rank.unwrap_or(0)),
            ("kv_rank", kv_rank),
            ("h", hidden),
            ("a", heads),
            ("d_nope", nope_dim),
            ("d_rope", rope_dim),
            ("d_v", value_dim),
        ],
        "Megatron-LM, theoretical_memory_usage; the first product is h a (d_nope + d_rope) without a query rank",
    )
}

/// The feed-forward part of a layer with experts.
#[must_use]
pub fn moe(hidden: u64, moe: &Moe) -> Term {
    let value = moe.experts * 3 * hidden * moe.expert_intermediate
        + hidden * moe.experts
        + 3 * hidden * moe.shared_intermediate;
    count(
        "parameters of the experts",
        value,
        "E 3 h f_e + h E + 3 h f_s",
        &[
            ("E", moe.experts),
            ("h", hidden),
            ("f_e", moe.expert_intermediate),
            ("f_s", moe.shared_intermediate),
        ],
        "the shapes of transformers' Mixtral and DeepSeek-V3",
    )
}

fn count(
    name: &'static str,
    value: u64,
    equation: &'static str,
    inputs: &[(&'static str, u64)],
    source: &'static str,
) -> Term {
    let inputs: Vec<(&'static str, f64)> =
        inputs.iter().map(|&(symbol, value)| (symbol, value as f64)).collect();
    let term = Term::bytes(name, 0.0, equation, &inputs, source).with_unit(Unit::Parameters);
    // Counts stay integers: a float would round above 2^53.
    Term { value, ..term }
}

/// The parameters of layer `place`.
#[must_use]
pub fn layer(decoder: &Decoder, place: u64) -> Divided {
    let Decoder { hidden: h, heads: a, kv_heads: k, head_dim: d, intermediate: f, .. } = *decoder;
    let ungated = !decoder.style.is_gated();
    let mut divided = Divided::default();
    match &decoder.mla {
        Some(mla) => {
            let norms = mla.q_rank.unwrap_or(0) + mla.kv_rank;
            divided.sharded += self::mla(h, a, mla).value - norms;
            divided.replicated += norms;
        }
        None => {
            divided.sharded += h * a * d * 2 + h * k * d * 2;
            divided.sharded += if decoder.qkv_bias { (a + 2 * k) * d } else { 0 };
            divided.replicated += if decoder.out_bias { h } else { 0 };
        }
    }
    match &decoder.moe {
        Some(moe) if place >= moe.dense_layers => {
            divided.experts += moe.experts * 3 * h * moe.expert_intermediate;
            divided.replicated += h * moe.experts;
            divided.sharded += 3 * h * moe.shared_intermediate;
        }
        _ => {
            divided.sharded += if ungated { 2 } else { 3 } * h * f;
            if decoder.mlp_bias {
                divided.sharded += f;
                divided.replicated += h;
            }
        }
    }
    let norm = if ungated { 2 * h } else { h };
    let norms = if matches!(decoder.style, DecoderStyle::Gemma2 | DecoderStyle::Gemma3) { 4 } else { 2 };
    divided.replicated += norms * norm;
    if decoder.style.has_head_norms() {
        divided.replicated += 2 * d;
    }
    divided
}

/// Embedding, positions, final norm; and the head if it is not the embedding.
#[must_use]
pub fn ends(decoder: &Decoder) -> (Divided, Divided) {
    let h = decoder.hidden;
    let ungated = !decoder.style.is_gated();
    let learned = match decoder.style {
        DecoderStyle::Gpt2 => decoder.max_positions,
        // OPT's positions begin at 2.
        DecoderStyle::Opt => decoder.max_positions + 2,
        _ => 0,
    };
    let first = Divided { sharded: decoder.vocab * h, replicated: learned * h, experts: 0 };
    let norm = if ungated { 2 * h } else { h };
    let last =
        Divided { sharded: if decoder.tied { 0 } else { decoder.vocab * h }, replicated: norm, experts: 0 };
    (first, last)
}

/// All parameters of a decoder.
#[must_use]
pub fn decoder(decoder: &Decoder) -> u64 {
    let (first, last) = ends(decoder);
    (0..decoder.layers).map(|place| layer(decoder, place).total()).sum::<u64>() + first.total() + last.total()
}
