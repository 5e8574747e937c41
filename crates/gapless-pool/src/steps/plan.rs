//! One step's plan, from the first suspicion to places that are served.

use super::log::Found;
use super::{Gram, Recurring, Spot, units};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// How far a plan has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A sequence recurred in part: does the whole of it?
    Tried,
    /// It is a step: somebody should plan it.
    Wanted,
    /// Somebody does.
    Asked,
    /// It is planned, and waits for the step's beginning.
    Ready,
    /// Requests are served by it.
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
    /// What is asked for, one after the other.
    pub(super) sizes: Box<[u32]>,
    pub(crate) requests: Arc<[Recurring]>,
    /// What is live before the first.
    pub(super) least: u64,
    /// As the planner says it; and where the holes are that it speaks of.
    pub(crate) spots: Vec<Spot>,
    pub(crate) holes: Vec<(u64, u64)>,
    /// The address of each request; 0: none. Empty until it is put in place.
    pub(crate) places: Vec<u64>,
    grams: FxHashMap<Gram, u32>,
    /// How often it came: before it was planned, and as it was followed.
    pub(super) steps: u32,
    /// Something else came in this step.
    pub(super) strayed: bool,
    /// Requests of this step that did not find their place free.
    pub(super) missed: u32,
    /// Steps in a row in which too many did not, and how many are suffered.
    pub(super) bad: u32,
    pub(super) patience: u32,
    /// After how many requests it was last of use.
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

    /// A step.
    pub(super) fn wanted(found: Found, grams: FxHashMap<Gram, u32>, serial: u64) -> Plan {
        let sizes = found.recurring.iter().map(|request| units(request.size)).collect();
        let (least, requests) = (found.least, found.recurring.into());
        Plan { serial, state: State::Wanted, requests, least, grams, ..Plan::tried(sizes) }
    }

    /// Which request comes after a sequence that this step has once.
    #[inline]
    pub(super) fn after(&self, gram: Gram) -> Option<usize> {
        self.grams.get(&gram).map(|&cursor| cursor as usize)
    }
}
