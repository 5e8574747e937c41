//! The loss head: logits, log-softmax and their gradients are often the peak of a step.

use super::Term;
use crate::settings::Precision;

/// The way in which the loss is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// transformers: logits upcast to fp32, the caller keeps the logits.
    HuggingFace,
    /// As above with the logits released before backward.
    Released,
    /// Cross entropy in the logits' own type.
    SameType,
    /// Fused with the projection, in chunks of so many tokens (Liger, cut cross entropy).
    Chunked(u64),
}

/// Bytes a token and vocabulary entry at the worst of backward.
#[must_use]
pub fn factor(precision: Precision, loss: Loss) -> f64 {
    let wide = precision == Precision::Fp32;
    match (loss, wide) {
        (Loss::HuggingFace, false) => 14.0,
        (Loss::HuggingFace, true) => 16.0,
        (Loss::Released | Loss::SameType, true) => 12.0,
        (Loss::Released, false) => 12.0,
        (Loss::SameType, false) => 6.0,
        (Loss::Chunked(_), _) => 4.0,
    }
}

/// The head's peak for T tokens, its vocabulary cut by t.
#[must_use]
pub fn peak(tokens: u64, vocab: u64, t: u64, precision: Precision, loss: Loss) -> Term {
    let x = factor(precision, loss);
    let rows = if let Loss::Chunked(chunk) = loss { chunk.min(tokens) } else { tokens };
    Term::bytes(
        "loss head",
        x * rows as f64 * vocab as f64 / t as f64,
        "x V T / t: logits, log-softmax and both gradients",
        &[("x", x), ("V", vocab as f64), ("T", rows as f64), ("t", t as f64)],
        "transformers' ForCausalLMLoss, counted by live storage",
    )
}

/// Autocast's 16-bit copy of the head's weights, which stays until its backward.
#[must_use]
pub fn autocast_copy(vocab: u64, hidden: u64, t: u64, precision: Precision) -> Term {
    let x = if precision.is_autocast() { 2.0 } else { 0.0 };
    Term::bytes(
        "copy of the head's weights",
        x * (vocab * hidden) as f64 / t as f64,
        "x V h / t",
        &[("x", x), ("V", vocab as f64), ("h", hidden as f64), ("t", t as f64)],
        "torch.autocast's cache, which autograd keeps",
    )
}

/// Bytes that the head keeps from forward to backward.
#[must_use]
pub fn saved(tokens: u64, vocab: u64, precision: Precision) -> Term {
    let logits = precision.bytes().activation as f64;
    Term::bytes(
        "logits and log-softmax",
        (logits + 4.0) * (tokens * vocab) as f64,
        "(x + 4) V T",
        &[("x", logits), ("V", vocab as f64), ("T", tokens as f64)],
        "transformers' ForCausalLMLoss, counted with saved-tensor hooks",
    )
}
