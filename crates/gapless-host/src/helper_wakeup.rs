//! Wakes the helper. `signal` is one load if the helper is awake or will wake by itself soon.

use crate::sys;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const AWAKE: u32 = 0;
/// It sleeps until a thread signals.
const ASLEEP: u32 = 1;
/// It sleeps, and wakes by itself.
const DOZING: u32 = 2;

static WORD: AtomicU32 = AtomicU32::new(AWAKE);

/// Wakes the helper if it sleeps until a signal.
#[inline]
pub fn signal() {
    if WORD.load(Ordering::SeqCst) == ASLEEP {
        wake();
    }
}

/// Wakes the helper at once.
#[cold]
pub fn wake() {
    if WORD.swap(AWAKE, Ordering::SeqCst) != AWAKE {
        sys::wake(&WORD, 1);
    }
}

/// Lets the helper sleep for at most this time; `None` for until a signal. `may_sleep` is called when signals
/// arrive already, so that none is missed.
pub fn sleep(most: Option<Duration>, may_sleep: impl Fn() -> bool) {
    let word = if most.is_some() { DOZING } else { ASLEEP };
    WORD.store(word, Ordering::SeqCst);
    if may_sleep() {
        sys::wait(&WORD, word, most);
    }
    WORD.store(AWAKE, Ordering::SeqCst);
}
