//! Streams that may be in a capture without a word to the allocator: those that the program made itself, and those that
//! asked for memory in one.
//!
//! A fence ends every capture of its context, so each of these streams is asked before a fence is recorded. A stream
//! may be gone by now, and a question about such a stream faults; recording an event on it gives an error. So an event
//! is recorded first, which changes nothing in a capture. The event is never looked at: to ask about an event of a
//! capture ends the capture.

use crate::driver::{Driver, EVENT_DISABLE_TIMING, Handle, NOT_CAPTURED, SUCCESS};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Streams of a card that are watched: the newest.
const MOST: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Watched {
    ordinal: i32,
    stream: u64,
    /// It is watched when its capture is over, too.
    stays: bool,
    /// What is recorded on it, as soon as there is one.
    event: Option<usize>,
}

static ALL: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Events of streams that are not watched any more, with their cards.
static SPARE: Mutex<Vec<(i32, usize)>> = Mutex::new(Vec::new());

fn locked<T>(list: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program made this stream of a card, which may not be in use yet.
pub fn add(ordinal: i32, stream: u64) {
    watch(ordinal, stream, true);
}

/// This stream is in a capture that nobody told of.
pub(crate) fn add_captured(ordinal: i32, stream: u64) {
    watch(ordinal, stream, false);
}

fn watch(ordinal: i32, stream: u64, stays: bool) {
    let mut all = locked(&ALL);
    if let Some(known) = all.iter_mut().find(|one| (one.ordinal, one.stream) == (ordinal, stream)) {
        known.stays |= stays;
        return;
    }
    let is_of_card = |one: &Watched| one.ordinal == ordinal;
    if all.iter().filter(|one| is_of_card(one)).count() >= MOST
        && let Some(oldest) = all.iter().position(is_of_card)
    {
        let_go(all.remove(oldest));
    }
    all.push(Watched { ordinal, stream, stays, event: None });
    COUNT.store(all.len(), Ordering::Release);
}

fn let_go(one: Watched) {
    locked(&SPARE).extend(one.event.map(|event| (one.ordinal, event)));
}

/// Whether one of the card's streams is in a capture now. The caller is in the card's context.
pub(crate) fn is_any_captured(driver: &Driver, ordinal: i32) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let mut all = locked(&ALL);
    let mut any = false;
    all.retain_mut(|one| {
        let is_captured = one.ordinal == ordinal && one.is_captured(driver);
        any |= is_captured;
        let stays = one.stays || is_captured || one.ordinal != ordinal;
        if !stays {
            let_go(*one);
        }
        stays
    });
    COUNT.store(all.len(), Ordering::Release);
    any
}

impl Watched {
    fn is_captured(&mut self, driver: &Driver) -> bool {
        let stream = self.stream as Handle;
        self.event = self.event.or_else(|| an_event(driver, self.ordinal));
        let Some(event) = self.event else { return false };
        let mut status: c_int = NOT_CAPTURED;
        // SAFETY: a live event, which only the holder of the list uses. Of a stream that is gone recording gives an
        // error; after it the stream is there, and can be asked. The out-pointer is valid.
        unsafe {
            (driver.event_record)(event as Handle, stream) == SUCCESS
                && (driver.is_capturing)(stream, &mut status) == SUCCESS
                && status != NOT_CAPTURED
        }
    }
}

/// A spare event, or a new one.
fn an_event(driver: &Driver, ordinal: i32) -> Option<usize> {
    let mut spare = locked(&SPARE);
    if let Some(at) = spare.iter().position(|(card, _)| *card == ordinal) {
        return Some(spare.swap_remove(at).1);
    }
    let mut event: Handle = std::ptr::null_mut();
    // SAFETY: an out-pointer of our own.
    let status = unsafe { (driver.event_create)(&mut event, EVENT_DISABLE_TIMING) };
    (status == SUCCESS).then_some(event as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_streams_of_a_card_are_watched() {
        // Cards that no other test has.
        for stream in 0..40 {
            add(900, stream);
            add_captured(900, stream);
            add_captured(901, stream % 3);
        }
        let all = locked(&ALL);
        let of = |card: i32| {
            let mine = all.iter().filter(|one| one.ordinal == card);
            mine.map(|one| (one.stream, one.stays)).collect::<Vec<_>>()
        };
        assert_eq!(of(900), (24..40).map(|stream| (stream, true)).collect::<Vec<_>>());
        assert_eq!(of(901), [(0, false), (1, false), (2, false)]);
    }
}
