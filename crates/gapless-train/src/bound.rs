//! Times and peaks that no plan of the family is below. A plan of the family drops saved values for their gap or keeps
//! them, and runs an operator again to make a dropped value.
//!
//! At a moment of the recorded step with `excess` bytes above the budget, the values that are away there must have that
//! many bytes. Each needs its operator at least once more, and one run serves all outputs of the operator. The cheapest
//! way, with fractions of operators allowed, is a sort by cost for each byte: its cost is below every plan. Sources and
//! the watching of calls count nothing, so the bound is honest and sometimes low.

use crate::step::Step;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// No plan within the budget is faster, microseconds. Infinite: there is no plan within the budget.
    pub time_us: f64,
    /// No plan has a lower peak, whatever its time.
    pub peak: u64,
}

/// The bound for a budget.
#[must_use]
pub fn bound(step: &Step, budget: u64) -> Bound {
    let items = Items::new(step);
    let mut best: f64 = 0.0;
    let mut peak = 0;
    for (event, op) in step.ops.iter().enumerate() {
        let used = op.crest.max(op.before);
        let gone = items.away[event];
        peak = peak.max(used.saturating_sub(gone));
        let excess = used.saturating_sub(budget);
        if excess == 0 || items.is_dominated(step, event, excess) {
            continue;
        }
        if gone < excess {
            return Bound { time_us: f64::INFINITY, peak: peak.max(least(step, &items)) };
        }
        best = best.max(items.cheapest(event as u32, excess));
    }
    Bound { time_us: step.time_us + best, peak }
}

fn least(step: &Step, items: &Items) -> u64 {
    let used =
        |(event, op): (usize, &crate::step::Op)| op.crest.max(op.before).saturating_sub(items.away[event]);
    step.ops.iter().enumerate().map(used).max().unwrap_or(0)
}

/// An operator that may run again, with the gaps of the values that it would make.
struct Item {
    cost: f64,
    gaps: Vec<(u32, u32, u64)>,
}

struct Items {
    list: Vec<Item>,
    /// By operator: bytes of values that may be away.
    away: Vec<u64>,
    /// Moments at which a gap begins or ends.
    edges: Vec<bool>,
}

impl Items {
    fn new(step: &Step) -> Items {
        let mut diff = vec![0i64; step.ops.len() + 1];
        let mut edges = vec![false; step.ops.len() + 1];
        let mut list = Vec::new();
        for (n, op) in step.ops.iter().enumerate() {
            let gaps: Vec<(u32, u32, u64)> = op
                .outs
                .iter()
                .filter(|&&v| step.can_drop(v))
                .map(|&v| {
                    let value = &step.values[v as usize];
                    (value.natural, value.need.unwrap_or(value.death).min(value.death), value.size)
                })
                .filter(|&(from, to, _)| from < to)
                .collect();
            for &(from, to, size) in &gaps {
                diff[from as usize] += size as i64;
                diff[to as usize] -= size as i64;
                edges[from as usize] = true;
                edges[to as usize] = true;
            }
            if !gaps.is_empty() {
                list.push(Item { cost: step.cost(n as u32), gaps });
            }
        }
        let mut level = 0;
        let away = diff[..step.ops.len()]
            .iter()
            .map(|change| {
                level += change;
                level as u64
            })
            .collect();
        Items { list, away, edges }
    }

    /// The moment before this one has as much excess and the same values: its bound is at least as high.
    fn is_dominated(&self, step: &Step, event: usize, excess: u64) -> bool {
        event > 0 && !self.edges[event] && {
            let op = &step.ops[event - 1];
            let now = &step.ops[event];
            op.crest.max(op.before) >= now.crest.max(now.before) && excess > 0
        }
    }

    fn cheapest(&self, event: u32, excess: u64) -> f64 {
        let mut offers: Vec<(f64, u64)> = self
            .list
            .iter()
            .filter_map(|item| {
                let bytes: u64 = item
                    .gaps
                    .iter()
                    .filter(|&&(from, to, _)| from <= event && event < to)
                    .map(|gap| gap.2)
                    .sum();
                (bytes > 0).then_some((item.cost, bytes))
            })
            .collect();
        offers.sort_unstable_by(|a, b| (a.0 / a.1 as f64).total_cmp(&(b.0 / b.1 as f64)));
        let (mut left, mut cost) = (excess, 0.0);
        for (price, bytes) in offers {
            if bytes >= left {
                return cost + price * left as f64 / bytes as f64;
            }
            left -= bytes;
            cost += price;
        }
        f64::INFINITY
    }
}
