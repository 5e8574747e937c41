//! Streams that the program has, and may capture without a word to the allocator.
//!
//! A fence ends every capture of its context, so each of these streams is asked before a fence is recorded. Streams of
//! PyTorch's own last as long as the process and can simply be asked. A stream of the program's own may be gone by now,
//! and a question about such a stream faults; recording an event on it gives an error. So an event is recorded: in a
//! capture it becomes a part of the capture, which the driver tells, and which changes nothing there.

use crate::driver::{CAPTURED_EVENT, Driver, EVENT_DISABLE_TIMING, Handle, NOT_CAPTURED, SUCCESS};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Streams of the program's own that are watched: the newest.
const MOST_OWN: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Watched {
    ordinal: i32,
    stream: u64,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Its streams are never destroyed.
    Torch,
    /// With the event that is recorded on the stream, as soon as there is one.
    Program(Option<usize>),
}

static ALL: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn all() -> MutexGuard<'static, Vec<Watched>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program has this stream of a card, which may not be in use yet. `lasts`: it is one of PyTorch's own.
pub fn add(ordinal: i32, stream: u64, lasts: bool) {
    let mut all = all();
    if all.iter().any(|one| (one.ordinal, one.stream) == (ordinal, stream)) {
        return;
    }
    let owner = if lasts { Owner::Torch } else { Owner::Program(None) };
    let is_own = |one: &Watched| one.ordinal == ordinal && one.owner != Owner::Torch;
    let mut new = Watched { ordinal, stream, owner };
    if !lasts
        && all.iter().filter(|one| is_own(one)).count() >= MOST_OWN
        && let Some(oldest) = all.iter().position(is_own)
    {
        // It leaves its event, which is of the same card.
        new.owner = all.remove(oldest).owner;
    }
    all.push(new);
    COUNT.store(all.len(), Ordering::Release);
}

/// Whether one of the card's streams is in a capture now. The caller is in the card's context.
pub(crate) fn is_any_captured(driver: &Driver, ordinal: i32) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    all().iter_mut().filter(|one| one.ordinal == ordinal).any(|one| one.is_captured(driver))
}

impl Watched {
    fn is_captured(&mut self, driver: &Driver) -> bool {
        let stream = self.stream as Handle;
        let Owner::Program(event) = &mut self.owner else {
            let mut status: c_int = NOT_CAPTURED;
            // SAFETY: PyTorch destroys none of its streams; the out-pointer is valid.
            return unsafe { (driver.is_capturing)(stream, &mut status) } == SUCCESS
                && status != NOT_CAPTURED;
        };
        let Some(event) = event.or_else(|| new_event(driver)) else { return false };
        self.owner = Owner::Program(Some(event));
        let event = event as Handle;
        // SAFETY: a live event, which only the holder of the list uses. Of a stream that is gone this gives an error.
        unsafe {
            (driver.event_record)(event, stream) == SUCCESS && (driver.event_query)(event) == CAPTURED_EVENT
        }
    }
}

fn new_event(driver: &Driver) -> Option<usize> {
    let mut event: Handle = std::ptr::null_mut();
    // SAFETY: an out-pointer of our own.
    let status = unsafe { (driver.event_create)(&mut event, EVENT_DISABLE_TIMING) };
    (status == SUCCESS).then_some(event as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_streams_of_the_program_are_kept_and_all_of_torchs() {
        // Cards that no other test has.
        for stream in 0..40 {
            add(900, 0x1000 + stream, stream % 2 == 0);
            add(900, 0x1000 + stream, stream % 2 == 0);
        }
        let all = all();
        let of = |lasts: bool| {
            let mine = all.iter().filter(|one| one.ordinal == 900 && (one.owner == Owner::Torch) == lasts);
            mine.map(|one| one.stream - 0x1000).collect::<Vec<_>>()
        };
        assert_eq!(of(true), (0..40).step_by(2).collect::<Vec<_>>());
        assert_eq!(of(false), (9..40).step_by(2).collect::<Vec<_>>());
    }
}
