//! Keys and values kept while generating.

use super::Term;
use crate::model::Decoder;

/// Bytes of one token on one of t tensor-parallel ranks, over all layers, without a sliding window.
#[must_use]
pub fn per_token(decoder: &Decoder, bytes: f64, t: u64) -> Term {
    let layers = decoder.layers as f64;
    if let Some(mla) = &decoder.mla {
        let width = (mla.kv_rank + mla.rope_dim) as f64;
        return Term::bytes(
            "key-value cache of a token",
            layers * width * bytes,
            "L (kv_rank + d_rope) x, whole on every tensor-parallel rank",
            &[("L", layers), ("kv_rank", mla.kv_rank as f64), ("d_rope", mla.rope_dim as f64), ("x", bytes)],
            "DeepSeek-V2",
        );
    }
    let heads = decoder.kv_heads.div_ceil(t).max(1) as f64;
    let d = decoder.head_dim as f64;
    Term::bytes(
        "key-value cache of a token",
        2.0 * layers * heads * d * bytes,
        "2 L max(1, ceil(k / t)) d x",
        &[("L", layers), ("k", decoder.kv_heads as f64), ("t", t as f64), ("d", d), ("x", bytes)],
        "keys and values of each layer; heads are copied where t > k",
    )
}

/// Layers that slide, of all.
#[must_use]
pub fn sliding_layers(decoder: &Decoder) -> u64 {
    match (decoder.sliding_window, decoder.sliding_pattern) {
        (None, _) | (Some(_), 0) => 0,
        (Some(_), 1) => decoder.layers,
        (Some(_), every) => decoder.layers - decoder.layers / every,
    }
}

/// Bytes of `sequences` of `tokens` each on one rank, in pages of `page` tokens (1: not paged); sliding layers keep
/// their window.
#[must_use]
pub fn total(decoder: &Decoder, sequences: u64, tokens: u64, bytes: f64, t: u64, page: u64) -> Term {
    let token = per_token(decoder, bytes, t).value as f64 / decoder.layers as f64;
    let paged = |tokens: u64| tokens.next_multiple_of(page.max(1)) as f64;
    let sliding = sliding_layers(decoder);
    let window = decoder.sliding_window.map_or(tokens, |window| window.min(tokens));
    let sum = token * ((decoder.layers - sliding) as f64 * paged(tokens) + sliding as f64 * paged(window));
    Term::bytes(
        "key-value cache",
        sequences as f64 * sum,
        "B x_token / L ((L - L_sliding) ceil(s, page) + L_sliding ceil(min(s, window), page))",
        &[
            ("B", sequences as f64),
            ("s", tokens as f64),
            ("window", window as f64),
            ("L_sliding", sliding as f64),
            ("page", page as f64),
        ],
        "vLLM's paged attention (pages of 16)",
    )
}
