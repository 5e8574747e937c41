//! In-place reuse: a buffer that may take the place of one that an operation reads while it writes the other.
//!
//! [`Shares`] has for each buffer the one whose place it may take; then both may lie at the same offset although both
//! are alive while that operation runs. [`solve_sharing`] chains buffers if that lowers the live bytes, plans each
//! chain as one buffer of its largest size, and compares with the plan without sharing and with other chains. The judge
//! is [`validate_sharing`](crate::validate_sharing). A link is only ever permission: no plan must use it.

mod shares;

pub use shares::Shares;

use gapless_trace::Bytes;

use crate::error::{Error, Result};
use crate::load::Load;
use crate::options::Options;
use crate::problem::{Buffer, Lifetime, Plan, Problem};
use crate::rng::Rng;
use crate::solve::{Solution, solve, solve_without_conflict};
use crate::watch::{Clock, Progress, Watch};

/// The live bytes of every time if each link saved all it can, the largest of them: no plan, sharing or not, is lower.
#[must_use]
pub fn sharing_lower_bound(problem: &Problem, shares: &Shares) -> Bytes {
    let buffers = problem.buffers();
    let mut moments: Vec<(i64, i128)> = Vec::with_capacity(problem.len() * 2);
    let mut add = |time: Lifetime, size: i128| moments.extend([(time.start, size), (time.end, -size)]);
    for buffer in buffers {
        buffer.pieces().for_each(|piece| add(piece, i128::from(buffer.size.0)));
    }
    for (taker, giver) in shares.links() {
        let both = Lifetime::new(buffers[taker].lifetime.start, buffers[giver].lifetime.end);
        add(both, -i128::from(buffers[taker].size.0.min(buffers[giver].size.0)));
    }
    moments.sort_unstable();
    let (mut live, mut most, mut at) = (0i128, 0i128, 0);
    while at < moments.len() {
        let time = moments[at].0;
        while at < moments.len() && moments[at].0 == time {
            live += moments[at].1;
            at += 1;
        }
        most = most.max(live);
    }
    let tops = buffers.iter().map(|buffer| buffer.fixed.unwrap_or_default() + buffer.size);
    Bytes(most as u64).max(tops.max().unwrap_or_default())
}

/// Finds a plan in which buffers may take each other's places. With a capacity, `fits` is `None` if the live bytes do
/// not rule a plan out and none was found: the search over chains is not exact.
pub fn solve_sharing(
    problem: &Problem,
    shares: &Shares,
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<Solution> {
    if shares.len() != problem.len() {
        let what = format!("{} entries for {} buffers", shares.len(), problem.len());
        return Err(Error::Shares { what });
    }
    if shares.links().next().is_none() {
        return solve(problem, options, watch);
    }
    let bound = sharing_lower_bound(problem, shares);
    let goal = options.capacity.map_or(bound, |capacity| capacity.max(bound));
    let mut best = solve_chained(problem, &Chains::choose(problem, shares, None), bound, options, watch)?;
    let clock = Clock::new(options.time_limit, watch.cancel);
    // Without sharing the offsets are freer, which is tried only if it can win. Then other chains by chance.
    let small = options.effort.unwrap_or(u64::MAX).min(best.effort.max(GUESS_EFFORT));
    let small = Options { effort: Some(small), ..options.clone() };
    let mut rng = Rng::new(options.seed);
    let guesses = (GUESS_WORK / (problem.len() as u64 + 1)).min(MOST_GUESSES);
    for guess in 0..=guesses {
        let spent = options.effort.is_some_and(|effort| best.effort >= effort.saturating_mul(2));
        if best.plan.peak <= goal || clock.is_over() || spent {
            break;
        }
        let chains = if guess == 0 {
            Chains::none(problem)
        } else {
            Chains::choose(problem, shares, Some((&mut rng, best.plan.peak)))
        };
        if chains.most_live < best.plan.peak {
            let mut quiet = Watch { cancel: watch.cancel, on_better: None };
            let left = options.time_limit.map(|limit| limit.saturating_sub(clock.elapsed()));
            let small = Options { time_limit: left, ..small.clone() };
            let other = solve_chained(problem, &chains, bound, &small, &mut quiet)?;
            let effort = best.effort + other.effort;
            if other.plan.peak < best.plan.peak {
                best = other;
                if let Some(call) = &mut watch.on_better {
                    let (plan, lower_bound) = (&best.plan, bound.min(best.plan.peak));
                    call(&Progress { plan, lower_bound, elapsed: clock.elapsed(), effort });
                }
            }
            best.effort = effort;
        }
    }
    // A proof about chains is no proof about this problem: its own bound counts.
    best.lower_bound = bound.min(best.plan.peak);
    best.conflict = Vec::new();
    best.fits = options.capacity.and_then(|capacity| match best.plan.peak <= capacity {
        true => Some(true),
        false => (bound > capacity).then_some(false),
    });
    Ok(best)
}

/// Nodes for a guess, at least.
const GUESS_EFFORT: u64 = 5_000;

/// Other chains that are tried, and the buffers in all of them together. On 60 random problems of 5 buffers the plans
/// were at the optimum in 52 without guesses.
const MOST_GUESSES: u64 = 40;
const GUESS_WORK: u64 = 400_000;

/// The plan of the chains, as one of the buffers.
fn solve_chained(
    problem: &Problem,
    chains: &Chains,
    bound: Bytes,
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<Solution> {
    let (chained, slot_of) = chains.problem(problem)?;
    let spread =
        |plan: &Plan| Plan::of_offsets(problem, slot_of.iter().map(|slot| plan.offsets[*slot]).collect());
    let mut tell = |progress: &Progress<'_>| {
        if let Some(call) = &mut watch.on_better {
            let plan = spread(progress.plan);
            let lower_bound = bound.min(plan.peak);
            call(&Progress { plan: &plan, lower_bound, ..*progress });
        }
    };
    let mut inner = Watch { cancel: watch.cancel, on_better: Some(&mut tell) };
    let mut solution = solve_without_conflict(&chained, options, &mut inner)?;
    solution.plan = spread(&solution.plan);
    Ok(solution)
}

/// The links that are used. Invariants: every buffer gives and takes at most once, so that links form chains; when one
/// takes, the buffer that gave its place to the giver is over.
struct Chains {
    /// The first of the chain that each buffer is in.
    head: Vec<usize>,
    /// The most bytes that are alive at one time with chains as single buffers: the peak is no lower.
    most_live: Bytes,
}

impl Chains {
    fn none(problem: &Problem) -> Chains {
        Chains { head: (0..problem.len()).collect(), most_live: crate::bound::lower_bound(problem) }
    }

    /// Follows the chain to its head and shortens the way for the next time.
    fn head_of(&mut self, mut buffer: usize) -> usize {
        while self.head[buffer] != buffer {
            self.head[buffer] = self.head[self.head[buffer]];
            buffer = self.head[buffer];
        }
        buffer
    }

    /// Takes links in the order of the bytes x time that they save, each if the peak of the live bytes does not rise
    /// and either falls or, on the whole, bytes x time do. With a guess: in a random order, each as long as the peak of
    /// the live bytes stays below the one given, and some left out.
    fn choose(problem: &Problem, shares: &Shares, mut guess: Option<(&mut Rng, Bytes)>) -> Chains {
        let buffers = problem.buffers();
        let mut times: Vec<i64> =
            buffers.iter().flat_map(|buffer| [buffer.lifetime.start, buffer.lifetime.end]).collect();
        times.sort_unstable();
        times.dedup();
        let at = |time: i64| times.binary_search(&time).unwrap_or_else(|at| at) as u32;
        let span = |life: Lifetime| (at(life.start), at(life.end));
        let whole = (0, times.len().saturating_sub(1).max(1) as u32);
        let mut load = Load::new(times.len());
        for buffer in buffers {
            for piece in buffer.pieces() {
                load.add(span(piece), buffer.size.0 as i64);
            }
        }
        let mut links: Vec<(i128, usize, usize)> = shares
            .links()
            .map(|(taker, giver)| (saved(&buffers[taker], &buffers[giver]), taker, giver))
            .filter(|(_, taker, giver)| may_chain(&buffers[*taker], &buffers[*giver]))
            .collect();
        links.sort_unstable_by_key(|(saved, taker, _)| (std::cmp::Reverse(*saved), *taker));
        if let Some((rng, _)) = &mut guess {
            for at in (1..links.len()).rev() {
                links.swap(at, rng.below(at as u64 + 1) as usize);
            }
        }
        let mut chains = Chains::none(problem);
        // Each chain as one buffer, at its head; its members follow.
        let mut chain: Vec<(Lifetime, u64)> =
            buffers.iter().map(|buffer| (buffer.lifetime, buffer.size.0)).collect();
        let mut taken_by: Vec<Option<usize>> = vec![None; buffers.len()];
        let mut takes: Vec<Option<usize>> = vec![None; buffers.len()];
        let end = |buffer: usize| buffers[buffer].lifetime.end;
        let start = |buffer: usize| buffers[buffer].lifetime.start;
        for (saved, taker, giver) in links {
            // One operation at a time: the previous giver must be over when the next takes.
            let early = takes[giver].is_some_and(|before| end(before) > start(taker));
            let late = taken_by[taker].is_some_and(|after| end(giver) > start(after));
            if taken_by[giver].is_some() || early || late {
                continue;
            }
            // The taker is the head of its chain until it takes; chains grow at both ends.
            let head = chains.head_of(giver);
            let (a, b) = (chain[head], chain[taker]);
            let joined = (Lifetime::new(a.0.start, b.0.end.max(a.0.end)), a.1.max(b.1));
            let before = load.most(whole).0;
            load.add(span(a.0), -(a.1 as i64));
            load.add(span(b.0), -(b.1 as i64));
            load.add(span(joined.0), joined.1 as i64);
            let after = load.most(whole).0;
            let good = match &mut guess {
                None => after < before || (after == before && saved > 0),
                Some((rng, peak)) => rng.below(4) > 0 && (after < peak.0 as i64 || after <= before),
            };
            if good {
                chain[head] = joined;
                chains.head[taker] = head;
                (taken_by[giver], takes[taker]) = (Some(taker), Some(giver));
            } else {
                load.add(span(joined.0), -(joined.1 as i64));
                load.add(span(b.0), b.1 as i64);
                load.add(span(a.0), a.1 as i64);
            }
        }
        chains.most_live = Bytes(load.most(whole).0 as u64);
        for buffer in 0..buffers.len() {
            chains.head[buffer] = chains.head_of(buffer);
        }
        chains
    }

    /// Chains as buffers, and for each buffer the position of its chain.
    fn problem(&self, problem: &Problem) -> Result<(Problem, Vec<usize>)> {
        let mut slot = vec![usize::MAX; problem.len()];
        let mut all: Vec<Buffer> = Vec::new();
        for (index, buffer) in problem.buffers().iter().enumerate() {
            if self.head[index] == index {
                slot[index] = all.len();
                all.push(buffer.clone());
            }
        }
        for (index, buffer) in problem.buffers().iter().enumerate() {
            let head = self.head[index];
            if head != index {
                let chain = &mut all[slot[head]];
                chain.lifetime.end = chain.lifetime.end.max(buffer.lifetime.end);
                chain.size = chain.size.max(buffer.size);
                chain.alignment = chain.alignment.max(buffer.alignment);
                chain.hint = None;
                slot[index] = slot[head];
            }
        }
        Ok((Problem::new(all)?, slot))
    }
}

/// True if neither is fixed and one alignment serves both.
fn may_chain(taker: &Buffer, giver: &Buffer) -> bool {
    let (a, b) = (taker.alignment.0, giver.alignment.0);
    let both = a.is_power_of_two() && b.is_power_of_two() || a == b;
    both && taker.fixed.is_none() && giver.fixed.is_none()
}

/// Bytes x time saved by lying in one place, less those that the smaller wastes in the place of the larger.
fn saved(taker: &Buffer, giver: &Buffer) -> i128 {
    let length = |start: i64, end: i64| i128::from(end) - i128::from(start);
    let both = length(taker.lifetime.start, giver.lifetime.end);
    let area = |buffer: &Buffer| {
        length(buffer.lifetime.start, buffer.lifetime.end).saturating_mul(i128::from(buffer.size.0))
    };
    let all = length(giver.lifetime.start, taker.lifetime.end);
    let joined = all.saturating_mul(i128::from(taker.size.0.max(giver.size.0)));
    if both == 0 { 0 } else { area(taker).saturating_add(area(giver)).saturating_sub(joined) }
}
