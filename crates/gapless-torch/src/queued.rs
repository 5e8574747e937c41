//! A thread for each card waits for the work that is queued on it, and notes when it is done. This serves memory whose
//! reuse is not ordered by a stream: pinned blocks, pages of elastic tensors, memory of other processes.
//!
//! The thread holds no lock while it waits, and one wait serves all questions that came before it. Order of locks: the
//! list of waiters, then a waiter's counts. No other lock is taken while counts are held.

use crate::background;
use crate::cards;
use gapless_cuda::Meter;
use gapless_cuda::locks::{Guard, Lock, Signal};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before a failed wait is tried again.
const LOOK: Duration = Duration::from_millis(1);

/// All work that was queued on a card at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Queued(u64);

/// Invariant: `done <= asked`.
#[derive(Debug, Default)]
struct Counts {
    asked: u64,
    done: u64,
    /// Waits that the driver refused: their work may still run.
    failed: u64,
}

#[derive(Debug)]
struct Waiter {
    meter: Meter,
    counts: Lock<Counts>,
    news: Signal,
}

static WAITERS: Lock<BTreeMap<i32, Arc<Waiter>>> = Lock::new(BTreeMap::new);

fn waiters() -> Guard<'static, BTreeMap<i32, Arc<Waiter>>> {
    WAITERS.lock()
}

impl Waiter {
    fn ask(&self) -> Queued {
        let mut counts = self.counts();
        counts.asked += 1;
        self.news.notify_all();
        Queued(counts.asked)
    }

    fn counts(&self) -> Guard<'_, Counts> {
        self.counts.lock()
    }

    fn run(&self) {
        loop {
            let asked = {
                let mut counts = self.counts();
                while counts.asked == counts.done {
                    counts = self.news.wait(counts);
                }
                counts.asked
            };
            let is_done = self.meter.wait_for_all().is_ok();
            let mut counts = self.counts();
            if is_done {
                counts.done = asked;
            } else {
                counts.failed += 1;
            }
            self.news.notify_all();
            drop(counts);
            if !is_done {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Notes the work that is queued on a card now, for [`is_done`]. The caller does not hold a card's lock. `None` if
/// there is no card, or if no thread can be started.
pub(crate) fn now(device: i32) -> Option<Queued> {
    let known = waiters().get(&device).cloned();
    match known {
        Some(waiter) => Some(waiter.ask()),
        None => with(device, cards::existing(device)?.pool.device().meter()),
    }
}

/// [`now`] for a caller that has the card's lock.
pub(crate) fn with(device: i32, meter: Meter) -> Option<Queued> {
    Some(start(device, meter)?.ask())
}

fn start(device: i32, meter: Meter) -> Option<Arc<Waiter>> {
    let mut waiters = waiters();
    if let Some(waiter) = waiters.get(&device) {
        return Some(waiter.clone());
    }
    let counts = Lock::with(Counts::default(), Counts::default);
    let waiter = Arc::new(Waiter { meter, counts, news: Signal::new() });
    let worker = waiter.clone();
    background::spawn("gapless-queued", move || {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.run()));
    })
    .ok()?;
    waiters.insert(device, waiter.clone());
    Some(waiter)
}

/// True if the noted work is done.
pub(crate) fn is_done(device: i32, queued: Queued) -> bool {
    waiters().get(&device).cloned().is_some_and(|waiter| waiter.counts().done >= queued.0)
}

/// Waits until the noted work is done, at most for `most`. True if it is. Also ends if the driver refuses a wait.
pub(crate) fn wait(device: i32, queued: Queued, most: Duration) -> bool {
    let Some(waiter) = waiters().get(&device).cloned() else { return false };
    let began = Instant::now();
    let mut counts = waiter.counts();
    let failed = counts.failed;
    while counts.done < queued.0 && counts.failed == failed {
        let Some(left) = most.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else { break };
        counts = waiter.news.wait_for(counts, left);
    }
    counts.done >= queued.0
}
