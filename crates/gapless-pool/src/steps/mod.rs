//! Steps that repeat: recognised by the sequence of a lane's large requests, planned by a [`Planner`], and followed
//! while requests match.
//!
//! A plan is advice: it says at which address a request should lie, and the heap says if that is free. So a program
//! that does something else is served as correctly. A request that the plan does not expect, or finds no room for, is
//! served as if there were no plan.
//!
//! A step is found by the program's marks (an optimizer's step) if there are any, else by a sequence that recurs. At
//! both ends the same number of bytes must be live; so layers that repeat within a forward pass do not qualify, because
//! their activations stay. A step that was found by recurrence alone must recur once more, whole. A lane follows its
//! plan with a cursor. After strays it finds its place in one of its plans again by the last few sizes. Small requests
//! are ignored, because their heaps lose too little to be worth a plan.

mod log;
mod plan;

use crate::ids::LaneId;
use log::{GRAM, Log};
use plan::Plan;
pub(crate) use plan::State;
use std::sync::Arc;

/// Plans that a lane keeps.
const PLANS: usize = 8;
/// A shorter sequence is not a step.
const SHORTEST: usize = 16;
/// After this many unexpected requests in a row a lane leaves its plan.
const STRAYS: u32 = 8;
/// After this many steps a plan was worth its cost; and the most recurrences that are ever required.
const WORTH: u32 = 16;
const MOST_DEMAND: u32 = 256;
/// This many expected requests may be left out at once.
const SKIP: usize = 4;

/// A request that comes once in every period. Times count the lane's large requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurring {
    pub size: u64,
    /// The time of the request, from the beginning of the period.
    pub start: u32,
    /// The time at which its memory is free again, at most a period later. It may lie in the next period.
    pub end: u32,
}

/// The input of a planner, which returns a place for each request of the period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    pub ticket: Ticket,
    pub length: u32,
    pub requests: Arc<[Recurring]>,
    /// Sizes of the holes between blocks that stay. Each can be used like the arena, up to its size.
    pub holes: Vec<u64>,
}

/// Identifies the plan of a lane for its planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) lane: LaneId,
    pub(crate) serial: u64,
}

/// The place of a request: in one of the holes, or in the arena, whose number is the number of holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub region: u32,
    pub offset: u64,
}

/// Makes plans, outside of the pool.
pub trait Planner: std::fmt::Debug + Send {
    /// A spot for each request of the period, now, or later through [`Pool::install`](crate::Pool::install).
    fn plan(&mut self, period: Period) -> Option<Vec<Spot>>;
}

/// Figures of plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanStats {
    /// Plans that are followed, or could be.
    pub plans: u64,
    /// Requests that lie where a plan wanted them, and their bytes.
    pub served: u64,
    pub served_bytes: u64,
    /// Requests that a plan expected but could not place.
    pub missed: u64,
    /// Large requests, for which plans are made.
    pub requests: u64,
    /// Steps that were followed from beginning to end.
    pub steps: u64,
}

/// The steps of a lane.
#[derive(Debug)]
pub(crate) struct Steps {
    lane: LaneId,
    log: Log,
    /// Bytes of the lane's live large requests, and their peak.
    live: u64,
    peak: u64,
    plans: Vec<Plan>,
    /// The present plan, and the index of the request that comes next in it.
    at: Option<(usize, usize)>,
    strays: u32,
    /// True if the next request must go through the pool, which then plans or places something.
    pub(crate) needs_pool: bool,
    marked: bool,
    /// The number of requests at the last mark; and true if there were none since the mark before.
    at_mark: u64,
    is_idle: bool,
    /// True if requests were not logged: the log starts anew with the next one that is.
    silent: bool,
    /// True if a tried sequence has recurred once more, whole.
    recurred: bool,
    /// The number of whole recurrences before a sequence is planned. A plan that is left before its worth raises it.
    demand: u32,
    serial: u64,
    stats: PlanStats,
}

/// The log number of a request whose end is not logged.
pub(crate) const UNBORN: u32 = u32::MAX;

impl Steps {
    pub(crate) fn new(lane: LaneId) -> Steps {
        Steps {
            lane,
            log: Log::default(),
            live: 0,
            peak: 0,
            plans: Vec::new(),
            at: None,
            strays: 0,
            needs_pool: false,
            marked: false,
            at_mark: 0,
            is_idle: false,
            silent: false,
            recurred: false,
            demand: 1,
            serial: 0,
            stats: PlanStats::default(),
        }
    }

    pub(crate) fn stats(&self) -> PlanStats {
        let plans = self.plans.iter().filter(|plan| plan.state.is_armed()).count() as u64;
        PlanStats { plans, ..self.stats }
    }

    /// The address for the next request, if it has `size` bytes and a plan places it.
    #[inline]
    pub(crate) fn expects(&self, size: u64) -> Option<u64> {
        let (plan, cursor) = self.at?;
        let plan = &self.plans[plan];
        let place = *plan.places.get(cursor)?;
        (place != 0 && plan.sizes[cursor] == units(size)).then_some(place)
    }

    /// Records a request that was served, at the expected place or not. Returns its number, for [`Steps::ended`].
    #[inline]
    pub(crate) fn served(&mut self, size: u64, as_expected: bool) -> u32 {
        self.stats.requests += 1;
        let units = units(size);
        let live = self.live;
        self.live += size;
        self.peak = self.peak.max(self.live);
        let follows = self.follow(units, size, as_expected);
        self.log.roll(units);
        if follows {
            self.silent = true;
            return UNBORN;
        }
        let born = self.notice(units, live);
        if std::mem::take(&mut self.recurred) {
            self.confirm();
        }
        born
    }

    /// Records that the memory of a request is free again.
    #[inline]
    pub(crate) fn ended(&mut self, size: u64, born: u32) {
        self.live = self.live.saturating_sub(size);
        if born != UNBORN {
            self.log.ended(born);
        }
    }

    /// Records that the program marks the boundary of two steps.
    pub(crate) fn mark(&mut self) {
        let follows = self.at.is_some_and(|(plan, _)| !matches!(self.plans[plan].state, State::Tried));
        self.is_idle = std::mem::replace(&mut self.at_mark, self.stats.requests) == self.stats.requests;
        self.marked = !follows;
        self.needs_pool |= self.marked;
    }

    /// Moves the cursor. True if a plan with places is being followed: then the request is not logged.
    #[inline]
    fn follow(&mut self, units: u32, size: u64, as_expected: bool) -> bool {
        let Some((at, cursor)) = self.at else { return false };
        let plan = &mut self.plans[at];
        if plan.sizes[cursor] == units {
            self.strays = 0;
            if as_expected {
                self.stats.served += 1;
                self.stats.served_bytes += size;
            } else if plan.places.get(cursor).is_some_and(|place| *place != 0) {
                plan.missed += 1;
                self.stats.missed += 1;
            }
            self.step_to(cursor + 1);
        } else {
            self.stray(units);
        }
        self.at.is_some_and(|(at, _)| self.plans[at].state.is_armed())
    }

    #[inline]
    fn step_to(&mut self, cursor: usize) {
        let Some((at, _)) = self.at else { return };
        let plan = &mut self.plans[at];
        if cursor < plan.sizes.len() {
            self.at = Some((at, cursor));
            return;
        }
        self.at = Some((at, 0));
        self.turn();
    }

    /// Records the end of a period.
    #[cold]
    fn turn(&mut self) {
        let Some((at, _)) = self.at else { return };
        let plan = &mut self.plans[at];
        match plan.state {
            State::Tried => {
                plan.steps = if std::mem::take(&mut plan.strayed) { 0 } else { plan.steps + 1 };
                self.recurred = plan.steps >= self.demand;
            }
            State::Ready => self.needs_pool = true,
            State::Armed => {
                self.stats.steps += u64::from(!plan.strayed);
                plan.used = self.stats.requests;
                plan.steps = plan.steps.saturating_add(1);
                if plan.steps == WORTH {
                    self.demand = 1;
                }
                // A block lies in the plan's way, and stays there.
                plan.bad = if plan.missed as usize > plan.sizes.len() / 32 { plan.bad + 1 } else { 0 };
                if plan.bad > plan.patience {
                    plan.bad = 0;
                    plan.patience = plan.patience.saturating_mul(2);
                    plan.state = State::Wanted;
                    self.needs_pool = true;
                }
                plan.missed = 0;
                plan.strayed = false;
            }
            State::Wanted | State::Asked => {}
        }
    }

    /// Makes a step of a tried sequence, with which the log ends.
    #[cold]
    fn confirm(&mut self) {
        let Some((at, _)) = self.at else { return };
        let found = self.log.period(self.plans[at].sizes.len());
        self.plans.swap_remove(at);
        self.at = None;
        if let Some(found) = found {
            self.add(found);
        }
    }

    #[cold]
    fn stray(&mut self, units: u32) {
        let Some((at, cursor)) = self.at else { return };
        let plan = &mut self.plans[at];
        plan.strayed = true;
        let ahead = plan.sizes[cursor + 1..].iter().take(SKIP).position(|&size| size == units);
        self.strays += 1;
        if let Some(skipped) = ahead {
            self.step_to(cursor + skipped + 2);
        }
        if self.strays > STRAYS {
            let plan = &self.plans[at];
            self.at = None;
            self.strays = 0;
            match plan.state {
                State::Tried => {
                    self.plans.swap_remove(at);
                }
                State::Armed if plan.steps < WORTH => self.demand = (2 * self.demand).min(MOST_DEMAND),
                _ => {}
            }
        }
    }

    /// Logs a request while no plan with places is followed, and looks for a sequence that recurs.
    #[inline]
    fn notice(&mut self, units: u32, live: u64) -> u32 {
        if self.at.is_none() {
            let gram = self.log.gram();
            let found = self.plans.iter().enumerate().find_map(|(at, plan)| Some((at, plan.after(gram)?)));
            if let Some((at, cursor)) = found {
                self.plans[at].strayed = true;
                self.at = Some((at, cursor % self.plans[at].sizes.len()));
                if cursor == self.plans[at].sizes.len() {
                    self.turn();
                }
            }
        }
        if std::mem::take(&mut self.silent) {
            self.log.restart();
        }
        let (born, before) = self.log.add(units, live);
        if self.at.is_none()
            && let Some(length) = before.filter(|&length| length >= SHORTEST)
            && let Some(sizes) = self.log.last(length)
            && self.plans.len() <= PLANS
        {
            self.plans.push(Plan::tried(sizes));
            self.at = Some((self.plans.len() - 1, 0));
        }
        born
    }

    /// Adds a step: its requests, beginning at the least live bytes. The cursor stands at the request that comes next.
    /// A step whose peak is well below the lane's is not planned, because memory is short elsewhere.
    fn add(&mut self, requests: log::Found) {
        if requests.peak / 10 < self.peak / 100 * 9 {
            return;
        }
        self.serial += 1;
        let next = requests.next;
        let grams = self.log.grams(&requests.recurring);
        self.make_room();
        let mut plan = Plan::wanted(requests, grams, self.serial);
        plan.used = self.stats.requests;
        self.plans.push(plan);
        self.at = Some((self.plans.len() - 1, next));
        self.strays = 0;
        self.needs_pool = true;
    }

    fn make_room(&mut self) {
        self.plans.retain(|plan| !matches!(plan.state, State::Tried));
        if self.plans.len() >= PLANS
            && let Some(oldest) = (0..self.plans.len()).min_by_key(|&at| self.plans[at].used)
        {
            self.plans.remove(oldest);
        }
    }

    /// Sets the peak to the present live bytes.
    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.live;
    }

    // ---- calls of the pool, which holds all shards ----

    /// Evaluates a mark, before a request of `size` bytes or, with `None`, in a pause. Returns the plan that is to be
    /// made or put in place now. In a pause the program may still be about to free something, so if not everything is
    /// as it was at the last step, the decision is left to the next request.
    pub(crate) fn attend(&mut self, size: Option<u64>) -> Option<usize> {
        // The program may no longer use this stream; the stream may not even exist.
        if size.is_none() && self.is_idle {
            return None;
        }
        self.needs_pool = false;
        self.marked &= self.demand == 1;
        if self.marked {
            let found = self.log.since_mark(size.map(units), self.live, SHORTEST);
            if size.is_some() || found.is_some() {
                self.marked = false;
                self.log.mark();
            }
            if let Some(found) = found {
                self.add(found);
            }
            self.needs_pool = self.marked;
        }
        let (at, cursor) = self.at?;
        let plan = &mut self.plans[at];
        plan.used = self.stats.requests;
        let is_beginning = cursor == 0 && (size.is_some() || self.live == plan.least);
        match plan.state {
            State::Wanted => Some(at),
            State::Ready if is_beginning => Some(at),
            State::Ready => {
                self.needs_pool |= cursor == 0;
                None
            }
            _ => None,
        }
    }

    pub(crate) fn plan(&mut self, at: usize) -> &mut Plan {
        &mut self.plans[at]
    }

    /// True if the cursor stands at the beginning of this plan.
    fn is_at_start(&self, at: usize) -> bool {
        self.at == Some((at, 0))
    }

    /// The input for the planner of a wanted plan.
    pub(crate) fn period(&mut self, at: usize, holes: Vec<u64>) -> Period {
        let plan = &mut self.plans[at];
        plan.state = State::Asked;
        Period {
            ticket: Ticket { lane: self.lane, serial: plan.serial },
            length: plan.sizes.len() as u32,
            requests: plan.requests.clone(),
            holes,
        }
    }

    /// Records a plan from the planner. Returns its index, if it is still wanted.
    pub(crate) fn planned(&mut self, ticket: Ticket, spots: Vec<Spot>) -> Option<usize> {
        let at = self.plans.iter().position(|plan| plan.serial == ticket.serial)?;
        let plan = &mut self.plans[at];
        if !matches!(plan.state, State::Asked) || spots.len() != plan.sizes.len() {
            return None;
        }
        plan.spots = spots;
        plan.state = State::Ready;
        self.needs_pool |= self.is_at_start(at);
        Some(at)
    }

    /// True if a live allocation belongs to a step and will end, as far as the log shows.
    pub(crate) fn is_passing(&self, at: usize, born: u32) -> bool {
        born != UNBORN && self.log.is_within(born, self.plans[at].sizes.len())
    }
}

/// Sizes are kept in units, in 32 bits. Sizes above 2 TiB count as equal.
#[inline]
fn units(size: u64) -> u32 {
    u32::try_from(size / crate::heap::UNIT).unwrap_or(u32::MAX)
}

/// The hash of the sizes of the last [`GRAM`] requests.
pub(crate) type Gram = u64;

const _: () = assert!(GRAM < SHORTEST);
