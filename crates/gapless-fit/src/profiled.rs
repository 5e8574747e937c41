//! A model as the search sees it, drawn from a simulated step instead of closed forms: the simulation counts the bytes
//! that each block keeps and needs, and its operations. The share that tensor parallelism cuts is still the closed
//! forms'.

use crate::eager::Run;
use crate::formulas::activations::PerToken;
use crate::formulas::head::{self, Loss};
use crate::formulas::parameters::Divided;
use crate::model::{Architecture, Attention, Vision};
use crate::models::{BuildError, MOST_TOKENS};
use crate::search::profile::{Kind, Profile};
use crate::settings::Precision;
use crate::simulated_blocks::{BlockProfile, SimulatedBlocks, simulate_blocks};

/// The search's profile of `architecture` at `run`'s length and precision; for one sequence.
///
/// Some bytes are there once whatever the sequences: 16-bit copies of weights, gradients on their way. Two runs tell
/// them apart, of one sequence and of the batch of `run`, for which the profile is exact. Peaks grow faster with more
/// sequences, so those between take less than the profile says.
///
/// # Errors
/// As [`crate::eager::simulate`].
pub fn block_profile(name: &str, architecture: &Architecture, run: &Run) -> Result<Profile, BuildError> {
    let batch = run.batch.min(MOST_TOKENS / run.length.max(1)).max(2);
    let one = simulate_blocks(architecture, &Run { batch: 1, ..run.clone() })?;
    let many = simulate_blocks(architecture, &Run { batch, ..run.clone() })?;
    let apart = |one: f64, many: f64| Apart::of(one, many, batch as f64);
    let precision = run.precision;
    // The search counts a picture by its length too: all per-token figures here are shares of one sequence or picture.
    let tokens = run.length as f64;
    let elements = tokens * precision.bytes().activation as f64;
    let mut drawn = match architecture {
        Architecture::Decoder(decoder) => Profile::from_decoder(name, decoder),
        _ => plain(name, architecture, &one, tokens, precision.residual() as f64),
    };
    drawn.selective = drawn.selective && run.attention.is_none_or(|a| a == Attention::Eager);
    for (at, kind) in drawn.kinds.iter_mut().enumerate() {
        // Blocks of a kind are alike to the search. Their kept bytes are the mean, so that the sum is right (the first
        // one keeps its input too, which the model holds on to). Their momentary bytes are those of the most demanding
        // one.
        let blocks = |of: &SimulatedBlocks| -> Vec<BlockProfile> {
            drawn.order.iter().zip(&of.blocks).filter(|(k, _)| **k == at).map(|(_, block)| *block).collect()
        };
        let (one, many) = (blocks(&one), blocks(&many));
        let mean = |list: &[BlockProfile]| {
            list.iter().map(|block| block.saved).sum::<u64>() as f64 / list.len().max(1) as f64
        };
        let most = |value: &dyn Fn(&BlockProfile) -> u64| {
            let most = |list: &[BlockProfile]| list.iter().map(value).max().unwrap_or(0) as f64;
            apart(most(&one), most(&many))
        };
        let saved = apart(mean(&one), mean(&many));
        let closed = kind.kept(precision);
        let guess = closed.total(run.length) * tokens;
        let share = if guess > 0.0 { saved.each / guess } else { 0.0 };
        let kept = if share > 0.0 {
            PerToken {
                wide: closed.wide * share,
                cut: closed.cut * share,
                core: closed.core * share,
                scores: closed.scores * share,
                once: saved.once,
            }
        } else {
            PerToken { cut: saved.each / tokens, once: saved.once, ..PerToken::default() }
        };
        kind.kept = vec![(precision, kept)];
        let input = most(&|b| b.input);
        kind.input_once = input.once;
        let working = most(&|b| forward_beyond(b).max(backward_beyond(b)));
        kind.backward_working = working.each / elements;
        kind.forward_working = kind.backward_working.min(most(&forward_beyond).each / elements);
        kind.working_once = working.once;
    }
    let stays = many.embedding.backward_change.max(0) as u64;
    drawn.ending = many.embedding.backward_peak.saturating_sub(stays) as f64;
    if !matches!(architecture, Architecture::Decoder(_)) {
        // The search knows no activations before the blocks: each block has its part of them.
        let blocks = drawn.order.len().max(1) as f64;
        let before = apart(one.embedding.saved as f64, many.embedding.saved as f64).each / tokens / blocks;
        let residual = precision.residual() as f64;
        for (at, kind) in drawn.kinds.iter_mut().enumerate() {
            let inputs = |of: &SimulatedBlocks| {
                let own = drawn.order.iter().zip(&of.blocks).filter(|(k, _)| **k == at);
                own.map(|(_, block)| block.input).max().unwrap_or(0) as f64
            };
            kind.input = (apart(inputs(&one), inputs(&many)).each / tokens + before) / residual;
            for (_, kept) in &mut kind.kept {
                kept.cut += before;
            }
        }
        let peak = |head: &BlockProfile| head.forward_peak.max(head.saved + head.backward_peak) as f64;
        let head = apart(peak(&one.head), peak(&many.head));
        drawn.vocab = vocab(drawn.hidden, head.each / tokens, precision);
        drawn.head_once = Some(head.once);
    }
    Ok(drawn)
}

/// Bytes of each sequence, and those once.
struct Apart {
    each: f64,
    once: f64,
}

impl Apart {
    /// From the bytes of a run of one sequence and of a run of `batch`. `once` is below 0 if the bytes grow faster with
    /// more sequences.
    fn of(one: f64, many: f64, batch: f64) -> Apart {
        let each = ((many - one) / (batch - 1.0)).max(0.0);
        Apart { each, once: one.max(many) - if many > one { each * batch } else { 0.0 } }
    }
}

/// Bytes that a block's forward holds beyond the saved ones.
fn forward_beyond(b: &BlockProfile) -> u64 {
    b.forward_peak.saturating_sub(b.saved)
}

/// Bytes that its backward holds beyond them. Gradients of weights are counted apart; the gradient of the block's
/// output is there when its backward begins.
fn backward_beyond(b: &BlockProfile) -> u64 {
    let again = b.recompute_peak.saturating_sub(b.saved);
    (b.backward_peak.max(again) + b.input).saturating_sub(b.weight_bytes + b.saved.min(b.backward_peak))
}

/// The vocabulary with which the closed form of the loss gives the simulated head's bytes of a token: losses differ in
/// how many copies of the logits they make.
fn vocab(hidden: u64, bytes: f64, precision: Precision) -> u64 {
    let beside = 5.0 * precision.bytes().activation as f64 * hidden as f64;
    ((bytes - beside) / head::factor(precision, Loss::Released)).max(1.0) as u64
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
                input_once: 0.0,
                forward_working: 0.0,
                backward_working: 0.0,
                working_once: 0.0,
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
        head_once: None,
        ending: 0.0,
        experts: 0,
        largest: exact.parts().map(|part| part.parameters).max().unwrap_or(0),
        selective: false,
    }
}
