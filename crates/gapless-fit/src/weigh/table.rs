//! Stored bytes by kind of block, as the search over degrees cuts them.

use super::Weighed;
use crate::model::{Architecture, Role};
use crate::parameters::parameters;

/// Bytes by the way in which tensor parallelism cuts them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    pub sharded: f64,
    pub replicated: f64,
    pub experts: f64,
}

impl Share {
    /// On one rank of `tensor`, with experts spread over `expert`.
    #[must_use]
    pub fn on_rank(&self, tensor: u64, expert: u64) -> f64 {
        self.sharded / tensor.max(1) as f64 + self.replicated + self.experts / expert.max(1) as f64
    }

    fn add(&mut self, role: Role, bytes: f64) {
        match role {
            Role::Expert => self.experts += bytes,
            Role::Matrix | Role::Embedding | Role::Head | Role::Convolution => self.sharded += bytes,
            _ => self.replicated += bytes,
        }
    }
}

/// A model's stored bytes: of a block of each kind, before the blocks, and after them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub kinds: Vec<Share>,
    pub first: Share,
    pub last: Share,
}

/// The number of the block that a parameter is in.
pub(crate) fn block(name: &str) -> Option<usize> {
    let mut parts = name.split('.');
    parts.find(|part| matches!(*part, "layers" | "h" | "blocks" | "block" | "layer"))?;
    parts.next()?.parse().ok()
}

impl Table {
    /// `order` has the kind of each block; `weighed` the parameters of `architecture`.
    #[must_use]
    pub fn new(architecture: &Architecture, weighed: &[Weighed], order: &[usize]) -> Table {
        let count = order.iter().max().map_or(0, |most| most + 1);
        let mut table = Table { kinds: vec![Share::default(); count], ..Table::default() };
        let mut begun = false;
        for (p, weighed) in parameters(architecture).iter().zip(weighed) {
            let bytes = weighed.bytes() as f64;
            match block(&p.name).and_then(|at| order.get(at)) {
                Some(&kind) => {
                    begun = true;
                    let alike = order.iter().filter(|other| **other == kind).count().max(1);
                    table.kinds[kind].add(p.role, bytes / alike as f64);
                }
                None if begun || p.role == Role::Head => table.last.add(p.role, bytes),
                None => table.first.add(p.role, bytes),
            }
        }
        table
    }
}
