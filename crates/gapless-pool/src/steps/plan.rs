//! The plan of one step, from the first suspicion to places that serve requests.

use super::log::Found;
use super::{Gram, Recurring, Spot, units};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The progress of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A part of a sequence recurred. The whole of it has to recur before it counts as a step.
    Tried,
    /// It is a step that no planner has been asked for yet.
    Wanted,
    /// The planner was asked for it.
    Asked,
    /// It is planned, and waits for the beginning of its step.
    Ready,
    /// It serves requests.
    Armed,
}

impl State {
    #[inline]
    pub(crate) fn is_armed(self) -> bool {
        self == State::Armed
    }
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) serial: u64,
    pub(crate) state: State,
    /// The sizes of its requests, in order.
    pub(super) sizes: Box<[u32]>,
    pub(crate) requests: Arc<[Recurring]>,
    /// Live bytes before the first request.
    pub(super) least: u64,
    /// The planner's spots, and the holes to which they refer.
    pub(crate) spots: Vec<Spot>,
    pub(crate) holes: Vec<(u64, u64)>,
    /// The address of each request; 0 for none. Empty until the plan is put in place.
    pub(crate) places: Vec<u64>,
    grams: FxHashMap<Gram, u32>,
    /// The number of its steps: before it was planned, and later while it was followed.
    pub(super) steps: u32,
    /// True if an unexpected request came in this step.
    pub(super) strayed: bool,
    /// Requests of this step whose place was not free.
    pub(super) missed: u32,
    /// The number of steps in a row with too many of these, and the number that is tolerated.
    pub(super) bad: u32,
    pub(super) patience: u32,
    /// The lane's number of requests at its last use.
    pub(super) used: u64,
}

impl Plan {
    /// A sequence that may be a step.
    pub(super) fn tried(sizes: Box<[u32]>) -> Plan {
        Plan {
            serial: 0,
            state: State::Tried,
            sizes,
            requests: Arc::new([]),
            least: 0,
            spots: Vec::new(),
            holes: Vec::new(),
            places: Vec::new(),
            grams: FxHashMap::default(),
            steps: 0,
            strayed: false,
            missed: 0,
            bad: 0,
            patience: 1,
            used: 0,
        }
    }

    /// The plan of a step that has to be planned.
    pub(super) fn wanted(found: Found, grams: FxHashMap<Gram, u32>, serial: u64) -> Plan {
        let sizes = found.recurring.iter().map(|request| units(request.size)).collect();
        let (least, requests) = (found.least, found.recurring.into());
        Plan { serial, state: State::Wanted, requests, least, grams, ..Plan::tried(sizes) }
    }

    /// The index of the request after a sequence that occurs once in this step.
    #[inline]
    pub(super) fn after(&self, gram: Gram) -> Option<usize> {
        self.grams.get(&gram).map(|&cursor| cursor as usize)
    }
}
