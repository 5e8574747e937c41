//! Wakes the helper. `ring` is one load where the helper is awake or looks by itself soon.

use crate::sys;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const AWAKE: u32 = 0;
/// Sleeps until somebody rings.
const ASLEEP: u32 = 1;
/// Sleeps, and wakes up by itself.
const DOZING: u32 = 2;

static WORD: AtomicU32 = AtomicU32::new(AWAKE);

/// There may be work.
#[inline]
pub fn ring() {
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

/// The helper sleeps; without a time until somebody rings. `may_sleep` is asked when the bell is ready: what came
/// before is not missed.
pub fn sleep(most: Option<Duration>, may_sleep: impl Fn() -> bool) {
    let word = if most.is_some() { DOZING } else { ASLEEP };
    WORD.store(word, Ordering::SeqCst);
    if may_sleep() {
        sys::wait(&WORD, word, most);
    }
    WORD.store(AWAKE, Ordering::SeqCst);
}
