//! One part of a problem: buffers connected in time, above those that lie under all of them, with the state of its
//! search.
//!
//! A part is worked on in turns. Each turn of each form of it (joined, and as it is) is a run of exact search at the
//! bound, one at a target between the bound and the best plan, and an attempt of ejection.

mod join_guesses;
mod peaks_first;

use self::peaks_first::{CORE_LEAST, core_first};
use crate::compact::Compact;
use crate::exact::{Answer, Restarts};
use crate::improve::Improver;
use crate::join::{Careful, Joined};
use crate::options::Options;
use crate::passes::{Pass, orders};
use crate::sweep::{crowd, sweep};

/// The most buffers (after joining) on which exact search is tried: its nodes cost O(n).
pub(crate) const EXACT_LIMIT: usize = 4000;

/// Above [`EXACT_LIMIT`], a joined form must be smaller by this factor: else the search of both costs twice the work.
const WORTH_JOINING: f64 = 0.9;

/// Above this many pairs of buffers alive together the first plan is a sweep: a pass might read a few nanoseconds for
/// each, and the first plan is not to take more than a few seconds.
const CROWDED: u64 = 3_000_000_000;

/// Guesses in one turn, once the first turns did not solve the part.
const MOST_GUESSES: u64 = 16;

/// Cores that are planned first, by the share of the bound that is alive in them; after so many passes.
const CORES: [f64; 4] = [0.98, 0.95, 0.99, 0.9];
const CORE_PASSES: usize = 2;

/// A form that is far behind has one turn in so many.
const BEHIND_TURNS: u64 = 8;

/// Passes over a form that is far behind, at most, before the search begins.
const BEHIND_PASSES: usize = 2;

/// Fewer buffers than this are joined well enough by chance.
const JOINS_WELL: usize = 500;

/// Peaks and offsets are relative to the part, in units.
pub(crate) struct Part<'v> {
    pub(crate) compact: &'v Compact,
    views: Vec<View<'v>>,
    pub(crate) bound: i64,
    pub(crate) best: i64,
    pub(crate) offsets: Vec<i64>,
    /// The largest capacity that was proven too small.
    pub(crate) refuted: Option<i64>,
    /// Its turns of search so far, and the times it was joined by chance.
    turns: u64,
    pub(crate) guesses: u64,
    pub(crate) careful: Option<Careful>,
    /// Cores that have been tried.
    cores: usize,
}

/// Limits of a turn, and its goal.
pub(crate) struct Turn<'t> {
    /// A peak that is low enough.
    pub(crate) goal: i64,
    /// True if the goal is a capacity: then no target between it and the best plan is tried.
    pub(crate) within: bool,
    pub(crate) options: &'t Options,
    pub(crate) stop: &'t (dyn Fn() -> bool + Sync),
    pub(crate) effort: u64,
}

impl<'v> Part<'v> {
    pub(crate) fn new(compact: &'v Compact) -> Part<'v> {
        Part {
            compact,
            views: vec![View::new(compact, None)],
            bound: crate::bound::live_peak(compact),
            best: i64::MAX,
            offsets: vec![0; compact.len()],
            refuted: None,
            turns: 0,
            guesses: 0,
            careful: None,
            cores: 0,
        }
    }

    /// Adds the joined form if it is worth it. It goes first: if it is much smaller, it is soon solved.
    pub(crate) fn add_joined(&mut self, joined: &'v Joined) {
        let (all, left) = (self.compact.len(), joined.compact.len());
        if left < all && (all <= EXACT_LIMIT || (left as f64) < WORTH_JOINING * all as f64) {
            self.views.insert(0, View::new(&joined.compact, Some(joined)));
        }
    }

    /// The next constructive pass; false if all are done.
    pub(crate) fn pass(&mut self, turn: &mut Turn<'_>) -> bool {
        let open = |at: &usize| self.views[*at].passes < BEHIND_PASSES || !self.is_behind(*at);
        let next = (0..self.views.len()).filter(open).min_by_key(|at| self.views[*at].passes);
        let Some(at) = next else { return false };
        let first = self.best == i64::MAX;
        if first && self.compact.align.is_empty() && crowd(self.compact) > CROWDED {
            turn.effort += self.compact.len() as u64 / 16;
            self.offer(at, sweep(self.compact));
            return true;
        }
        if self.views[at].passes >= CORE_PASSES && self.cores < CORES.len() && at + 1 == self.views.len() {
            let share = CORES[self.cores];
            self.cores += 1;
            if turn.options.tricks.core && self.compact.align.is_empty() && self.compact.len() >= CORE_LEAST {
                if let Some(offsets) = core_first(self.compact, self.bound, share, turn) {
                    self.offer(at, offsets);
                }
                return true;
            }
        }
        let view = &mut self.views[at];
        let Some(order) = orders(view.compact.len()).nth(view.passes) else { return false };
        view.passes += 1;
        let mut pass = view.pass.take().unwrap_or_else(|| Pass::new(view.compact));
        let offsets = pass.run(order, view.best, &|| !first && (turn.stop)()).map(<[i64]>::to_vec);
        turn.effort += view.compact.len() as u64 / 16;
        view.pass = Some(pass);
        if let Some(offsets) = offsets {
            self.offer(at, offsets);
        }
        true
    }

    /// One turn of search; false if nothing was left to do.
    pub(crate) fn search(&mut self, turn: &mut Turn<'_>) -> bool {
        let tricks = turn.options.tricks;
        let before = turn.effort;
        self.turns += 1;
        if self.joins_well() {
            self.careful_turn(turn);
            if self.is_done(turn) {
                return true;
            }
        }
        for at in 0..self.views.len() {
            self.views[at].pass = None;
            if self.is_behind(at) && !self.turns.is_multiple_of(BEHIND_TURNS) {
                continue;
            }
            let begin = turn.effort;
            let exact = tricks.exact && self.views[at].compact.len() <= EXACT_LIMIT;
            if exact {
                self.exact_turn(at, turn);
            }
            if self.is_done(turn) {
                return true;
            }
            if tricks.ejection {
                // If exact search can work at all, it has the larger part.
                let budget = if exact { (turn.effort - begin) / 4 } else { u64::MAX };
                self.ejection_turn(at, turn, budget);
            }
            if self.is_done(turn) {
                return true;
            }
        }
        if tricks.join && tricks.exact && self.compact.align.is_empty() && self.compact.len() <= EXACT_LIMIT {
            for _ in 0..self.turns.min(MOST_GUESSES) {
                if self.is_done(turn) {
                    break;
                }
                self.guess_turn(turn);
            }
        }
        turn.effort > before
    }

    /// True if most of the buffers can be joined, so that joining deserves second thoughts.
    fn joins_well(&self) -> bool {
        let least = self.views.iter().map(|view| view.compact.len()).min().unwrap_or(0);
        least > 1 && least * 2 < self.compact.len() && self.compact.len() >= JOINS_WELL
    }

    /// True if another form has come so much lower that work on this one is hardly of use.
    fn is_behind(&self, at: usize) -> bool {
        self.views[at].best.saturating_sub(self.bound) / 2 > self.best - self.bound
    }

    pub(crate) fn is_done(&self, turn: &Turn<'_>) -> bool {
        self.best <= turn.goal.max(self.bound) || (turn.stop)()
    }

    /// A run at the bound, and one at a target between the bound and the best plan.
    fn exact_turn(&mut self, at: usize, turn: &mut Turn<'_>) {
        let at_bound = turn.options.tricks.bound_first || !turn.within;
        let floor = self.bound.max(self.views[at].refuted.map_or(0, |refuted| refuted + 1));
        if floor >= self.best {
            return;
        }
        if at_bound {
            self.exact_run(at, Slot::Bound, floor, turn);
        }
        let floor = self.bound.max(self.views[at].refuted.map_or(0, |refuted| refuted + 1));
        if self.is_done(turn) || floor >= self.best {
            return;
        }
        let share = self.views[at].share;
        let target =
            if turn.within { turn.goal } else { floor + ((self.best - 1 - floor) as f64 * share) as i64 };
        if target < floor {
            return;
        }
        if target == floor && at_bound && !turn.within {
            self.views[at].share = (share * 1.3 + 0.02).min(1.0);
            return;
        }
        let best = self.best;
        self.exact_run(at, Slot::Between, target, turn);
        // A target is given up for a higher one after a few runs without an answer, for a lower one after success.
        let view = &mut self.views[at];
        if self.best < best {
            view.share = 0.5;
            view.patience = 0;
        } else {
            view.patience += 1;
            if view.patience >= 6 {
                view.patience = 0;
                view.share = if view.share > 0.97 { 0.5 } else { view.share + (1.0 - view.share) * 0.4 };
            }
        }
    }

    fn exact_run(&mut self, at: usize, slot: Slot, target: i64, turn: &mut Turn<'_>) {
        let view = &mut self.views[at];
        let restarts = &mut view.restarts[slot as usize];
        // A target that moved by little keeps its search and the states that it refuted.
        let near = if turn.within { 0 } else { (self.best - self.bound) / 64 };
        let stale = |old: &Restarts<'_>| (old.capacity - target).abs() > near || old.capacity >= self.best;
        if restarts.as_ref().is_none_or(stale) {
            *restarts = Some(Restarts::new(view.compact, target, turn.options.tricks, turn.options.seed));
        }
        let Some(restarts) = restarts else { return };
        let capacity = restarts.capacity;
        match restarts.next(&mut turn.effort, turn.stop) {
            Answer::Fits => {
                let offsets = restarts.offsets().to_vec();
                self.offer(at, offsets);
            }
            Answer::DoesNotFit => {
                view.refuted = view.refuted.max(Some(capacity));
                view.restarts[slot as usize] = None;
                if view.joined.is_none() {
                    self.bound = self.bound.max(capacity + 1);
                    self.refuted = self.refuted.max(Some(capacity));
                }
            }
            Answer::Unknown => {}
        }
    }

    fn ejection_turn(&mut self, at: usize, turn: &mut Turn<'_>, budget: u64) {
        let view = &mut self.views[at];
        if view.best == i64::MAX {
            return;
        }
        let goal = turn.goal.max(self.bound).min(view.best - 1);
        let improver = view
            .improver
            .get_or_insert_with(|| Improver::new(view.compact, turn.options.tricks, turn.options.seed));
        let (offsets, steps) = improver.turn(&view.offsets, view.best, goal, budget, turn.stop);
        turn.effort += steps.max(1);
        if let Some(offsets) = offsets {
            self.offer(at, offsets);
        }
    }

    /// Takes the plan of all buffers in.
    pub(crate) fn take(&mut self, offsets: Vec<i64>) {
        self.offer(self.views.len() - 1, offsets);
    }

    /// Takes in the plan of a form, for the form and for the part.
    fn offer(&mut self, at: usize, offsets: Vec<i64>) {
        let view = &mut self.views[at];
        let peak = offsets.iter().zip(&view.compact.size).map(|(offset, size)| offset + size).max();
        let peak = peak.unwrap_or(0);
        if peak < self.best {
            self.best = peak;
            self.offsets = match view.joined {
                Some(joined) => joined.spread(&offsets, self.compact.len()),
                None => offsets.clone(),
            };
        }
        if peak < view.best {
            view.best = peak;
            view.offsets = offsets;
        }
    }
}

#[derive(Clone, Copy)]
enum Slot {
    Bound,
    Between,
}

/// One form of the part that is searched: joined or as it is.
struct View<'v> {
    compact: &'v Compact,
    joined: Option<&'v Joined>,
    /// The best plan of this form.
    best: i64,
    offsets: Vec<i64>,
    pass: Option<Pass<'v>>,
    /// Orders that have had their pass.
    passes: usize,
    improver: Option<Improver<'v>>,
    restarts: [Option<Restarts<'v>>; 2],
    refuted: Option<i64>,
    /// Place of exact search's target between the bound and the best plan, and its misses there.
    share: f64,
    patience: u32,
}

impl<'v> View<'v> {
    fn new(compact: &'v Compact, joined: Option<&'v Joined>) -> View<'v> {
        View {
            compact,
            joined,
            best: i64::MAX,
            offsets: Vec::new(),
            pass: None,
            passes: 0,
            improver: None,
            restarts: [None, None],
            refuted: None,
            share: 0.5,
            patience: 0,
        }
    }
}
