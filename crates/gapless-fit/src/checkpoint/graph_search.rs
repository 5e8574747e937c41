//! The search behind `graph`: a heuristic for a first solution, then branch and bound from the last node to the first.
//!
//! In that order the fate of a tensor's readers is settled before its own, so when it runs again and how long it stays follow at once, and
//! memory of settled tensors is exact. A tensor not settled yet is there at least between its known uses. The cost of what remains is at least
//! the fractional knapsack, at the worst stage, of freeing what exceeds the budget if all the rest were kept.

use super::graph::{Graph, Solution};
use super::{Infeasible, Proof};

/// The uses of a tensor in backward, as stages: `first` is the earliest in time, the largest stage.
#[derive(Clone, Copy)]
struct Uses {
    first: usize,
    last: usize,
}

struct Search<'a> {
    graph: &'a Graph,
    n: usize,
    budget: u64,
    /// Last forward reader of each tensor (itself where none).
    last_forward: Vec<usize>,
    /// Backward reads of each tensor, without recomputation.
    reads: Vec<Option<Uses>>,
    /// What is there whatever is kept: stages 0..n forward, then n..2n for the backward of n-1..=0, each with its working bytes.
    fixed: Vec<u64>,
    /// As `fixed` for backward stages, without the working bytes of that backward: for when something runs again there.
    idle: Vec<u64>,
    /// Nodes by cost per byte, cheapest first.
    by_ratio: Vec<usize>,
    best: Option<(u64, Vec<bool>)>,
    examined: u64,
    limit: u64,
    /// The least bound among branches given up for the limit.
    open: u64,
}

/// Nodes up to which every stage is looked at for every bound; and how many are beyond that.
const SMALL: usize = 64;
const STAGES: usize = 24;

/// Nodes beyond which the search, which recurses over them, is left to the heuristic and its bound.
const DEEPEST: usize = 4096;

pub(super) fn solve(graph: &Graph, budget: u64, limit: u64) -> Result<Solution, Infeasible> {
    let mut search = Search::new(graph, budget, limit);
    let root = search.bound(&[], graph.nodes.len());
    let Ok(root) = root else {
        return Err(Infeasible { budget, least: search.least_possible() });
    };
    search.patterns();
    if search.n > DEEPEST {
        search.open = root;
    } else if search.best.as_ref().is_none_or(|(cost, _)| *cost > root) {
        let mut fate = vec![true; search.n];
        search.branch(&mut fate, search.n, root);
    }
    let examined = search.examined;
    let lower_bound = search.open;
    match search.best {
        Some((cost, kept)) => {
            let lower_bound = lower_bound.min(cost).max(root);
            Ok(Solution { kept, cost, proof: Proof { lower_bound, examined } })
        }
        None => Err(Infeasible { budget, least: search.least_possible() }),
    }
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, budget: u64, limit: u64) -> Search<'a> {
        let n = graph.nodes.len();
        let mut last_forward: Vec<usize> = (0..n).collect();
        let mut reads: Vec<Option<Uses>> = vec![None; n];
        for (i, node) in graph.nodes.iter().enumerate() {
            for &input in &node.inputs {
                last_forward[input] = i;
            }
            for &read in &node.backward_reads {
                let uses = reads[read].get_or_insert(Uses { first: i, last: i });
                (uses.first, uses.last) = (uses.first.max(i), uses.last.min(i));
            }
        }
        let (fixed, idle) = fixed(graph, &last_forward);
        let mut by_ratio: Vec<usize> = (0..n).filter(|&v| graph.nodes[v].bytes > 0).collect();
        by_ratio.sort_by(|&a, &b| {
            let (a, b) = (&graph.nodes[a], &graph.nodes[b]);
            (a.cost as f64 * b.bytes as f64).total_cmp(&(b.cost as f64 * a.bytes as f64))
        });
        let open = u64::MAX;
        Search {
            graph,
            n,
            budget,
            last_forward,
            reads,
            fixed,
            idle,
            by_ratio,
            best: None,
            examined: 0,
            limit,
            open,
        }
    }

    /// Backward stage of node i, as a place in the list of 2n stages.
    fn stage(&self, node: usize) -> usize {
        2 * self.n - 1 - node
    }

    /// With the fates of nodes `[from, n)` settled: for each node its known uses, and whether it runs again.
    fn uses(&self, fate: &[bool], from: usize) -> (Vec<Option<Uses>>, Vec<bool>) {
        let mut uses = self.reads.clone();
        let mut again = vec![false; self.n];
        for v in (from..self.n).rev() {
            if fate[v] {
                continue;
            }
            // Dropped: it runs again in the first stage that uses it, if any does, and reads its inputs there.
            let Some(Uses { first, .. }) = uses[v] else { continue };
            again[v] = true;
            for &input in &self.graph.nodes[v].inputs {
                let known = uses[input].get_or_insert(Uses { first, last: first });
                (known.first, known.last) = (known.first.max(first), known.last.min(first));
            }
        }
        (uses, again)
    }

    /// Bytes at each stage with all tensors settled or, where `from` > 0, those before it at their known uses only.
    fn settled_memory(&self, fate: &[bool], from: usize, uses: &[Option<Uses>], again: &[bool]) -> Vec<u64> {
        let mut change = vec![0i128; 2 * self.n + 1];
        for v in 0..self.n {
            let Some(Uses { first, last }) = uses[v] else { continue };
            let bytes = i128::from(self.graph.nodes[v].bytes);
            // Forward stages up to the last reader are in `fixed`.
            let start = if v >= from && fate[v] { self.last_forward[v] + 1 } else { self.stage(first) };
            change[start] += bytes;
            change[self.stage(last) + 1] -= bytes;
        }
        let mut sum = 0;
        let mut memory: Vec<u64> = (0..2 * self.n)
            .map(|stage| {
                sum += change[stage];
                sum as u64
            })
            .collect();
        let tensors = memory.clone();
        for (bytes, fixed) in memory.iter_mut().zip(&self.fixed) {
            *bytes += fixed;
        }
        for v in (from..self.n).filter(|&v| again[v]) {
            let stage = self.stage(uses[v].expect("what runs again has a use").first);
            let running = tensors[stage] + self.idle[stage] + self.graph.nodes[v].forward_working;
            memory[stage] = memory[stage].max(running);
        }
        memory
    }

    /// A lower bound on the cost of whatever settles `[0, from)` too; an error where that cannot fit.
    fn bound(&self, fate: &[bool], from: usize) -> Result<u64, ()> {
        let (uses, again) = self.uses(fate, from);
        let memory = self.settled_memory(fate, from, &uses, &again);
        if memory.iter().any(|&bytes| bytes > self.budget) {
            return Err(());
        }
        let paid: u64 = (from..self.n).filter(|&v| again[v]).map(|v| self.graph.nodes[v].cost).sum();
        // If all the rest that has a use were kept: what exceeds the budget at a stage has to be freed by dropping some of it.
        let mut change = vec![0i128; 2 * self.n + 1];
        for v in 0..from {
            if let Some(Uses { first, .. }) = uses[v] {
                change[self.last_forward[v] + 1] += i128::from(self.graph.nodes[v].bytes);
                change[self.stage(first)] -= i128::from(self.graph.nodes[v].bytes);
            }
        }
        let mut extra = 0i128;
        let mut over: Vec<(u64, usize)> = Vec::new();
        for (stage, &bytes) in memory.iter().enumerate() {
            extra += change[stage];
            let excess = i128::from(bytes) + extra - i128::from(self.budget);
            if excess > 0 {
                over.push((excess as u64, stage));
            }
        }
        // In a large graph the stages that exceed most stand for the others: any of them gives a bound.
        if self.n > SMALL && from < self.n && over.len() > STAGES {
            over.select_nth_unstable_by_key(STAGES, |&(excess, _)| std::cmp::Reverse(excess));
            over.truncate(STAGES);
        }
        let mut worst = 0f64;
        for (mut excess, stage) in over {
            let mut cost = 0.0;
            for &v in self.by_ratio.iter().filter(|&&v| v < from) {
                let Some(Uses { first, .. }) = uses[v] else { continue };
                if stage <= self.last_forward[v] || stage >= self.stage(first) {
                    continue;
                }
                let node = &self.graph.nodes[v];
                if node.bytes >= excess {
                    cost += node.cost as f64 * (excess as f64 / node.bytes as f64);
                    excess = 0;
                    break;
                }
                cost += node.cost as f64;
                excess -= node.bytes;
            }
            if excess > 0 {
                return Err(());
            }
            worst = worst.max(cost);
        }
        // Costs are whole; the factor outweighs the arithmetic's rounding.
        Ok(paid + (worst * (1.0 - 1e-12)).ceil() as u64)
    }

    fn branch(&mut self, fate: &mut Vec<bool>, from: usize, bound: u64) {
        self.examined += 1;
        if self.best.as_ref().is_some_and(|(best, _)| bound >= *best) {
            return;
        }
        if self.examined > self.limit {
            self.open = self.open.min(bound);
            return;
        }
        let Some(v) = from.checked_sub(1) else {
            // Everything is settled: the bound is the cost.
            self.best = Some((bound, fate.clone()));
            return;
        };
        let used = self.uses(fate, from).0[v].is_some();
        let mut branches: Vec<(u64, bool)> = Vec::with_capacity(2);
        // A tensor without a use in backward is not there in backward: one fate only.
        for kept in if used { &[true, false][..] } else { &[false][..] } {
            fate[v] = *kept;
            if let Ok(bound) = self.bound(fate, v) {
                branches.push((bound, *kept));
            }
        }
        branches.sort_by_key(|&(bound, kept)| (bound, !kept));
        for (bound, kept) in branches {
            fate[v] = kept;
            self.branch(fate, v, bound);
        }
    }

    /// Kept sets worth trying: what remains of everything when the cheapest bytes of the worst stage go, one by one; and what crosses the
    /// cuts between runs of nodes of about equal bytes. Each is improved by keeping more.
    fn patterns(&mut self) {
        if let Some(kept) = self.drop_one_by_one() {
            self.offer(kept);
        }
        let total: u64 = self.graph.nodes.iter().map(|node| node.bytes).sum();
        let mut target = 1.max(total / (4 * self.n.max(1) as u64));
        while target <= total.max(1) {
            self.offer(self.cuts(target));
            target = target + target / 2 + 1;
        }
    }

    /// From everything kept: while a stage exceeds the budget, drops of what waits through the worst one the cheapest bytes that help.
    fn drop_one_by_one(&self) -> Option<Vec<bool>> {
        // Of the cheapest candidates so many are tried: one may only move the load to what it is computed from.
        const TRIES: usize = 8;
        let mut kept = vec![true; self.n];
        let (mut uses, again) = self.uses(&kept, 0);
        let mut memory = self.settled_memory(&kept, 0, &uses, &again);
        loop {
            let worst = (0..memory.len()).max_by_key(|&stage| memory[stage])?;
            if memory[worst] <= self.budget {
                return Some(kept);
            }
            let waits = |v: &usize| {
                kept[*v]
                    && uses[*v].is_some_and(|u| worst > self.last_forward[*v] && worst < self.stage(u.first))
            };
            let candidates: Vec<usize> = self.by_ratio.iter().copied().filter(waits).take(TRIES).collect();
            let mut helped = false;
            for v in candidates {
                kept[v] = false;
                let (then_uses, then_again) = self.uses(&kept, 0);
                let then = self.settled_memory(&kept, 0, &then_uses, &then_again);
                if then[worst] < memory[worst] {
                    (uses, memory, helped) = (then_uses, then, true);
                    break;
                }
                kept[v] = true;
            }
            if !helped {
                return None;
            }
        }
    }

    /// Drops everything inside runs of about `target` bytes, and keeps what a later run reads.
    fn cuts(&self, target: u64) -> Vec<bool> {
        let mut run = vec![0usize; self.n];
        let (mut number, mut sum) = (0, 0);
        for (v, node) in self.graph.nodes.iter().enumerate() {
            run[v] = number;
            sum += node.bytes;
            if sum >= target {
                (number, sum) = (number + 1, 0);
            }
        }
        (0..self.n).map(|v| run[self.last_forward[v]] > run[v]).collect()
    }

    fn offer(&mut self, mut kept: Vec<bool>) {
        let fits = |kept: &[bool]| {
            let (uses, again) = self.uses(kept, 0);
            let memory = self.settled_memory(kept, 0, &uses, &again);
            let cost: u64 = (0..self.n).filter(|&v| again[v]).map(|v| self.graph.nodes[v].cost).sum();
            (memory.iter().all(|&bytes| bytes <= self.budget)).then_some(cost)
        };
        let Some(mut cost) = fits(&kept) else { return };
        // Keep more where it still fits, the most expensive bytes first.
        for &v in self.by_ratio.iter().rev() {
            if kept[v] {
                continue;
            }
            kept[v] = true;
            match fits(&kept) {
                Some(less) if less < cost => cost = less,
                _ => kept[v] = false,
            }
        }
        if self.best.as_ref().is_none_or(|(best, _)| cost < *best) {
            self.best = Some((cost, kept));
        }
    }

    /// What the worst stage needs whatever is kept.
    fn least_possible(&self) -> u64 {
        let (uses, again) = (self.reads.clone(), vec![false; self.n]);
        self.settled_memory(&vec![false; self.n], self.n, &uses, &again)
            .into_iter()
            .max()
            .unwrap_or(self.graph.base)
    }
}

/// Bytes at each stage that no choice changes, with and without the working bytes of the stage's own operator.
fn fixed(graph: &Graph, last_forward: &[usize]) -> (Vec<u64>, Vec<u64>) {
    let n = graph.nodes.len();
    let mut idle = vec![graph.base; 2 * n];
    for (v, node) in graph.nodes.iter().enumerate() {
        (v..=last_forward[v]).for_each(|stage| idle[stage] += node.bytes);
        // Its gradient comes with the backward of its last reader (its own, for an output) and goes with its own.
        (2 * n - 1 - last_forward[v]..2 * n - v).for_each(|stage| idle[stage] += node.gradient);
        (2 * n - 1 - v..2 * n).for_each(|stage| idle[stage] += node.parameter_gradient);
    }
    let working = |stage: usize| {
        if stage < n {
            graph.nodes[stage].forward_working
        } else {
            graph.nodes[2 * n - 1 - stage].backward_working
        }
    };
    let fixed = (0..2 * n).map(|stage| idle[stage] + working(stage)).collect();
    (fixed, idle)
}
