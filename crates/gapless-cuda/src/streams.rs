//! Streams of other contexts that the program uses a card's memory on: of other cards, or of parts of a card.
//!
//! An event must be of the same context as the stream that it is recorded on. Which context that is can be asked only
//! while the stream is there, so it is asked when the program names the stream, and remembered for the few streams that
//! are not of the card's own context.

use crate::driver::{Driver, Handle, PER_THREAD_STREAM, SUCCESS};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The contexts of cards that are used; 0: none yet.
static CARDS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// Streams of other contexts.
static OTHERS: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn others() -> MutexGuard<'static, Vec<(u64, usize)>> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn note_card(ordinal: i32, context: Handle) {
    if let Some(card) = usize::try_from(ordinal).ok().and_then(|at| CARDS.get(at)) {
        card.store(context as usize, Ordering::Relaxed);
    }
}

/// The program names a stream that uses memory of a card.
pub fn note(ordinal: i32, stream: u64) {
    // These are the default streams of whichever context is current.
    if stream <= PER_THREAD_STREAM {
        return;
    }
    let card = usize::try_from(ordinal).ok().and_then(|at| CARDS.get(at));
    let (Some(card), Ok(driver)) = (card, Driver::get()) else { return };
    let mut context: Handle = std::ptr::null_mut();
    // SAFETY: the program has just named the stream, so it is there; the out-pointer is valid.
    let status = unsafe { (driver.stream_context)(stream as Handle, &mut context) };
    let is_other = status == SUCCESS && context as usize != card.load(Ordering::Relaxed);
    if is_other || COUNT.load(Ordering::Relaxed) > 0 {
        let mut others = others();
        // A handle may be that of another stream than before.
        others.retain(|(other, _)| *other != stream);
        others.extend(is_other.then_some((stream, context as usize)));
        COUNT.store(others.len(), Ordering::Relaxed);
    }
}

/// The context of a stream that is not of the card's own.
pub(crate) fn context_of(stream: u64) -> Option<Handle> {
    others().iter().find(|(other, _)| *other == stream).map(|(_, context)| *context as Handle)
}
