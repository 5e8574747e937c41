//! Cheapest path through positions 0..=n where every arc leaves bytes behind and is open only below a level: exact, by
//! Pareto frontiers.
//!
//! A label at a position is (bytes left behind so far, cost so far). An arc with `cap` may be taken by a label with
//! bytes <= cap, and adds `retained` and `cost`. At the end, bytes <= `end_cap`. A label that is worse in both than
//! another goes; so does one that cannot reach the end (`reach`, exact) or cannot beat the best known path (`Bound`, a
//! fractional knapsack). A narrow beam finds that path first.

/// One step from a position to a later one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arc {
    pub(super) to: u32,
    pub(super) retained: u64,
    /// Highest level of bytes at which the arc may be taken; `None` if it never may.
    pub(super) cap: Option<u64>,
    pub(super) cost: u64,
}

/// Positions 0..=n and the arcs between them.
#[derive(Clone, Debug)]
pub(super) struct Lattice {
    /// Arcs by the position that they leave.
    pub(super) arcs: Vec<Vec<Arc>>,
    pub(super) end_cap: Option<u64>,
    /// For the bound: of each position's block, pairs (bytes, cost) of which every path pays at least a convex
    /// combination.
    pub(super) relaxed: Vec<Vec<(u64, u64)>>,
}

/// The arcs taken, by place in their position's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) arcs: Vec<(u32, u32)>,
    pub(super) cost: u64,
    pub(super) lower_bound: u64,
    pub(super) examined: u64,
}

#[derive(Clone, Copy)]
struct Label {
    bytes: u64,
    cost: u64,
    from: u32,
    /// Position and place of the arc taken.
    at: u32,
    arc: u32,
}

/// The part of a label that is kept once its position is done: enough to walk back.
#[derive(Clone, Copy)]
struct Trail {
    from: u32,
    at: u32,
    arc: u32,
}

/// Labels kept at a position by the first, inexact pass; by a second one, if the exact pass grows beyond `NARROW`
/// because costs go with bytes, as in a subset sum: then a path closer to the optimum saves most.
const BEAM: usize = 256;
const WIDE_BEAM: usize = 1024;
const NARROW: usize = 8192;

impl Lattice {
    fn len(&self) -> usize {
        self.arcs.len()
    }

    /// For each position the most bytes with which the end can still be reached: exact, since arcs only add.
    fn reach(&self) -> Vec<Option<u64>> {
        let mut reach = vec![None; self.len() + 1];
        reach[self.len()] = self.end_cap;
        for position in (0..self.len()).rev() {
            reach[position] = self.arcs[position]
                .iter()
                .filter_map(|arc| Some(arc.cap?.min(reach[arc.to as usize]?.checked_sub(arc.retained)?)))
                .max();
        }
        reach
    }

    pub(super) fn is_feasible(&self) -> bool {
        self.reach()[0].is_some()
    }

    /// The cheapest path, or none if no path is open. `limit` bounds the labels of one position: past it the path is
    /// the beam's, and the lower bound says how far from the optimum it can be.
    pub(super) fn cheapest(&self, limit: usize) -> Option<Path> {
        let reach = self.reach();
        reach[0]?;
        let bounds = self.bounds(&reach);
        let root = bounds[0].iter().map(|bound| bound.at(0)).max().unwrap_or(0);
        let mut examined = 0;
        let mut best: Option<Path> = None;
        // Each pass is exact below the best path known so far, as far as its width allows.
        let passes = [(BEAM, true), (NARROW, false), (WIDE_BEAM, true), (limit, false)];
        let mut lower_bound = root;
        for (width, narrow) in passes {
            let below = best.as_ref().map_or(u64::MAX, |path| path.cost);
            if below <= lower_bound {
                break;
            }
            match self.sweep(&reach, &bounds, below, width, narrow) {
                Ok(path) => {
                    examined += path.examined;
                    lower_bound = lower_bound.max(path.lower_bound);
                    best = Some(path);
                }
                Err((proven, looked)) => {
                    examined += looked;
                    lower_bound = lower_bound.max(proven);
                }
            }
        }
        best.map(|path| Path { lower_bound, examined, ..path })
    }

    /// One pass over the positions, for a path that costs less than `below`. The error carries the lower bound proven
    /// and the labels examined.
    fn sweep(
        &self,
        reach: &[Option<u64>],
        bounds: &[Vec<Bound>],
        below: u64,
        width: usize,
        narrow: bool,
    ) -> Result<Path, (u64, u64)> {
        let n = self.len();
        let mut pending: Vec<Vec<Vec<Label>>> = vec![Vec::new(); n + 1];
        let mut trails: Vec<Vec<Trail>> = Vec::with_capacity(n + 1);
        pending[0].push(vec![Label { bytes: 0, cost: 0, from: 0, at: 0, arc: 0 }]);
        let mut examined = 0;
        // A beam that never had to leave a label out has proven as much as an exact pass.
        let mut thinned = false;
        for position in 0..=n {
            let mut labels = merge(std::mem::take(&mut pending[position]));
            if labels.len() > width {
                if !narrow {
                    let rest = self.least_of(&labels, bounds, position, &pending);
                    return Err((rest.min(below), examined));
                }
                thinned = true;
                thin(&mut labels, &bounds[position], width);
            }
            trails.push(labels.iter().map(|&Label { from, at, arc, .. }| Trail { from, at, arc }).collect());
            if position == n {
                let Some(last) = labels.iter().enumerate().min_by_key(|(_, label)| label.cost) else {
                    return Err((if thinned { 0 } else { below }, examined));
                };
                let lower_bound = if thinned { 0 } else { last.1.cost };
                let arcs = walk_back(&trails, last.0);
                return Ok(Path { arcs, cost: last.1.cost, lower_bound, examined });
            }
            for (place, arc) in self.arcs[position].iter().enumerate() {
                let (Some(cap), Some(most)) = (arc.cap, reach[arc.to as usize]) else { continue };
                let Some(most) = most.checked_sub(arc.retained) else { continue };
                let open = labels.partition_point(|label| label.bytes <= cap.min(most));
                let to = &bounds[arc.to as usize];
                let mut cursors = vec![0; to.len()];
                let next = labels[..open].iter().enumerate().map(|(from, label)| Label {
                    bytes: label.bytes + arc.retained,
                    cost: label.cost + arc.cost,
                    from: from as u32,
                    at: position as u32,
                    arc: place as u32,
                });
                examined += open as u64;
                let run: Vec<Label> = next.filter(|label| is_open(to, &mut cursors, label, below)).collect();
                if !run.is_empty() {
                    pending[arc.to as usize].push(run);
                }
            }
        }
        unreachable!("the last position returns")
    }

    fn least_of(
        &self,
        labels: &[Label],
        bounds: &[Vec<Bound>],
        position: usize,
        pending: &[Vec<Vec<Label>>],
    ) -> u64 {
        let here = labels.iter().map(|label| label.cost + least_at(&bounds[position], label.bytes));
        let later = pending.iter().enumerate().flat_map(|(place, labels)| {
            labels.iter().flatten().map(move |label| label.cost + least_at(&bounds[place], label.bytes))
        });
        here.chain(later).min().unwrap_or(u64::MAX)
    }

    /// For each position the bounds that may prune there: towards the end, and towards the positions that every path
    /// passes and that bind most.
    fn bounds(&self, reach: &[Option<u64>]) -> Vec<Vec<Bound>> {
        let n = self.len();
        let mut steps: Vec<Step> = self
            .relaxed
            .iter()
            .enumerate()
            .flat_map(|(block, pairs)| {
                hull(pairs).windows(2).map(move |w| step(block, w)).collect::<Vec<_>>()
            })
            .collect();
        steps.sort_by(|a, b| (a.cost as f64 * b.bytes as f64).total_cmp(&(b.cost as f64 * a.bytes as f64)));
        let mut passed = vec![true; n + 1];
        for (from, arcs) in self.arcs.iter().enumerate() {
            for arc in arcs {
                (from + 1..arc.to as usize).for_each(|between| passed[between] = false);
            }
        }
        // The levels that hold at a position: the most that the caps of its arcs allow.
        let level = |position: usize| {
            if position == n {
                self.end_cap
            } else {
                self.arcs[position].iter().filter_map(|arc| arc.cap).max()
            }
        };
        let mut goals: Vec<(u64, usize)> = (1..=n)
            .filter(|&goal| passed[goal])
            .filter_map(|goal| {
                let bound = Bound::new(&self.relaxed, &steps, 0, goal, level(goal)?);
                Some((bound.at(0), goal))
            })
            .collect();
        goals.sort_by_key(|&(bound, goal)| (std::cmp::Reverse(bound), std::cmp::Reverse(goal)));
        goals.truncate(2);
        if !goals.iter().any(|&(_, goal)| goal == n) {
            goals.push((0, n));
        }
        (0..=n)
            .map(|position| {
                if reach[position].is_none() {
                    return Vec::new();
                }
                let ahead = goals.iter().map(|&(_, goal)| goal).filter(|&goal| goal > position);
                ahead
                    .filter_map(|goal| Some(Bound::new(&self.relaxed, &steps, position, goal, level(goal)?)))
                    .collect()
            })
            .collect()
    }
}

/// Runs sorted by bytes into one, without labels that another beats in both: two by two, so that a run is copied few
/// times.
fn merge(mut runs: Vec<Vec<Label>>) -> Vec<Label> {
    while runs.len() > 1 {
        let mut halved = Vec::with_capacity(runs.len().div_ceil(2));
        let mut pairs = runs.into_iter();
        while let Some(first) = pairs.next() {
            halved.push(match pairs.next() {
                Some(second) => merge_two(&first, &second),
                None => first,
            });
        }
        runs = halved;
    }
    runs.pop().unwrap_or_default()
}

fn merge_two(a: &[Label], b: &[Label]) -> Vec<Label> {
    let mut merged = Vec::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0);
    let mut best = u64::MAX;
    while i < a.len() || j < b.len() {
        let from_a = match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) => (x.bytes, x.cost) <= (y.bytes, y.cost),
            (x, _) => x.is_some(),
        };
        let label = if from_a { a[i] } else { b[j] };
        if from_a {
            i += 1;
        } else {
            j += 1;
        }
        if label.cost < best {
            best = label.cost;
            merged.push(label);
        }
    }
    merged
}

/// Keeps the most promising labels, in their order.
fn thin(labels: &mut Vec<Label>, bounds: &[Bound], width: usize) {
    let mut order: Vec<(u64, u32)> = labels
        .iter()
        .enumerate()
        .map(|(place, label)| (label.cost + least_at(bounds, label.bytes), place as u32))
        .collect();
    order.select_nth_unstable(width - 1);
    let mut keep: Vec<u32> = order[..width].iter().map(|&(_, place)| place).collect();
    keep.sort_unstable();
    *labels = keep.into_iter().map(|place| labels[place as usize]).collect();
}

fn walk_back(trails: &[Vec<Trail>], last: usize) -> Vec<(u32, u32)> {
    let mut arcs = Vec::new();
    let (mut position, mut place) = (trails.len() - 1, last);
    while position > 0 {
        let trail = trails[position][place];
        arcs.push((trail.at, trail.arc));
        (position, place) = (trail.at as usize, trail.from as usize);
    }
    arcs.reverse();
    arcs
}

/// Bytes that can be freed in one block for a cost, steepest first.
#[derive(Clone, Copy)]
struct Step {
    block: usize,
    bytes: u64,
    cost: u64,
}

fn step(block: usize, ends: &[(u64, u64)]) -> Step {
    Step { block, bytes: ends[0].0 - ends[1].0, cost: ends[1].1 - ends[0].1 }
}

/// The lower convex hull of (bytes, cost), from the cheapest to the smallest.
fn hull(pairs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut sorted = pairs.to_vec();
    sorted.sort_unstable_by_key(|&(bytes, cost)| (cost, bytes));
    let mut hull: Vec<(u64, u64)> = Vec::new();
    for (bytes, cost) in sorted {
        if hull.last().is_some_and(|last| bytes >= last.0) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let gentler = u128::from(b.1 - a.1) * u128::from(b.0 - bytes)
                >= u128::from(cost - b.1) * u128::from(a.0 - b.0);
            if !gentler {
                break;
            }
            hull.pop();
        }
        hull.push((bytes, cost));
    }
    hull
}

/// A lower bound on the cost of the blocks `[from, goal)`: all at their cheapest, then freed by the cheapest steps, the
/// last one in part, until the level at `goal` holds.
struct Bound {
    /// Bytes that may be left behind without any cost.
    free: u64,
    base_cost: u64,
    /// Freed bytes and cost after each step, from (0, 0).
    freed: Vec<(u64, u64)>,
}

impl Bound {
    fn new(relaxed: &[Vec<(u64, u64)>], steps: &[Step], from: usize, goal: usize, level: u64) -> Bound {
        let cheapest =
            relaxed[from..goal].iter().map(|pairs| pairs.iter().min_by_key(|&&(bytes, cost)| (cost, bytes)));
        let (bytes, base_cost) =
            cheapest.flatten().fold((0, 0), |(b, c), &(bytes, cost)| (b + bytes, c + cost));
        let mut freed = vec![(0, 0)];
        let mut sum = (0, 0);
        for step in steps.iter().filter(|step| (from..goal).contains(&step.block)) {
            sum = (sum.0 + step.bytes, sum.1 + step.cost);
            freed.push(sum);
        }
        // If even the cheapest blocks exceed the level by themselves, the excess begins below zero bytes: kept as a
        // shift of the curve.
        let free = level.saturating_sub(bytes);
        let mut bound = Bound { free, base_cost, freed };
        if bytes > level {
            bound.shift(bytes - level);
        }
        bound
    }

    /// Begins the curve where `excess` bytes have been freed.
    fn shift(&mut self, excess: u64) {
        let place = self.freed.partition_point(|&(freed, _)| freed <= excess);
        // Rounded down: the curve that begins here must stay below the true one.
        let paid = self.share(place, excess).floor() as u64;
        let rest = self.freed.split_off(place.min(self.freed.len()));
        self.base_cost += paid;
        self.freed = std::iter::once((0, 0))
            .chain(rest.into_iter().map(|(freed, cost)| (freed - excess, cost.saturating_sub(paid))))
            .collect();
    }

    /// The least cost of freeing `excess`; `place` is the first step whose sum exceeds it. Costs are whole, so a
    /// fraction rounds up.
    fn paid(&self, place: usize, excess: u64) -> u64 {
        self.share(place, excess).ceil() as u64
    }

    fn share(&self, place: usize, excess: u64) -> f64 {
        let (before, cost) = self.freed[place - 1];
        let Some(&(after, then)) = self.freed.get(place) else { return cost as f64 * (1.0 - 1e-12) };
        let part = (then - cost) as f64 * ((excess - before) as f64 / (after - before) as f64);
        // The factor outweighs the arithmetic's own rounding.
        (cost as f64 + part) * (1.0 - 1e-12)
    }

    fn at(&self, bytes: u64) -> u64 {
        let excess = bytes.saturating_sub(self.free);
        let place = self.freed.partition_point(|&(freed, _)| freed <= excess);
        self.base_cost + if excess == 0 { 0 } else { self.paid(place, excess) }
    }

    /// As `at`, for bytes that never fall from call to call.
    fn at_from(&self, cursor: &mut usize, bytes: u64) -> u64 {
        let excess = bytes.saturating_sub(self.free);
        if excess == 0 {
            return self.base_cost;
        }
        while self.freed.get(*cursor).is_some_and(|&(freed, _)| freed <= excess) {
            *cursor += 1;
        }
        self.base_cost + self.paid(*cursor, excess)
    }
}

/// True if the label may still end below `below`, as far as the bounds tell (at the last position there are none). The
/// cursors follow labels in the order of their bytes.
fn is_open(bounds: &[Bound], cursors: &mut [usize], label: &Label, below: u64) -> bool {
    label.cost < below
        && bounds
            .iter()
            .zip(cursors)
            .all(|(bound, cursor)| label.cost + bound.at_from(cursor, label.bytes) < below)
}

fn least_at(bounds: &[Bound], bytes: u64) -> u64 {
    bounds.iter().map(|bound| bound.at(bytes)).max().unwrap_or(0)
}
