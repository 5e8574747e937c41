//! The mix of a list of pods: distinct requests and their counts. Policies learn it before the first decision.

use crate::ledger::Ledger;
use crate::words::{Pod, Request};
use rustc_hash::FxHashMap;

/// A distinct request and the number of pods that make it. Host memory is ignored.
#[derive(Clone, Debug)]
pub struct Part {
    pub request: Request,
    pub count: u64,
}

/// The requests of a list.
#[derive(Clone, Debug, Default)]
pub struct Mix {
    /// The most frequent first; then by CPUs, share, GPUs and models, all descending.
    pub parts: Vec<Part>,
    /// All pods, also those without GPUs.
    pub total: u64,
}

impl Mix {
    pub fn of<'a>(requests: impl Iterator<Item = &'a Request>) -> Mix {
        let mut counts: FxHashMap<Request, u64> = FxHashMap::default();
        let mut total = 0;
        for request in requests {
            *counts.entry(Request { memory: 0, ..request.clone() }).or_default() += 1;
            total += 1;
        }
        let mut parts: Vec<Part> =
            counts.into_iter().map(|(request, count)| Part { request, count }).collect();
        parts.sort_by(|a, b| {
            let key =
                |part: &Part| (part.count, part.request.cpu_milli, part.request.share, part.request.gpus);
            key(b).cmp(&key(a)).then_with(|| b.request.models.cmp(&a.request.models))
        });
        Mix { parts, total }
    }

    pub fn of_pods(pods: &[Pod]) -> Mix {
        Mix::of(pods.iter().map(|pod| &pod.request))
    }

    /// The most frequent requests, until 95 % of the pods are covered, each with its share of those.
    pub fn typical(&self) -> Vec<(&Request, f64)> {
        let total = self.total as f64;
        let mut covered = 0.0;
        let mut typical: Vec<(&Request, f64)> = Vec::new();
        for part in &self.parts {
            if covered >= 0.95 * total {
                break;
            }
            covered += part.count as f64;
            typical.push((&part.request, part.count as f64 / total));
        }
        if typical.len() < self.parts.len() {
            for (_, share) in &mut typical {
                *share /= covered / total;
            }
        }
        typical
    }
}

/// The units of most GPUs of a cluster: the size by which shares in bytes are converted if one number is needed.
pub fn common_units(ledger: &Ledger) -> u64 {
    let mut counts: FxHashMap<u64, u64> = FxHashMap::default();
    for node in ledger.nodes() {
        *counts.entry(node.units()).or_default() += u64::from(node.gpus);
    }
    let most = counts.into_iter().max_by_key(|&(units, count)| (count, units));
    most.map_or(u64::from(crate::words::WHOLE), |(units, _)| units)
}

/// The thousandths of GPUs that a request asks for in all.
pub fn demand(request: &Request, units: u64) -> u64 {
    u64::from(request.gpus) * u64::from(request.milli_of(units))
}
