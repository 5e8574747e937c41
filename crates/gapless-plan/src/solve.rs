//! The whole planner: the problem is split into parts, and the part that decides the peak is worked on, turn by turn,
//! until the bound is reached, the effort is spent, or the caller stops it. The best plan is always kept.
//!
//! Work is counted in nodes and steps and dealt out in turns, so the plan depends on the seed and the effort alone;
//! a time limit only cuts the sequence off.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use gapless_trace::Bytes;

use crate::compact::Compact;
use crate::conflict;
use crate::connected_part::{Part, Turn};
use crate::error::{Error, Result};
use crate::gaps_and_fixed;
use crate::join::{Joined, join};
use crate::options::Options;
use crate::problem::{Plan, Problem};
use crate::split::Split;
use crate::watch::{Clock, Progress, Watch};

/// The answer.
#[derive(Clone, Debug)]
pub struct Solution {
    pub plan: Plan,
    /// No plan has a lower peak than this.
    pub lower_bound: Bytes,
    /// True if the plan keeps within the capacity; `None` if no capacity was given or the search was cut off.
    pub fits: Option<bool>,
    /// If it does not fit: buffers, by position, that cannot fit together, if such a set was found.
    pub conflict: Vec<usize>,
    /// Search nodes and steps.
    pub effort: u64,
}

impl Solution {
    #[must_use]
    pub fn proven_optimal(&self) -> bool {
        self.plan.peak == self.lower_bound
    }

    /// Peak over bound; 1 for the empty problem.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.lower_bound.0 == 0 { 1.0 } else { self.plan.peak.share_of(self.lower_bound) }
    }
}

/// Finds a plan. Errors are about the question; a problem that does not fit is an answer.
pub fn solve(problem: &Problem, options: &Options, watch: &mut Watch<'_>) -> Result<Solution> {
    let clock = Clock::new(options.time_limit, watch.cancel);
    let mut solution = solve_without_conflict(problem, options, watch)?;
    if is_general(problem, options) {
        return Ok(solution);
    }
    if let (Some(false), Some(capacity)) = (solution.fits, options.capacity) {
        let part = Options { effort: Some(CONFLICT_EFFORT), ..options.of_thread(0) };
        let spent = Cell::new(0);
        let mut refutes = |rest: &Problem| {
            let answer = solve_plain(rest, &part, clock, &mut Watch::default());
            spent.set(spent.get() + answer.effort);
            answer.fits == Some(false)
        };
        let stop = || clock.is_over() || spent.get() > CONFLICT_EFFORT * 50;
        solution.conflict = conflict::shrink(problem, capacity, &mut refutes, &stop);
        solution.effort += spent.get();
    }
    Ok(solution)
}

/// The same for callers that do not need the conflict.
pub(crate) fn solve_without_conflict(
    problem: &Problem,
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<Solution> {
    check(problem, options)?;
    if options.threads > 1 {
        return side_by_side(problem, options, watch);
    }
    if is_general(problem, options) {
        return solve_general(problem, options, watch);
    }
    let clock = Clock::new(options.time_limit, watch.cancel);
    Ok(solve_plain(problem, options, clock, watch))
}

/// One seed a thread. The one that reaches the goal with the least effort wins (the first among equals): others stop
/// once they have spent more, and none that could win does, so timing does not decide. If none reaches it, all spend
/// all of their effort, and the lowest peak wins.
fn side_by_side(problem: &Problem, options: &Options, watch: &mut Watch<'_>) -> Result<Solution> {
    let clock = Clock::new(options.time_limit, watch.cancel);
    let race = AtomicU64::new(u64::MAX);
    let listens = watch.on_better.is_some();
    let (send, receive) = mpsc::channel::<Better>();
    let cancel = watch.cancel;
    let work = |thread: usize| {
        let (options, race, send) = (options.of_thread(thread), &race, send.clone());
        move || {
            let mut tell = |progress: &Progress<'_>| {
                let Progress { lower_bound, elapsed, effort, .. } = *progress;
                // Fails only if the caller panicked.
                let _ = send.send(Better { plan: progress.plan.clone(), lower_bound, elapsed, effort });
            };
            let on_better: Option<&mut dyn FnMut(&Progress<'_>)> =
                if listens { Some(&mut tell) } else { None };
            let mut watch = Watch { cancel, on_better };
            if is_general(problem, &options) {
                solve_general(problem, &options, &mut watch)
            } else {
                Ok(solve_in_race(problem, &options, clock, &mut watch, Some(race)))
            }
        }
    };
    let work: Vec<_> = (0..options.threads).map(work).collect();
    drop(send);
    let listen = || {
        let mut best = Bytes(u64::MAX);
        for better in receive {
            if better.plan.peak < best
                && let Some(call) = &mut watch.on_better
            {
                best = better.plan.peak;
                let Better { plan, lower_bound, elapsed, effort } = &better;
                let (lower_bound, elapsed, effort) = (*lower_bound, *elapsed, *effort);
                call(&Progress { plan, lower_bound, elapsed, effort });
            }
        }
    };
    let answers = gapless_threads::crew("plan", work, listen);
    let mut solutions = answers.into_iter().collect::<Result<Vec<Solution>>>()?;
    let reached = |solution: &Solution| {
        let goal =
            options.capacity.map_or(solution.lower_bound, |capacity| capacity.max(solution.lower_bound));
        solution.plan.peak <= goal
    };
    let winner = (0..solutions.len())
        .filter(|at| reached(&solutions[*at]))
        .min_by_key(|at| (solutions[*at].effort, *at));
    if let Some(winner) = winner {
        return Ok(solutions.swap_remove(winner));
    }
    let lower_bound = solutions.iter().map(|solution| solution.lower_bound).max();
    let lowest = (0..solutions.len()).min_by_key(|at| (solutions[*at].plan.peak, *at));
    // If not a single thread could be started, the work is done here.
    let Some(lowest) = lowest else { return solve_without_conflict(problem, &options.of_thread(0), watch) };
    let mut solution = solutions.swap_remove(lowest);
    solution.lower_bound = lower_bound.map_or(solution.lower_bound, |bound| bound.min(solution.plan.peak));
    if options.capacity.is_some_and(|capacity| solution.lower_bound > capacity) {
        solution.fits = Some(false);
    }
    Ok(solution)
}

/// A better plan on its way from a thread to the caller.
struct Better {
    plan: Plan,
    lower_bound: Bytes,
    elapsed: Duration,
    effort: u64,
}

fn is_general(problem: &Problem, options: &Options) -> bool {
    gaps_and_fixed::is_general(problem) || options.chunk.is_some()
}

/// Nodes to decide if a part of a conflict is a conflict too.
const CONFLICT_EFFORT: u64 = 20_000;

/// Gaps and fixed offsets. If nothing is fixed, filling the gaps leaves a plain problem whose plans are valid too.
fn solve_general(problem: &Problem, options: &Options, watch: &mut Watch<'_>) -> Result<Solution> {
    let clock = Clock::new(options.time_limit, watch.cancel);
    let (mut plan, mut effort) = gaps_and_fixed::plan(problem, options, &clock, watch);
    let lower_bound = crate::bound::lower_bound(problem);
    let goal = options.capacity.map_or(lower_bound, |capacity| capacity.max(lower_bound));
    let free = options.chunk.is_none() && problem.buffers().iter().all(|buffer| buffer.fixed.is_none());
    if free && plan.peak > goal && !clock.is_over() {
        // The bound of the filled problem may be above that of this one, so its search ends by effort.
        let left = options.effort.map_or(GAPLESS_EFFORT, |effort| effort.min(GAPLESS_EFFORT));
        let options = Options { effort: Some(left), capacity: None, ..options.clone() };
        let quiet = &mut Watch { cancel: watch.cancel, on_better: None };
        let filled = solve_plain(problem, &options, clock, quiet);
        effort += filled.effort;
        if filled.plan.peak < plan.peak {
            plan = filled.plan;
            if let Some(call) = &mut watch.on_better {
                let lower_bound = lower_bound.min(plan.peak);
                call(&Progress { plan: &plan, lower_bound, elapsed: clock.elapsed(), effort });
            }
        }
    }
    let fits = options.capacity.and_then(|capacity| match plan.peak <= capacity {
        true => Some(true),
        false => (lower_bound > capacity).then_some(false),
    });
    let conflict = match (fits, options.capacity) {
        (Some(false), Some(capacity)) => crate::bound::conflict(problem, capacity),
        _ => Vec::new(),
    };
    Ok(Solution { lower_bound: lower_bound.min(plan.peak), plan, fits, conflict, effort })
}

/// Nodes and steps for the problem with its gaps filled.
const GAPLESS_EFFORT: u64 = 200_000;

fn solve_plain(problem: &Problem, options: &Options, clock: Clock<'_>, watch: &mut Watch<'_>) -> Solution {
    solve_in_race(problem, options, clock, watch, None)
}

/// `race` is the least effort with which one of several threads reached its goal.
fn solve_in_race(
    problem: &Problem,
    options: &Options,
    clock: Clock<'_>,
    watch: &mut Watch<'_>,
    race: Option<&AtomicU64>,
) -> Solution {
    let compact = Compact::of_problem(problem);
    let plain = compact.align.is_empty();
    let split = if options.tricks.split && plain { Split::of(&compact) } else { Split::whole(&compact) };
    let joined: Vec<OnceCell<Joined>> = split.parts.iter().map(|_| OnceCell::new()).collect();
    let parts = split.parts.iter().map(Part::new).collect();
    let mut run = Run::new(problem, &compact, &split, parts, options, clock, watch);
    run.race = race;
    run.first();
    if options.tricks.join && plain && !run.is_done() {
        for (at, cell) in joined.iter().enumerate() {
            run.parts[at].add_joined(cell.get_or_init(|| join(&split.parts[at])));
        }
    }
    run.all();
    run.finish()
}

fn check(problem: &Problem, options: &Options) -> Result<()> {
    gaps_and_fixed::check_fixed(problem, options.capacity)?;
    gaps_and_fixed::check_chunks(problem, options.chunk)?;
    let Some(capacity) = options.capacity else { return Ok(()) };
    for (index, buffer) in problem.buffers().iter().enumerate() {
        if buffer.size > capacity {
            return Err(Error::CapacityBelowLargest {
                capacity: capacity.0,
                id: problem.name(index),
                size: buffer.size.0,
            });
        }
    }
    Ok(())
}

struct Run<'a, 'w, 'f, 'c> {
    problem: &'a Problem,
    compact: &'a Compact,
    split: &'a Split,
    parts: Vec<Part<'a>>,
    /// For each part the height at which its highest copy begins.
    base: Vec<i64>,
    /// The top of the buffers under all parts.
    under: i64,
    options: &'a Options,
    watch: &'w mut Watch<'f>,
    clock: Clock<'c>,
    capacity: Option<i64>,
    /// The peak that was last reported, in units.
    best: i64,
    effort: u64,
    race: Option<&'a AtomicU64>,
}

impl<'a, 'w, 'f, 'c> Run<'a, 'w, 'f, 'c> {
    fn new(
        problem: &'a Problem,
        compact: &'a Compact,
        split: &'a Split,
        parts: Vec<Part<'a>>,
        options: &'a Options,
        clock: Clock<'c>,
        watch: &'w mut Watch<'f>,
    ) -> Self {
        let mut base = vec![0; parts.len()];
        for copy in &split.copies {
            base[copy.part] = base[copy.part].max(copy.base);
        }
        let tops = split.under.iter().map(|(slot, offset)| offset + compact.size[*slot as usize]);
        Run {
            under: tops.max().unwrap_or(0),
            clock,
            capacity: options.capacity.map(|capacity| (capacity.0 / compact.unit as u64) as i64),
            problem,
            compact,
            split,
            parts,
            base,
            options,
            watch,
            best: i64::MAX,
            effort: 0,
            race: None,
        }
    }

    fn bound(&self) -> i64 {
        let parts = self.parts.iter().zip(&self.base).map(|(part, base)| base + part.bound);
        parts.max().unwrap_or(0).max(self.under)
    }

    fn goal(&self) -> i64 {
        self.capacity.map_or(0, |capacity| capacity).max(self.bound())
    }

    /// The part that reaches highest, and its top.
    fn highest(&self) -> Option<(usize, i64)> {
        let tops = self.parts.iter().zip(&self.base).map(|(part, base)| part.best.saturating_add(*base));
        tops.enumerate().max_by_key(|(at, top)| (*top, std::cmp::Reverse(*at)))
    }

    fn is_over(&self) -> bool {
        self.clock.is_over()
            || self.is_behind()
            || self.options.effort.is_some_and(|effort| self.effort >= effort)
    }

    /// True if another thread reached its goal with less effort.
    fn is_behind(&self) -> bool {
        self.race.is_some_and(|least| self.effort > least.load(Ordering::Relaxed))
    }

    /// Every part gets its first pass whatever the limits, so that there is a plan.
    fn first(&mut self) {
        for at in 0..self.parts.len() {
            self.turn(at, Part::pass);
        }
        self.report();
    }

    fn is_done(&self) -> bool {
        self.highest().is_none_or(|(_, top)| top <= self.goal()) || self.is_over()
    }

    fn all(&mut self) {
        while let Some((at, top)) = self.highest() {
            if top <= self.goal() || self.is_over() {
                break;
            }
            if !self.turn(at, |part, turn| part.pass(turn) || part.search(turn)) {
                break;
            }
            self.report();
        }
    }

    fn turn(&mut self, at: usize, work: impl FnOnce(&mut Part<'a>, &mut Turn<'_>) -> bool) -> bool {
        let (clock, race, begun) = (self.clock, self.race, self.effort);
        let mut turn = Turn {
            goal: self.goal() - self.base[at],
            within: self.capacity.is_some(),
            options: self.options,
            stop: &|| clock.is_over() || race.is_some_and(|least| begun > least.load(Ordering::Relaxed)),
            effort: 0,
        };
        let worked = work(&mut self.parts[at], &mut turn);
        self.effort += turn.effort;
        worked
    }

    fn report(&mut self) {
        let peak = self.highest().map_or(self.under, |(_, top)| top.max(self.under));
        if peak >= self.best {
            return;
        }
        self.best = peak;
        if self.watch.on_better.is_some() {
            let plan = self.plan();
            let lower_bound = Bytes((self.bound() * self.compact.unit) as u64).min(plan.peak);
            let (elapsed, effort) = (self.clock.elapsed(), self.effort);
            if let Some(call) = &mut self.watch.on_better {
                call(&Progress { plan: &plan, lower_bound, elapsed, effort });
            }
        }
    }

    fn plan(&self) -> Plan {
        let mut offsets = vec![Bytes::ZERO; self.problem.len()];
        let mut set = |slot: u32, offset: i64| {
            let index = self.compact.original[slot as usize] as usize;
            offsets[index] = Bytes((offset * self.compact.unit) as u64);
        };
        for (slot, offset) in &self.split.under {
            set(*slot, *offset);
        }
        for copy in &self.split.copies {
            for (slot, offset) in copy.slots.iter().zip(&self.parts[copy.part].offsets) {
                set(*slot, copy.base + offset);
            }
        }
        Plan::of_offsets(self.problem, offsets)
    }

    fn finish(self) -> Solution {
        if let Some(race) = self.race.filter(|_| self.highest().is_none_or(|(_, top)| top <= self.goal())) {
            race.fetch_min(self.effort, Ordering::Relaxed);
        }
        let plan = self.plan();
        let lower_bound = Bytes((self.bound() * self.compact.unit) as u64).min(plan.peak);
        let fits = self.options.capacity.and_then(|capacity| {
            if plan.peak <= capacity {
                Some(true)
            } else if lower_bound > capacity {
                Some(false)
            } else {
                None
            }
        });
        Solution { plan, lower_bound, fits, conflict: Vec::new(), effort: self.effort }
    }
}
