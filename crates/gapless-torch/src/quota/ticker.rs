//! Four looks around a second, by a thread of its own, once a budget or a share is set: what is outside of pools is
//! measured, the dead are forgotten in ledgers, and what others wait for is given back where it is free.

use super::admission::{self, Admitted};
use crate::background;
use crate::elastic;
use crate::hooks::guarded;
use crate::state::{self, CARDS};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(250);

static STARTED: Once = Once::new();
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Held during a look.
static LOOKING: Mutex<()> = Mutex::new(());

/// Starts the thread, once.
pub fn start() {
    STARTED.call_once(|| {
        // Without the thread the dead are forgotten by who asks next.
        let _ = background::spawn("gapless-ledger", || {
            while !IS_OVER.load(Ordering::Relaxed) {
                std::thread::sleep(PERIOD);
                guarded((), look);
            }
        });
    });
}

/// The process ends: no look is begun any more, and the one that was is over. CUDA may go.
pub fn stop() {
    IS_OVER.store(true, Ordering::Relaxed);
    drop(LOOKING.lock().unwrap_or_else(PoisonError::into_inner));
}

fn look() {
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    for device in 0..CARDS as i32 {
        if IS_OVER.load(Ordering::Relaxed) || state::is_forked() {
            return;
        }
        let Some(Admitted { quota, .. }) = admission::of(device).filter(|a| a.quota.is_on()) else {
            continue;
        };
        quota.measure();
        if quota.tick() > 0
            && let Some(mut card) = state::existing(device)
        {
            card.trim_behind_work();
            drop(card);
            elastic::give_back(device);
        }
    }
}
