//! A chain of blocks, each treated in one of a few ways: the cheapest treatment whose peak stays within a budget,
//! exactly.
//!
//! The bytes, in the order of a step: while block i runs forward, `base` + those that blocks before it retained + its
//! choice's `forward_peak`; at the loss, `base` + all retained + `head_peak`; while block i runs backward, `base` +
//! those that blocks before it retained + its choice's `backward_peak` + the gradients of the head and of the blocks
//! after it. The peak is a maximum over these, so this is no knapsack; `lattice` solves it by Pareto frontiers.
//! Figures: 128 heterogeneous blocks in milliseconds (examples/search_speed.rs).

use super::lattice::{Arc, Lattice};
use super::{Infeasible, Proof};

/// One way to treat a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Bytes that stay from the block's forward to its backward.
    pub retained: u64,
    /// The most that the block's forward holds at once, retained bytes included.
    pub forward_peak: u64,
    /// The most that the block's backward holds at once, recomputation, retained bytes and its own parameters'
    /// gradients included.
    pub backward_peak: u64,
    /// The cost that the treatment adds to the step.
    pub cost: u64,
}

/// A block and the ways to treat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub choices: Vec<Choice>,
    /// Gradients of its parameters that stay after its backward (0 if they are there from the beginning, and counted in
    /// `base`).
    pub gradient: u64,
}

/// A block as it was measured or simulated: its two plain treatments follow from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of the block's input, which a checkpoint keeps.
    pub input: u64,
    /// Bytes that autograd keeps for backward if nothing is checkpointed (the input included if the block saves it).
    pub saved: u64,
    /// Bytes that forward needs at its worst beyond those it saves.
    pub forward_working: u64,
    /// Bytes that backward needs at its worst beyond those saved: gradients of activations, temporaries, its
    /// parameters' gradients.
    pub backward_working: u64,
    /// Bytes of the gradient of its output: held while the block is recomputed.
    pub output_gradient: u64,
    pub gradient: u64,
    pub forward_cost: u64,
}

/// Blocks in the order of forward, and the memory around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Bytes there all the time: weights, optimizer state, and gradients if they accumulate.
    pub base: u64,
    pub blocks: Vec<Block>,
    /// The most that the head and the loss need, forward and backward.
    pub head_peak: u64,
    /// Gradients of the head's parameters, which stay.
    pub head_gradient: u64,
}

/// A choice for each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// By place in each block's `choices`.
    pub choices: Vec<usize>,
    pub cost: u64,
    pub proof: Proof,
}

impl Solution {
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.proof.lower_bound >= self.cost
    }
}

/// Labels of one position past which the search settles for a solution with a lower bound. 2 million take some 100 MB.
const LIMIT: usize = 2_000_000;

impl Measured {
    /// The block as it is, and as `torch.utils.checkpoint` treats it: its input stays, its forward runs again when its
    /// backward begins.
    #[must_use]
    pub fn block(&self) -> Block {
        Block { choices: vec![self.kept(), self.recomputed()], gradient: self.gradient }
    }

    #[must_use]
    pub fn kept(&self) -> Choice {
        Choice {
            retained: self.saved,
            forward_peak: self.saved + self.forward_working,
            backward_peak: self.saved + self.backward_working,
            cost: 0,
        }
    }

    #[must_use]
    pub fn recomputed(&self) -> Choice {
        let again = self.output_gradient + self.forward_working;
        Choice {
            retained: self.input,
            forward_peak: self.input + self.forward_working,
            backward_peak: self.input + self.saved + self.backward_working.max(again),
            cost: self.forward_cost,
        }
    }
}

impl Chain {
    /// The cheapest choices with which the step's peak is at most `budget`.
    pub fn solve(&self, budget: u64) -> Result<Solution, Infeasible> {
        self.solve_within(budget, LIMIT)
    }

    /// As `solve`, with at most `limit` labels at a position.
    pub fn solve_within(&self, budget: u64, limit: usize) -> Result<Solution, Infeasible> {
        let Some(path) = self.lattice(budget).cheapest(limit) else {
            return Err(Infeasible { budget, least: self.least_peak() });
        };
        Ok(Solution {
            choices: path.arcs.iter().map(|&(_, arc)| arc as usize).collect(),
            cost: path.cost,
            proof: Proof { lower_bound: path.lower_bound, examined: path.examined },
        })
    }

    /// The least peak over all choices, exactly: by bisection, since feasibility is decided exactly and never lost by a
    /// larger budget.
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
        let mut later = self.head_gradient;
        let mut arcs: Vec<Vec<Arc>> = Vec::with_capacity(self.blocks.len());
        for (place, block) in self.blocks.iter().enumerate().rev() {
            let arc = |choice: &Choice| Arc {
                to: place as u32 + 1,
                retained: choice.retained,
                cap: under(choice.forward_peak.max(choice.backward_peak + later)),
                cost: choice.cost,
            };
            arcs.push(block.choices.iter().map(arc).collect());
            later += block.gradient;
        }
        arcs.reverse();
        let relaxed = self
            .blocks
            .iter()
            .map(|block| block.choices.iter().map(|choice| (choice.retained, choice.cost)).collect())
            .collect();
        Lattice { arcs, end_cap: under(self.head_peak), relaxed }
    }
}
