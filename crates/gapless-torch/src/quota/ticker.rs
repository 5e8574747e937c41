//! A thread of its own, once a budget or a share is set. Four times a second it measures the memory outside of pools,
//! removes dead processes from ledgers, and gives free memory back that others wait for.

use super::admission::{self, Admitted};
use super::host;
use crate::background;
use crate::cards;
use crate::elastic::pools;
use crate::guard::guarded;
use crate::process::{self, CARDS};
use crate::queued::{self, Queued};
use gapless_cuda::locks::Lock;
use gapless_pool::Freed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(250);

/// Looks that go on giving back after the host wanted memory: memory that work uses goes back when the work is done.
const LOOKS: u32 = 6;

static STARTED: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Number of looks that still give back.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// Memory of a card that was free while work could still use it. The card's lock comes before this one.
static UNSETTLED: Lock<BTreeMap<i32, (Freed, Queued)>> = Lock::new(BTreeMap::new);
/// Held during a look.
static LOOKING: Lock<()> = Lock::new(|| ());

/// Starts the thread, once.
pub fn start() {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    // Without the thread, the next process that asks removes the dead ones.
    let _ = background::spawn("gapless-ledger", || {
        while !IS_OVER.load(Ordering::Relaxed) {
            std::thread::sleep(PERIOD);
            guarded((), look);
        }
    });
}

/// Called when the process ends. No look begins any more and none is under way, so CUDA may end.
pub fn stop() {
    IS_OVER.store(true, Ordering::Relaxed);
    drop(LOOKING.lock());
}

fn look() {
    let _looking = LOOKING.lock();
    if IS_OVER.load(Ordering::Relaxed) || process::is_forked() {
        return;
    }
    let is_wanted = is_wanted_by_host();
    for device in 0..CARDS as i32 {
        if IS_OVER.load(Ordering::Relaxed) || process::is_forked() {
            return;
        }
        let Some(Admitted { quota, .. }) = admission::of(device) else { continue };
        let mut is_over = false;
        if quota.is_on() {
            quota.measure();
            is_over = quota.tick() > 0;
        }
        if is_over || is_wanted {
            give_back(device);
        }
    }
}

/// Gives back memory that no work uses. Streams that make no requests have no turns, so this thread waits for the
/// card's work, for a part of its period, and looks again at the next one.
fn give_back(device: i32) {
    let Some(mut card) = cards::existing(device) else { return };
    card.trim_behind_work();
    let mut waits = UNSETTLED.lock();
    if !waits.contains_key(&device) && card.pool.keeps_free_pages() {
        let freed = card.pool.freed();
        if let Some(queued) = queued::with(device, card.pool.device().meter()) {
            waits.insert(device, (freed, queued));
        }
    }
    drop(card);
    let known = waits.get(&device).map(|(_, queued)| *queued);
    drop(waits);
    if known.is_some_and(|known| queued::wait(device, known, PERIOD / 2)) {
        // A statement of its own, because a lock in the condition of an `if let` is held through its body.
        let settled = UNSETTLED.lock().remove(&device);
        if let Some((freed, _)) = settled
            && let Some(mut card) = cards::existing(device)
        {
            card.pool.settle_freed(freed);
            card.trim_behind_work();
        }
    }
    pools::give_back(device);
}

/// True if the common budget of host and cards needs the free memory of pools.
fn is_wanted_by_host() -> bool {
    let Some(budget) = host::budget() else { return false };
    let free = |card: cards::Locked| {
        let stats = card.pool.stats();
        stats.reserved.current.saturating_sub(stats.active.current)
    };
    if budget.is_wanted((0..CARDS as i32).filter_map(cards::existing).map(free).sum()) {
        LEFT.store(LOOKS, Ordering::Relaxed);
    }
    LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}
