//! Arriving pods and their order, as in the published experiment, so that runs can be compared one by one.
//!
//! Pods are sorted by name and shuffled with the seed. Copies of random pods are appended, or random pods removed,
//! until the demand is the wanted share of the cluster's GPUs. Then a permutation of the nodes gives their ranks.

use crate::error::{Error, Result};
use crate::go_random::GoRandom;
use crate::mix::demand;
use crate::words::{Node, Pod};

/// More arrivals than this are refused, because the pods of the list ask for almost nothing.
pub const MOST: usize = 20_000_000;

/// The order of arrivals and the ranks of nodes.
#[derive(Clone, Debug)]
pub struct Arrivals {
    pub order: Vec<Arrival>,
    /// Rank of each node, in the order of the list of nodes.
    pub ranks: Vec<u32>,
    /// The generator's state for the rest of the run.
    pub random: GoRandom,
}

impl Arrivals {
    /// Ranks nodes by their names, as the extender for Kubernetes does.
    pub fn rank_by_name(&mut self, nodes: &[Node]) {
        for (rank, node) in by_name(nodes.iter().map(|node| node.name.as_str())).into_iter().enumerate() {
            self.ranks[node as usize] = rank as u32;
        }
    }
}

/// One arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index into the list of pods.
    pub pod: u32,
    /// The number of the copy, if it is one.
    pub copy: Option<u32>,
}

impl Arrival {
    /// The name in logs: copies are `NAME-tuned-K`.
    pub fn name(self, pods: &[Pod]) -> String {
        let name = &pods[self.pod as usize].name;
        self.copy.map_or_else(|| name.clone(), |copy| format!("{name}-tuned-{copy}"))
    }
}

/// Arrivals in random order. `level` is the wanted demand as a share of all GPUs; `None` leaves the list as it is.
pub fn shuffled(pods: &[Pod], nodes: &[Node], units: u64, level: Option<f64>, seed: i64) -> Result<Arrivals> {
    let mut random = GoRandom::new(seed);
    random.draw();
    let by_name = by_name(pods.iter().map(|pod| pod.name.as_str()));
    let mut order: Vec<Arrival> = by_name.iter().map(|&pod| Arrival { pod, copy: None }).collect();
    random.shuffle(&mut order);
    if let Some(level) = level {
        let gpus: u64 = nodes.iter().map(|node| u64::from(node.gpus)).sum();
        tune(pods, &by_name, &mut order, units, level * gpus as f64 * 1000.0, &mut random)?;
    }
    for _ in 0..10 {
        random.draw();
    }
    let ranks = ranks(nodes, &mut random);
    Ok(Arrivals { order, ranks, random })
}

/// Arrivals as the list has them: by time of creation if every pod has one, then by priority, then as listed.
pub fn listed(pods: &[Pod], nodes: &[Node], seed: i64) -> Arrivals {
    let mut random = GoRandom::new(seed);
    let mut order: Vec<Arrival> = (0..pods.len() as u32).map(|pod| Arrival { pod, copy: None }).collect();
    let is_timed = pods.iter().all(|pod| pod.created.is_some());
    order.sort_by_key(|arrival| {
        let pod = &pods[arrival.pod as usize];
        (if is_timed { pod.created } else { None }, std::cmp::Reverse(pod.priority))
    });
    let ranks = ranks(nodes, &mut random);
    Arrivals { order, ranks, random }
}

/// Indices in the order of the names' bytes.
fn by_name<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u32> {
    let mut all: Vec<(&str, u32)> = names.zip(0..).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, index)| index).collect()
}

fn ranks(nodes: &[Node], random: &mut GoRandom) -> Vec<u32> {
    let by_name = by_name(nodes.iter().map(|node| node.name.as_str()));
    let permutation = random.permutation(nodes.len());
    let mut ranks = vec![0; nodes.len()];
    for (place, &node) in by_name.iter().enumerate() {
        ranks[node as usize] = permutation[place];
    }
    ranks
}

/// Appends copies or removes arrivals until the demand is `target` thousandths.
fn tune(
    pods: &[Pod],
    by_name: &[u32],
    order: &mut Vec<Arrival>,
    units: u64,
    target: f64,
    random: &mut GoRandom,
) -> Result<()> {
    let of = |pod: u32| demand(&pods[pod as usize].request, units);
    let mut total: u64 = by_name.iter().map(|&pod| of(pod)).sum();
    if total == 0 {
        return Ok(());
    }
    if total as f64 <= target {
        let mut copy = 0;
        loop {
            let pod = by_name[random.below(by_name.len() as u32) as usize];
            let one_gpu = match pods[pod as usize].request.gpus {
                0 => 0,
                _ => u64::from(pods[pod as usize].request.milli_of(units)),
            };
            if (total + one_gpu) as f64 > target {
                break;
            }
            if order.len() >= MOST {
                return Err(Error::Input(format!(
                    "more than {MOST} arrivals: the pods ask for too little of this cluster, use a lower level"
                )));
            }
            order.push(Arrival { pod, copy: Some(copy) });
            total += of(pod);
            copy += 1;
        }
    } else {
        while total as f64 > target && !order.is_empty() {
            let at = random.below(order.len() as u32) as usize;
            total -= of(order.remove(at).pod);
        }
    }
    Ok(())
}
