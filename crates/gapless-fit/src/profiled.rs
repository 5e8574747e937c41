//! A model as the search sees it, drawn from a simulated step instead of closed forms: the simulation counts the bytes
//! that each block keeps and needs, and its operations. The share that tensor parallelism cuts is still the closed
//! forms'.

use crate::eager::Run;
use crate::formulas::activations::PerToken;
use crate::formulas::head::{self, Loss};
use crate::formulas::parameters::Divided;
use crate::model::{Architecture, Attention, Vision};
use crate::models::BuildError;
use crate::search::profile::{Kind, Profile};
use crate::settings::Precision;
use crate::simulated_blocks::{BlockProfile, SimulatedBlocks, simulate_blocks};

/// The search's profile of `architecture`, exact at `run`'s length and precision; for one sequence.
///
/// # Errors
/// As [`crate::eager::simulate`].
pub fn block_profile(name: &str, architecture: &Architecture, run: &Run) -> Result<Profile, BuildError> {
    let run = Run { batch: 1, ..run.clone() };
    let exact = simulate_blocks(architecture, &run)?;
    let precision = run.precision;
    // The search counts a picture by its length too: all per-token figures here are shares of one sequence or picture.
    let tokens = run.length as f64;
    let width = precision.bytes().activation as f64;
    let mut drawn = match architecture {
        Architecture::Decoder(decoder) => Profile::from_decoder(name, decoder),
        _ => plain(name, architecture, &exact, tokens, precision.residual() as f64),
    };
    drawn.selective = drawn.selective && run.attention.is_none_or(|a| a == Attention::Eager);
    for (at, kind) in drawn.kinds.iter_mut().enumerate() {
        // Blocks of a kind are alike to the search. Their kept bytes are the mean, so that the sum is right (the first
        // one keeps its input too, which the model holds on to). Their momentary bytes are those of the most demanding
        // one.
        let blocks = || drawn.order.iter().zip(&exact.blocks).filter(move |(k, _)| **k == at).map(|(_, b)| b);
        let most = |value: &dyn Fn(&BlockProfile) -> u64| blocks().map(value).max().unwrap_or(0) as f64;
        let closed = kind.kept(precision);
        let kept_by_all: u64 = blocks().map(|block| block.saved).sum();
        let saved = (kept_by_all as f64 / blocks().count().max(1) as f64 - closed.once).max(0.0);
        let guess = closed.total(run.length) * tokens;
        let share = if guess > 0.0 { saved / guess } else { 0.0 };
        let kept = if share > 0.0 {
            PerToken {
                wide: closed.wide * share,
                cut: closed.cut * share,
                core: closed.core * share,
                scores: closed.scores * share,
                once: closed.once,
            }
        } else {
            PerToken { cut: saved / tokens, ..PerToken::default() }
        };
        kind.kept = vec![(precision, kept)];
        let beyond = |bytes: f64| bytes.max(0.0) / tokens / width;
        kind.forward_working = beyond(most(&|b| b.forward_peak.saturating_sub(b.saved)));
        // Gradients of weights are counted apart; the gradient of the block's output is there when its backward
        // begins.
        kind.backward_working = beyond(most(&|b| {
            let again = b.recompute_peak.saturating_sub(b.saved);
            (b.backward_peak.max(again) + b.input)
                .saturating_sub(b.weight_bytes + b.saved.min(b.backward_peak))
        }))
        .max(kind.backward_working.min(kind.forward_working));
    }
    if !matches!(architecture, Architecture::Decoder(_)) {
        drawn.vocab = vocab(&drawn, &exact.head, tokens, precision);
    }
    Ok(drawn)
}

/// The vocabulary with which the closed form of the loss gives the simulated head's bytes: losses differ in how many
/// copies of the logits they make.
fn vocab(drawn: &Profile, head: &BlockProfile, tokens: f64, precision: Precision) -> u64 {
    let peak = head.forward_peak.max(head.saved + head.backward_peak) as f64 / tokens;
    let beside = 5.0 * precision.bytes().activation as f64 * drawn.hidden as f64;
    let fitting = (peak - beside) / head::factor(precision, Loss::Released);
    fitting.max(1.0) as u64
}

/// An architecture without closed forms of its own: every block that differs is a kind, and tensor parallelism cuts it
/// only if it has heads.
fn plain(
    name: &str,
    architecture: &Architecture,
    exact: &SimulatedBlocks,
    tokens: f64,
    residual: f64,
) -> Profile {
    let (heads, hidden, vocab) = match architecture {
        Architecture::Encoder(e) => (e.heads, e.hidden, e.vocab),
        Architecture::EncoderDecoder(e) => (e.heads, e.hidden, e.vocab),
        Architecture::Vision(Vision::Vit { heads, hidden, classes, .. }) => (*heads, *hidden, *classes),
        _ => (1, 1, 1000),
    };
    let mut seen: Vec<BlockProfile> = Vec::new();
    let mut kinds = Vec::new();
    let mut order = Vec::new();
    for block in &exact.blocks {
        let kind = seen.iter().position(|other| other == block).unwrap_or_else(|| {
            seen.push(*block);
            kinds.push(Kind {
                parameters: Divided { sharded: block.parameters, ..Divided::default() },
                kept: Vec::new(),
                input: block.input as f64 / tokens / residual,
                forward_working: 0.0,
                backward_working: 0.0,
                flops: block.flops as f64 / tokens,
                core_flops: 0.0,
                kv: 0.0,
                latent: false,
                routed: 0.0,
                adapter: 0.0,
            });
            seen.len() - 1
        });
        order.push(kind);
    }
    Profile {
        name: name.to_owned(),
        kinds,
        order,
        first: Divided { sharded: exact.embedding.parameters, ..Divided::default() },
        last: Divided { sharded: exact.head.parameters, ..Divided::default() },
        tied: false,
        hidden,
        heads,
        kv_heads: heads,
        vocab,
        experts: 0,
        largest: exact.parts().map(|part| part.parameters).max().unwrap_or(0),
        selective: false,
    }
}
