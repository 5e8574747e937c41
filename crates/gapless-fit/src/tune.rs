//! Questions that many simulated runs answer: the fewest blocks to recompute so that a card holds the run, and the
//! largest batch it holds.
//!
//! Both are by bisection over exact simulations, and their results were themselves simulated. If blocks differ,
//! `checkpoint::chain` over the simulated blocks chooses those to recompute, and the budget shrinks until the
//! simulation agrees.

use crate::checkpoint::chain::{Block, Chain, Choice};
use crate::eager::{Recomputed, Run};
use crate::hardware::Gpu;
use crate::model::Architecture;
use crate::models::BuildError;
use crate::simulated::{Simulated, Verdict, context};
use crate::simulated_blocks::{SimulatedBlocks, simulate_blocks};
use gapless_trace::Bytes;

/// A run that a card holds.
#[derive(Clone, Debug)]
pub struct Tuned {
    pub simulated: Simulated,
    pub verdict: Verdict,
    /// Blocks that run forward again.
    pub recomputed: Vec<u64>,
    /// Simulations that it took.
    pub looked_at: u64,
}

/// `run` with as little recomputation as a card of `memory` bytes allows; `None` if recomputing every block is not
/// enough.
///
/// # Errors
/// As [`crate::eager::simulate`].
pub fn least_recomputation(
    architecture: &Architecture,
    run: &Run,
    gpu: &Gpu,
    memory: Bytes,
) -> Result<Option<Tuned>, BuildError> {
    let mut looked_at = 0;
    let mut look = |blocks: &[bool]| -> Result<Option<Tuned>, BuildError> {
        looked_at += 1;
        let which =
            if blocks.iter().any(|b| *b) { Recomputed::Blocks(blocks.to_vec()) } else { Recomputed::None };
        let simulated = Simulated::of(architecture, &Run { recomputed: which, ..run.clone() })?;
        let verdict = simulated.verdict(gpu, memory);
        let recomputed = (0..).zip(blocks).filter(|(_, again)| **again).map(|(at, _)| at).collect();
        Ok(verdict.fits().then_some(Tuned { simulated, verdict, recomputed, looked_at }))
    };
    if let Some(kept) = look(&[])? {
        return Ok(Some(kept));
    }
    let exact = simulate_blocks(architecture, run)?;
    let count = exact.blocks.len();
    let first = |n: usize| (0..count).map(|at| at < n).collect::<Vec<bool>>();
    let Some(mut best) = look(&first(count))? else { return Ok(None) };
    if exact.blocks.windows(2).all(|pair| pair[0].saved == pair[1].saved && pair[0].input == pair[1].input) {
        let (mut low, mut high) = (0, count);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match look(&first(middle))? {
                Some(found) => (best, high) = (found, middle),
                None => low = middle,
            }
        }
        return Ok(Some(best));
    }
    let states = best.simulated.account.total.0.saturating_sub(exact.blocks.iter().map(|b| b.input).sum());
    let chain = chain(&exact, run, states);
    let mut budget = memory.saturating_sub(context(gpu)).0;
    for _ in 0..12 {
        let Ok(solution) = chain.solve(budget) else { break };
        let blocks: Vec<bool> = solution.choices.iter().map(|&choice| choice == 1).collect();
        if blocks.iter().filter(|b| **b).count() >= best.recomputed.len() {
            break;
        }
        if let Some(found) = look(&blocks)? {
            best = found;
            break;
        }
        budget -= budget / 50;
    }
    Ok(Some(best))
}

/// The simulated blocks as a chain over a base that is there all the time.
fn chain(exact: &SimulatedBlocks, run: &Run, base: u64) -> Chain {
    let accumulates = run.accumulation > 1;
    let blocks = exact.blocks.iter().map(|b| Block {
        choices: vec![
            Choice {
                retained: b.saved,
                forward_peak: b.forward_peak,
                backward_peak: b.saved + b.backward_peak,
                cost: 0,
            },
            Choice {
                retained: b.input,
                forward_peak: b.forward_peak,
                backward_peak: b.input + b.recompute_peak,
                cost: b.flops,
            },
        ],
        gradient: if accumulates { 0 } else { b.weight_bytes },
    });
    Chain {
        base,
        blocks: blocks.collect(),
        head_peak: exact.head.forward_peak.max(exact.head.backward_peak),
        head_gradient: if accumulates { 0 } else { exact.head.weight_bytes },
    }
}

/// The largest batch that a card holds, by doubling and bisection; `None` if it does not hold one of 1.
#[derive(Clone, Debug)]
pub struct LargestBatch {
    pub batch: u64,
    pub simulated: Simulated,
    pub verdict: Verdict,
    /// Bytes that a batch of one more would take.
    pub next: Bytes,
    pub looked_at: u64,
}

/// No card holds more sequences than this.
const MOST: u64 = 1 << 24;

/// The largest batch of `run` that a card of `memory` bytes holds.
///
/// # Errors
/// As [`crate::eager::simulate`].
pub fn largest_batch(
    architecture: &Architecture,
    run: &Run,
    gpu: &Gpu,
    memory: Bytes,
) -> Result<Option<LargestBatch>, BuildError> {
    let judge = |simulated: &Simulated| (simulated.verdict(gpu, memory), simulated.process_total(gpu));
    largest_batch_by(architecture, run, &judge)
}

/// The largest batch of `run` that `judge` lets pass; `judge` gives a run's verdict and the bytes of its process.
///
/// # Errors
/// As [`crate::eager::simulate`].
pub fn largest_batch_by(
    architecture: &Architecture,
    run: &Run,
    judge: &dyn Fn(&Simulated) -> (Verdict, Bytes),
) -> Result<Option<LargestBatch>, BuildError> {
    let mut looked_at = 0;
    let mut next = Bytes::ZERO;
    let mut look = |batch: u64, next: &mut Bytes| -> Result<Option<LargestBatch>, BuildError> {
        looked_at += 1;
        let simulated = Simulated::of(architecture, &Run { batch, ..run.clone() })?;
        let (verdict, total) = judge(&simulated);
        if !verdict.fits() {
            *next = total;
            return Ok(None);
        }
        Ok(Some(LargestBatch { batch, simulated, verdict, next: Bytes::ZERO, looked_at }))
    };
    let Some(mut best) = look(1, &mut next)? else { return Ok(None) };
    let mut high = 2;
    while high < MOST {
        let Some(found) = look(high, &mut next)? else { break };
        best = found;
        high *= 2;
    }
    let mut low = best.batch;
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match look(middle, &mut next)? {
            Some(found) => (best, low) = (found, middle),
            None => high = middle,
        }
    }
    best.next = next;
    best.looked_at = looked_at;
    Ok(Some(best))
}
