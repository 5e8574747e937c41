//! Policies: an integer score for a node that a request fits on, and the GPUs to take there.
//!
//! The highest score wins; among equals, the node with the lowest rank. No policy may refuse a request that fits. The
//! peers follow the published experiment even in rounding, because rounding causes the ties. [`value`] is the default.

pub mod fragment;
mod peers;
pub mod value;

use crate::go_random::GoRandom;
use crate::ledger::{Ledger, View};
use crate::mix::Mix;
use crate::words::Request;
use fragment::Fgd;
use value::Value;

/// The names of policies, the weakest first.
pub const NAMES: [&str; 7] = ["random", "dotprod", "clustering", "packing", "bestfit", "fgd", "gapless"];

/// A policy with its knowledge of the mix.
#[derive(Clone, Debug)]
pub enum Policy {
    Random(Box<GoRandom>),
    DotProduct,
    Clustering,
    Packing,
    BestFit,
    Fgd(Box<Fgd>),
    Value(Box<Value>),
}

impl Policy {
    /// The policy with this name; other spellings of the peers' names are known too.
    pub fn named(name: &str, ledger: &Ledger, mix: &Mix, random: &GoRandom) -> Option<Policy> {
        Some(match canonical(name)? {
            "random" => Policy::Random(Box::new(random.clone())),
            "dotprod" => Policy::DotProduct,
            "clustering" => Policy::Clustering,
            "packing" => Policy::Packing,
            "bestfit" => Policy::BestFit,
            "fgd" => Policy::Fgd(Box::new(Fgd::new(ledger, mix))),
            "gapless" => Policy::Value(Box::new(Value::new(ledger, mix))),
            _ => return None,
        })
    }

    /// True if the policy can score this node of the ledger, which it may not have seen yet.
    pub fn knows(&self, ledger: &Ledger, node: u32) -> bool {
        match self {
            Policy::Value(value) => value.knows(ledger, node),
            _ => false,
        }
    }

    /// The score of a node on which `request` fits. `before` is the policy's own memory until the node changes;
    /// it is NaN at first.
    pub fn score(&mut self, view: View<'_>, request: &Request, before: &mut f64) -> i32 {
        match self {
            Policy::Random(_) => 0,
            Policy::DotProduct => peers::dot_product(view, request),
            Policy::Clustering => peers::clustering(view, request),
            Policy::Packing => peers::packing(view, request),
            Policy::BestFit => peers::best_fit(view, request),
            Policy::Fgd(fgd) => fgd.score(view, request, before),
            Policy::Value(value) => value.score(view, request, before),
        }
    }

    /// The GPUs that `request` takes on a node on which it fits. `left` are the units left on each.
    pub fn gpus(&mut self, view: View<'_>, left: &[u64], request: &Request) -> Vec<u16> {
        let units = view.slot.units;
        let need = if request.gpus == 0 { 0 } else { request.units_of(units) };
        if request.gpus == 1 && need < units {
            let chosen = match self {
                Policy::Random(random) => peers::any_gpu(left, need, random),
                Policy::Fgd(fgd) => fgd.gpu(view, left, request),
                Policy::Value(value) => value.gpu(view, left, request),
                _ => None,
            };
            if let Some(gpu) = chosen {
                return vec![gpu];
            }
        }
        fullest(left, need, request.gpus as usize)
    }

    /// The generator by which a policy draws one of the nodes that fit; `None` for policies that score.
    pub(crate) fn draws(&mut self) -> Option<&mut GoRandom> {
        match self {
            Policy::Random(random) => Some(random),
            _ => None,
        }
    }
}

/// The name in [`NAMES`] that a user's spelling means.
pub fn canonical(name: &str) -> Option<&'static str> {
    let plain: String = name.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    Some(match plain.as_str() {
        "random" => "random",
        "dotprod" | "dotproduct" | "dot" => "dotprod",
        "clustering" | "gpuclustering" => "clustering",
        "packing" | "gpupacking" => "packing",
        "bestfit" | "best" => "bestfit",
        "fgd" => "fgd",
        "gapless" | "ours" | "default" => "gapless",
        _ => return None,
    })
}

/// The `count` GPUs with the least left that have at least `need`, the lowest index of equals.
pub fn fullest(left: &[u64], need: u64, count: usize) -> Vec<u16> {
    if count == 1 {
        let room = left.iter().enumerate().filter(|&(_, &left)| left >= need);
        return room
            .min_by_key(|&(index, &left)| (left, index))
            .map(|(index, _)| index as u16)
            .into_iter()
            .collect();
    }
    let mut room: Vec<u16> = (0..left.len() as u16).filter(|&gpu| left[gpu as usize] >= need).collect();
    room.sort_by_key(|&gpu| left[gpu as usize]);
    room.truncate(count);
    room
}
