//! What to keep of a graph of operators, in the model that torch.compile's partitioner and selective checkpointing realise.
//!
//! Nodes stand in topological order; each has one output. Forward runs them in order, backward in reverse, one stage each. A tensor is
//! kept from its forward until its last use in backward, or dropped after its last use in forward and computed again, at most once, in the first
//! backward stage that needs it (for its own reads, or to compute another again), and then held until its last use. A stage holds
//! all tensors that are there at any moment of it. So the kept set decides everything: cost is the forward cost of what runs again,
//! memory is a sum at each of 2n stages. `Graph::solve` is exact where its search ends within the limit, and gives a lower bound where it does not.

use super::graph_search;
use super::{Infeasible, Proof};

/// An operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Bytes of its output.
    pub bytes: u64,
    /// What it costs to run it again.
    pub cost: u64,
    /// Nodes whose outputs it reads, each before it.
    pub inputs: Vec<usize>,
    /// Nodes whose outputs its backward reads: some of its inputs, or itself.
    pub backward_reads: Vec<usize>,
    /// Bytes beyond its output while it runs forward.
    pub forward_working: u64,
    /// Bytes beyond what it reads and the gradients below, while it runs backward.
    pub backward_working: u64,
    /// Gradient of its output: there from the backward of its last reader to its own.
    pub gradient: u64,
    /// Gradients of its parameters: there from its backward on.
    pub parameter_gradient: u64,
}

/// Operators in topological order. Batches, weights and whatever is always there belong to `base`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    pub base: u64,
    pub nodes: Vec<Node>,
}

/// Which tensors stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    pub kept: Vec<bool>,
    pub cost: u64,
    pub proof: Proof,
}

impl Solution {
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.proof.lower_bound >= self.cost
    }
}

/// Why a graph cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("node {node} reads node {reads}, which does not come before it: give nodes in topological order")]
    Order { node: usize, reads: usize },
    #[error("the backward of node {node} reads node {reads}, which comes after it")]
    Backward { node: usize, reads: usize },
}

/// Search nodes after which `solve` settles for a lower bound, for n graph nodes: a bound looks at n stages, the larger ones at n tensors in
/// each. A second or three.
fn limit(n: u64) -> u64 {
    (60_000_000 / n.max(1)).min(12_000_000_000 / (n * n).max(1))
}

impl Graph {
    /// Whether all reads point backwards.
    pub fn check(&self) -> Result<(), GraphError> {
        for (node, n) in self.nodes.iter().enumerate() {
            if let Some(&reads) = n.inputs.iter().find(|&&reads| reads >= node) {
                return Err(GraphError::Order { node, reads });
            }
            if let Some(&reads) = n.backward_reads.iter().find(|&&reads| reads > node) {
                return Err(GraphError::Backward { node, reads });
            }
        }
        Ok(())
    }

    /// The cheapest kept set whose peak is at most `budget`: proven on small graphs, else with its lower bound. The graph must pass `check`.
    pub fn solve(&self, budget: u64) -> Result<Solution, Infeasible> {
        self.solve_within(budget, limit(self.nodes.len() as u64))
    }

    /// As `solve`, with at most `limit` search nodes.
    pub fn solve_within(&self, budget: u64, limit: u64) -> Result<Solution, Infeasible> {
        graph_search::solve(self, budget, limit)
    }
}
