//! Checkpoints that span several blocks: each block is kept, or belongs to a segment of consecutive blocks of which only the first input stays
//! and which runs again as a whole when its backward begins. Exact, over all ways to cut the chain.
//!
//! Within a segment that runs again, everything its blocks save is there at once, so longer segments keep less and need more: of n equal
//! blocks the least peak has segments that shrink towards the end, about sqrt(2n) of them, which this finds by itself.

use super::chain::Measured;
use super::lattice::{Arc, Lattice};
use super::{Infeasible, Proof};

/// Blocks in the order of forward; see `chain::Chain` for what lies around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segmented {
    pub base: u64,
    pub blocks: Vec<Measured>,
    pub head_peak: u64,
    pub head_gradient: u64,
    /// The most blocks of one segment.
    pub longest: usize,
}

/// What happens to a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One block, as it is.
    Kept { block: usize },
    /// Blocks `[from, to)` below one checkpoint.
    Recomputed { from: usize, to: usize },
}

/// The chain cut into parts, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    pub parts: Vec<Part>,
    pub cost: u64,
    pub proof: Proof,
}

/// Labels of one position past which the search settles for a lower bound.
const LIMIT: usize = 1_000_000;

impl Segmented {
    /// The cheapest cut with which the step's peak is at most `budget`.
    pub fn solve(&self, budget: u64) -> Result<Solution, Infeasible> {
        let Some(path) = self.lattice(budget).cheapest(LIMIT) else {
            return Err(Infeasible { budget, least: self.least_peak() });
        };
        let part = |&(at, arc): &(u32, u32)| {
            let from = at as usize;
            // The first arc of a position keeps, the others are segments by length.
            if arc == 0 {
                Part::Kept { block: from }
            } else {
                Part::Recomputed { from, to: from + arc as usize }
            }
        };
        Ok(Solution {
            parts: path.arcs.iter().map(part).collect(),
            cost: path.cost,
            proof: Proof { lower_bound: path.lower_bound, examined: path.examined },
        })
    }

    /// The least peak over all cuts.
    #[must_use]
    pub fn least_peak(&self) -> u64 {
        let (mut low, mut high) = (0, u64::MAX / 4);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.lattice(middle).is_feasible() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    fn lattice(&self, budget: u64) -> Lattice {
        let room = budget.checked_sub(self.base);
        let under = |need: u64| room.and_then(|room| room.checked_sub(need));
        let n = self.blocks.len();
        // Gradients that are there while block i runs backward: the head's and those of the blocks after it.
        let mut later = vec![self.head_gradient; n + 1];
        for i in (0..n).rev() {
            later[i] = later[i + 1] + self.blocks[i].gradient;
        }
        let mut arcs = vec![Vec::new(); n];
        for (from, out) in arcs.iter_mut().enumerate() {
            let first = &self.blocks[from];
            let kept = first.kept();
            out.push(Arc {
                to: from as u32 + 1,
                retained: kept.retained,
                cap: under(kept.forward_peak.max(kept.backward_peak + later[from + 1])),
                cost: 0,
            });
            let (mut forward, mut cost, mut saved) = (0, 0, 0u64);
            // The worst of the segment's own backward: of each block, with what those before it in the segment saved.
            let mut backward = 0;
            // The worst of running it again, without the gradients that are there by then.
            let mut again = 0;
            for (to, &later) in later.iter().enumerate().skip(from + 1).take(self.longest.max(1)) {
                let block = &self.blocks[to - 1];
                let passed_on = if to - 1 == from { 0 } else { block.input };
                forward = forward.max(first.input + passed_on + block.forward_working);
                saved += block.saved;
                backward = backward.max(first.input + saved + block.backward_working + later);
                again = again.max(first.input + saved + block.forward_working);
                cost += block.forward_cost;
                let last = again + block.output_gradient + later;
                out.push(Arc {
                    to: to as u32,
                    retained: first.input,
                    cap: under(forward.max(backward).max(last)),
                    cost,
                });
            }
        }
        let relaxed = self.blocks.iter().map(|b| vec![(b.saved, 0), (0, b.forward_cost)]).collect();
        Lattice { arcs, end_cap: under(self.head_peak), relaxed }
    }
}
