//! A forward pass whose weights stream from the host, as `gapless.stream` runs it: the memory that it takes with a
//! budget for weights, and the least time of a pass.
//!
//! Weights on the card never exceed the budget, so the peak falls by at least the rest of them. The least time is the
//! larger of two: the work of the pass, and the link's time for the weights that cannot stay. Of a table of tokens only
//! the rows of a pass cross the link, so tables count in neither. A layer's experts are one tensor in transformers, so
//! all of them cross it.

use super::asked::StreamBudget;
use super::estimate::{Estimate, Method};
use super::question::Question;
use crate::model::{Architecture, Decoder, Role};
use crate::parameters::parameters;
use crate::search::profile::Profile;
use crate::simulated::{Verdict, room};
use crate::stored::Stored;
use gapless_trace::Bytes;

/// Share of the card's peak at which a forward pass of many tokens computes: Llama 3 8B on an H200 took 55.4 ms for
/// 2,048 tokens and 538 ms for 16,384, which are 0.58 and 0.59.
const EFFICIENCY: f64 = 0.6;
/// Share of the memory's speed at which few tokens read all weights.
const READING: f64 = 0.7;
/// A budget that is chosen is a multiple of this, so that it can be written down.
const ROUND: u64 = 64 << 20;

/// Where the weights are, and the least times of passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Streamed {
    /// The most bytes of weights on the card.
    pub budget: Bytes,
    /// Bytes of all weights. The host has them pinned.
    pub weights: Bytes,
    /// Of these, tables that stay on the host.
    pub tables: Bytes,
    /// The largest weight that has to come as a whole.
    pub widest: Bytes,
    /// From the host, bytes a second.
    pub link: f64,
    /// The pass that was asked for; of a model that generates, then the pass of one token of each sequence.
    pub passes: Vec<StreamedPass>,
}

/// One kind of pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamedPass {
    /// Tokens of each sequence, or pixels a side of a picture.
    pub length: u64,
    /// Bytes that cross the link.
    pub moved: Bytes,
    /// Seconds of the link, and of the work if it is modelled.
    pub link: f64,
    pub work: Option<f64>,
    /// The budget from which the work hides the link.
    pub hidden_from: Option<Bytes>,
}

impl StreamedPass {
    /// No pass takes less, as far as its work is known.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.work.unwrap_or(0.0).max(self.link)
    }
}

/// `e`, a simulated pass with all weights on the card, with its weights within a budget instead.
pub(super) fn within(q: &Question, budget: StreamBudget, e: Estimate) -> (Estimate, Streamed) {
    let weights = e.components.iter().find(|(name, _)| *name == "weights").map_or(0, |(_, bytes)| *bytes);
    let (tables, widest) = kinds(q, weights);
    let moves = weights - tables;
    let budget = match budget {
        StreamBudget::Given(bytes) => bytes.0,
        StreamBudget::Largest => {
            let beside = e.process_total().0.saturating_sub(weights);
            let left = room(q.memory(), e.error).0.saturating_sub(beside);
            if left >= moves { moves } else { left / ROUND * ROUND }
        }
    };
    let link = q.gpu().host_gbs * 1e9;
    let generates = matches!(q.architecture, Architecture::Decoder(_)) && q.run.length > 1;
    let lengths = [q.run.length, 1];
    let passes = lengths[..if generates { 2 } else { 1 }].iter();
    let passes = passes.map(|&length| pass(q, moves, length, budget, link)).collect();
    let streamed = Streamed {
        budget: Bytes(budget),
        weights: Bytes(weights),
        tables: Bytes(tables),
        widest: Bytes(widest),
        link,
        passes,
    };
    (lowered(q, e, weights, budget.min(moves)), streamed)
}

/// The estimate with `kept` of its `weights` bytes on the card, at most, at any moment.
fn lowered(q: &Question, e: Estimate, weights: u64, kept: u64) -> Estimate {
    let gone = weights - kept;
    let less = |bytes: Bytes| bytes.saturating_sub(Bytes(gone));
    let mut e = Estimate {
        peak_allocated: less(e.peak_allocated),
        peak_reserved: less(e.peak_reserved),
        gapless_reserved: e.gapless_reserved.map(less),
        floor: e.floor.map(less),
        host: Bytes(weights),
        // The run that was simulated had all weights on the card.
        simulated: None,
        method: Method::Simulated,
        ..e
    };
    for (_, bytes) in e.components.iter_mut().filter(|(name, _)| *name == "weights") {
        *bytes = kept;
    }
    if let Some(shape) = &mut e.shape {
        shape.most.iter_mut().for_each(|bytes| *bytes = bytes.saturating_sub(gone));
        shape.phases.iter_mut().for_each(|(_, _, bytes)| *bytes = bytes.saturating_sub(gone));
    }
    let fits = e.process_total() <= room(q.memory(), e.error) && weights <= q.cluster.host_memory;
    e.verdict = if fits { Verdict::Fits } else { Verdict::DoesNotFit };
    e
}

/// Of the weights, the bytes of tables of which a pass reads some rows, and the largest of the others.
fn kinds(q: &Question, weights: u64) -> (u64, u64) {
    let plain = Stored::plain();
    let width = q.run.precision.weights().bytes();
    let weighed = q.stored.as_deref().unwrap_or(&plain).weigh(&q.architecture, width);
    let tied = matches!(&q.architecture, Architecture::Decoder(Decoder { tied: true, .. }));
    let (mut tables, mut widest) = (0, 0);
    for (parameter, weighed) in parameters(&q.architecture).iter().zip(&weighed) {
        // The head multiplies by all rows of a table that it shares.
        if parameter.role == Role::Embedding && !tied {
            tables += weighed.bytes();
        } else {
            widest = widest.max(weighed.bytes());
        }
    }
    (tables.min(weights), widest.min(weights))
}

fn pass(q: &Question, moves: u64, length: u64, budget: u64, link: f64) -> StreamedPass {
    let moved = moves.saturating_sub(budget);
    let work = work(q, length, moves);
    let hidden_from = work.map(|work| Bytes(moves.saturating_sub((work * link) as u64)));
    StreamedPass { length, moved: Bytes(moved), link: moved as f64 / link, work, hidden_from }
}

/// Seconds of the work of a pass over `weights` bytes, for models whose operations are counted.
fn work(q: &Question, length: u64, weights: u64) -> Option<f64> {
    let tokens = (q.run.batch * length) as f64;
    let Architecture::Decoder(decoder) = &q.architecture else { return None };
    let profile = Profile::from_decoder(&q.model.name, decoder);
    let tflops =
        if q.run.precision.bytes().activation == 4 { q.gpu().fp32_tflops } else { q.gpu().half_tflops };
    let head = if profile.tied { profile.first.sharded } else { profile.last.sharded } as f64;
    let answered = if q.run.last_logits { q.run.batch as f64 } else { tokens };
    let blocks: f64 = profile
        .order
        .iter()
        .map(|&kind| profile.kinds[kind].flops + profile.kinds[kind].core_flops * length as f64)
        .sum();
    let operations = blocks * tokens + 2.0 * head * answered;
    Some(
        (operations / (tflops * 1e12 * EFFICIENCY))
            .max(weights as f64 / (q.gpu().memory_gbs * 1e9 * READING)),
    )
}

#[cfg(test)]
mod tests;
