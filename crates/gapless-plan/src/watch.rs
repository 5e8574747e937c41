//! Hooks of a caller: a flag that stops the work, a clock that cuts it off, and a call for each better plan.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gapless_trace::Bytes;

use crate::problem::Plan;

/// A better plan, or a better bound.
#[derive(Debug)]
pub struct Progress<'a> {
    pub plan: &'a Plan,
    pub lower_bound: Bytes,
    pub elapsed: Duration,
    /// Search nodes and steps so far.
    pub effort: u64,
}

/// Hooks of the caller in a solve; empty by default.
#[derive(Default)]
pub struct Watch<'a> {
    /// Set it to stop: the best plan so far is returned.
    pub cancel: Option<&'a AtomicBool>,
    /// Called for each better plan, with a valid plan of the whole problem.
    pub on_better: Option<&'a mut dyn FnMut(&Progress<'_>)>,
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("cancel", &self.cancel)
            .field("on_better", &self.on_better.is_some())
            .finish()
    }
}

/// The limits on time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock<'a> {
    start: Instant,
    deadline: Option<Instant>,
    cancel: Option<&'a AtomicBool>,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(limit: Option<Duration>, cancel: Option<&'a AtomicBool>) -> Clock<'a> {
        let start = Instant::now();
        Clock { start, deadline: limit.and_then(|limit| start.checked_add(limit)), cancel }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed))
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}
