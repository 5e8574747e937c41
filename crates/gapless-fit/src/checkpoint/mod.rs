//! Chooses the blocks to recompute: the cheapest way to keep a training step's peak within a budget, with a proof.
//!
//! `chain` treats a sequence of blocks, each in one of a few ways (kept, recomputed, half recomputed, moved to the
//! host), as `torch.utils.checkpoint` around single blocks does: emitted scripts can run only that, and the simulation
//! follows. `simulate` walks through a finished schedule, counts bytes and cost, and shares no code with the optimiser.
//! Bytes and costs are integers (the caller chooses the unit of cost: operations, nanoseconds), so that "optimal" means
//! equal, not close.

pub mod chain;
mod lattice;
pub mod simulate;

/// Nothing within the space keeps the peak within the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no choice of what to recompute stays within {budget} bytes: the least peak is {least} bytes")]
pub struct Infeasible {
    pub budget: u64,
    /// The least peak over all schedules of the space, or a lower bound of it if the search ended early.
    pub least: u64,
}

/// How sure a solution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// No schedule of the space within the budget costs less than this.
    pub lower_bound: u64,
    /// States or nodes that the search looked at.
    pub examined: u64,
}
