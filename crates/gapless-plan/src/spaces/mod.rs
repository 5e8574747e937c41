//! Memory spaces: the memory of each buffer at each time, so that every memory's plan is valid within its capacity and
//! the traffic (accesses x size x cost of a byte) is as low as it can be.
//!
//! [`Spaces`] and one [`Usage`] a buffer in, [`SpacePlan`] out. A buffer whose accesses are only counted lies in one
//! space for its whole lifetime; one whose access times are known may also be moved between accesses, which costs a
//! read in the one space and a write in the other. Lower bounds come from prices on bytes at each time; small questions
//! are answered by branch and bound with the packer as judge, large ones by exchange. The judge of the result is
//! [`validate_spaces`](crate::validate_spaces).

mod branch;
mod exchange;
mod model;
mod pack;
mod prices;
mod question;
mod state;

pub use question::{Accesses, Allowed, Residence, SPACE_LIMIT, Space, SpacePlan, Spaces, Usage};

use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::Options;
use crate::problem::Problem;
use crate::watch::{Clock, Watch};
use model::{Model, Placing};
use pack::Packer;
use state::State;

/// The work if neither effort nor time is limited.
const DEFAULT_EFFORT: u64 = 4_000_000;

/// Up to this many choices branch and bound is tried: beyond, it only costs time.
const BRANCH_LIMIT: usize = 600;

/// Shares of the capacity that are left free of live bytes, so that the chosen buffers pack more easily.
const MARGINS: [f64; 5] = [0.0, 0.01, 0.03, 0.06, 0.12];

/// The progress of a search: a plan with less traffic than any before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceProgress {
    pub traffic: u128,
    pub lower_bound: u128,
    pub elapsed: Duration,
    pub effort: u64,
}

/// Hooks of the caller in a solve; empty by default.
#[derive(Default)]
pub struct SpaceWatch<'a> {
    /// Set it to stop: the best plan so far is returned.
    pub cancel: Option<&'a AtomicBool>,
    /// Called for each better plan.
    pub on_better: Option<&'a mut dyn FnMut(&SpaceProgress)>,
}

impl std::fmt::Debug for SpaceWatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpaceWatch")
            .field("cancel", &self.cancel)
            .field("on_better", &self.on_better.is_some())
            .finish()
    }
}

/// Finds a plan. Of `options`, the capacity is not read (each space has its own); of `watch`, only the flag that stops
/// the work is; [`solve_spaces_watched`] also reports progress. A buffer that can lie in an unlimited space always
/// finds a place.
pub fn solve_spaces(
    problem: &Problem,
    usages: &[Usage],
    spaces: &Spaces,
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<SpacePlan> {
    let mut watch = SpaceWatch { cancel: watch.cancel, on_better: None };
    solve_spaces_watched(problem, usages, spaces, options, &mut watch)
}

/// The same, with a call for each better plan.
pub fn solve_spaces_watched(
    problem: &Problem,
    usages: &[Usage],
    spaces: &Spaces,
    options: &Options,
    watch: &mut SpaceWatch<'_>,
) -> Result<SpacePlan> {
    crate::gaps_and_fixed::check_chunks(problem, options.chunk)?;
    let model = Model::new(problem, usages, spaces)?;
    let three = usages.iter().any(|usage| may_use_three(usage, spaces));
    let mut plan = solve_model(&model, options, watch).map_err(|error| match error {
        Error::SpacesTooSmall { id, proven } => Error::SpacesTooSmall { id, proven: proven && !three },
        other => other,
    })?;
    // The search moves a buffer between two memories. If a third could take part, its bounds do not hold for the
    // question. Then the bound is that every access is at best in the cheapest memory allowed.
    if three {
        plan.lower_bound = plan.lower_bound.min(every_access_at_its_cheapest(problem, usages, spaces));
    }
    Ok(plan)
}

fn may_use_three(usage: &Usage, spaces: &Spaces) -> bool {
    let moves = matches!(&usage.accesses, Accesses::At(times) if times.len() > 1);
    moves && (0..spaces.all().len()).filter(|&at| usage.allowed.contains(at)).count() > 2
}

fn every_access_at_its_cheapest(problem: &Problem, usages: &[Usage], spaces: &Spaces) -> u128 {
    let costs = |usage: &Usage| {
        let allowed = spaces.all().iter().enumerate().filter(|(at, _)| usage.allowed.contains(*at));
        allowed.map(|(_, space)| u128::from(space.cost)).min().unwrap_or(0)
    };
    let count = |usage: &Usage| match &usage.accesses {
        Accesses::Count(count) => u128::from(*count),
        Accesses::At(times) => times.len() as u128,
    };
    let sizes = problem.buffers().iter().map(|buffer| u128::from(buffer.size.0));
    sizes.zip(usages).map(|(size, usage)| size * count(usage) * costs(usage)).sum()
}

fn solve_model(model: &Model<'_>, options: &Options, watch: &mut SpaceWatch<'_>) -> Result<SpacePlan> {
    let mut least = u128::MAX;
    let on_better = &mut watch.on_better;
    let mut tell = |progress: SpaceProgress| {
        if progress.traffic < least
            && let Some(call) = on_better
        {
            least = progress.traffic;
            call(&progress);
        }
    };
    if options.threads <= 1 {
        return solve_once(model, options, watch.cancel, &mut tell);
    }
    let (send, receive) = mpsc::channel::<SpaceProgress>();
    let cancel = watch.cancel;
    let work = |thread: usize| {
        let (options, send) = (options.of_thread(thread), send.clone());
        move || {
            let mut tell = |progress| {
                // Fails only if the caller panicked.
                let _ = send.send(progress);
            };
            solve_once(model, &options, cancel, &mut tell)
        }
    };
    let work: Vec<_> = (0..options.threads).map(work).collect();
    drop(send);
    let answers: Vec<Result<SpacePlan>> =
        gapless_threads::crew("plan of several memories", work, || receive.into_iter().for_each(&mut tell));
    let bound = answers.iter().flatten().map(|plan| plan.lower_bound).max();
    let rank = |answer: &Result<SpacePlan>| match answer {
        Ok(plan) => plan.traffic,
        // A proof that there is no room ranks before a search that found none.
        Err(Error::SpacesTooSmall { proven: true, .. }) => u128::MAX - 1,
        Err(_) => u128::MAX,
    };
    // Of equals the first is taken.
    let best = answers.into_iter().min_by_key(rank);
    // If not a single thread could be started, the work is done here.
    let Some(best) = best else { return solve_once(model, options, watch.cancel, &mut tell) };
    let mut plan = best?;
    plan.lower_bound = bound.map_or(plan.lower_bound, |bound| bound.min(plan.traffic));
    Ok(plan)
}

fn solve_once(
    model: &Model<'_>,
    options: &Options,
    cancel: Option<&AtomicBool>,
    tell: &mut dyn FnMut(SpaceProgress),
) -> Result<SpacePlan> {
    let problem = model.problem;
    let clock = Clock::new(options.time_limit, cancel);
    let limit = options.effort.unwrap_or(match options.time_limit {
        Some(_) => u64::MAX,
        None => DEFAULT_EFFORT,
    });
    let mut packer = Packer::new(model, options, clock, cancel, limit);
    packer.listen(tell);
    let full = model.capacities(0.0);
    let first = exchange::greedy(model, &prices::Prices::none(model), &full).cost();
    let prices = prices::find(model, &full, first, &|| packer.is_over());
    packer.effort += prices.effort;
    packer.bound = prices.bound;

    let mut best: Option<Placing> = None;
    for (round, margin) in MARGINS.into_iter().enumerate() {
        let capacities = model.capacities(margin);
        let mut state = exchange::greedy(model, &prices, &capacities);
        let steps = packer.effort_left().min(limit / 20);
        exchange::improve(&mut state, None, &mut packer, steps, round as u64);
        let (placing, dropped) = packer.pack_or_drop(state.choice_of());
        if best.as_ref().is_none_or(|best| placing.cost < best.cost) {
            packer.tell(placing.cost);
            best = Some(placing);
        }
        if !dropped || packer.is_over() {
            break;
        }
    }
    let mut best = best.unwrap_or_else(|| model.nowhere());
    let mut bound = prices.bound;
    if best.cost > bound && !packer.is_over() {
        let mut state = State::of(model, &full, &best.choice_of);
        let first = packer.effort_left() / 8;
        exchange::improve(&mut state, Some(&mut best), &mut packer, first, 100);
        if model.choices() <= BRANCH_LIMIT && best.cost > bound {
            let nodes = packer.effort_left() / 2;
            bound = bound.max(branch::search(model, &prices, &full, &mut best, &mut packer, nodes));
        }
        if best.cost > bound {
            let mut state = State::of(model, &full, &best.choice_of);
            let rest = packer.effort_left();
            exchange::improve(&mut state, Some(&mut best), &mut packer, rest, 200);
        }
    }
    if let Some(buffer) = model.homeless(&best.choice_of) {
        let proven = bound >= model.no_place();
        return Err(Error::SpacesTooSmall { id: problem.name(buffer), proven });
    }
    packer.finish(best, bound)
}
