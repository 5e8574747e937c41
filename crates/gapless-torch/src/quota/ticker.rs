//! Four looks around a second, by a thread of its own, once a budget or a share is set: what is outside of pools is
//! measured, the dead are forgotten in ledgers, and what others wait for is given back where it is free.

use super::admission::{self, Admitted};
use super::host;
use crate::background;
use crate::elastic;
use crate::hooks::guarded;
use crate::state::{self, CARDS};
use gapless_cuda::locks::Lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(250);

/// Looks that go on giving back after the host wanted memory: what work uses goes back when it is done.
const LOOKS: u32 = 6;

static STARTED: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Looks that still give back.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// Held during a look.
static LOOKING: Lock<()> = Lock::new(|| ());

/// Starts the thread, once.
pub fn start() {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    // Without the thread the dead are forgotten by who asks next.
    let _ = background::spawn("gapless-ledger", || {
        while !IS_OVER.load(Ordering::Relaxed) {
            std::thread::sleep(PERIOD);
            guarded((), look);
        }
    });
}

/// The process ends: no look is begun any more, and the one that was is over. CUDA may go.
pub fn stop() {
    IS_OVER.store(true, Ordering::Relaxed);
    drop(LOOKING.lock());
}

fn look() {
    let _looking = LOOKING.lock();
    if IS_OVER.load(Ordering::Relaxed) || state::is_forked() {
        return;
    }
    let is_wanted = is_wanted_by_host();
    for device in 0..CARDS as i32 {
        if IS_OVER.load(Ordering::Relaxed) || state::is_forked() {
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

fn give_back(device: i32) {
    if let Some(mut card) = state::existing(device) {
        card.trim_behind_work();
        drop(card);
        elastic::give_back(device);
    }
}

/// Whether the budget that host and cards have together needs what pools keep free.
fn is_wanted_by_host() -> bool {
    let Some(budget) = host::budget() else { return false };
    let free = |card: state::Locked| {
        let stats = card.pool.stats();
        stats.reserved.current.saturating_sub(stats.active.current)
    };
    if budget.is_wanted((0..CARDS as i32).filter_map(state::existing).map(free).sum()) {
        LEFT.store(LOOKS, Ordering::Relaxed);
    }
    LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}
