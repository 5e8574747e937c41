//! Streams of other contexts on which the program uses a card's memory: of other cards, or of parts of a card.
//!
//! An event must belong to the same context as the stream that it is recorded on. The driver can only be asked for a
//! stream's context while the stream exists. So it is asked when the program names the stream, and remembered for the
//! few streams that do not belong to the card's own context.
//!
//! Handles 0 to 2 are the default streams of the current context. In a green context, which has a part of the card's
//! processors, PyTorch works on these. They differ from the default streams of the card's own context, so they get
//! names of their own ([`named`]).

use crate::driver::{ContextDriver, Driver, Handle, LEGACY_STREAM, PER_THREAD_STREAM, SUCCESS};
use crate::locks::{Guard, Lock};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// True once a card is used: before that, the driver of the program is unknown.
static IS_USED: AtomicBool = AtomicBool::new(false);
/// The contexts of used cards; 0 if not used.
static CARDS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// Streams of other contexts.
static OTHERS: Lock<Vec<Other>> = Lock::new(Vec::new);
static COUNT: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy, Debug)]
struct Other {
    /// The name in the allocator.
    name: u64,
    context: usize,
    /// The driver's handle, in that context.
    handle: u64,
}

fn others() -> Guard<'static, Vec<Other>> {
    OTHERS.lock()
}

/// Remembers a stream. Its handle may have belonged to another stream before.
fn remember(name: u64, other: Option<Other>) {
    let mut others = others();
    others.retain(|known| known.name != name);
    others.extend(other);
    COUNT.store(others.len(), Ordering::Relaxed);
}

pub(crate) fn note_card(ordinal: i32, context: Handle) {
    if let Some(card) = usize::try_from(ordinal).ok().and_then(|at| CARDS.get(at)) {
        card.store(context as usize, Ordering::Relaxed);
        IS_USED.store(true, Ordering::Release);
    }
}

/// The name of a stream that the program uses now, in this thread. It is its handle, except for default streams of
/// other contexts of a used card.
#[inline]
#[must_use]
pub fn named(stream: u64) -> u64 {
    if stream > PER_THREAD_STREAM { stream } else { named_default(stream) }
}

fn named_default(stream: u64) -> u64 {
    let driver = IS_USED.load(Ordering::Acquire).then(ContextDriver::get).flatten();
    let Some(driver) = driver else { return stream };
    let mut context: Handle = std::ptr::null_mut();
    // SAFETY: an out-pointer of our own.
    let status = unsafe { (driver.current)(&mut context) };
    let is_of_a_card = |context| CARDS.iter().any(|card| card.load(Ordering::Relaxed) == context);
    // Nearly always it is the first card's.
    if status != SUCCESS
        || context.is_null()
        || CARDS[0].load(Ordering::Relaxed) == context as usize
        || is_of_a_card(context as usize)
    {
        return stream;
    }
    let mut device = -1;
    // SAFETY: an out-pointer of our own.
    let status = unsafe { (driver.device)(&mut device) };
    let card = usize::try_from(device).ok().and_then(|at| CARDS.get(at));
    if status != SUCCESS || card.is_none_or(|card| card.load(Ordering::Relaxed) == 0) {
        return stream;
    }
    // Contexts are objects at even addresses, so no other stream has this name.
    let handle = if stream == PER_THREAD_STREAM { PER_THREAD_STREAM } else { LEGACY_STREAM };
    let name = context as u64 | handle;
    if place_of(name).is_none() {
        remember(name, Some(Other { name, context: context as usize, handle }));
    }
    name
}

thread_local! {
    /// True if this thread has a context, or had one when it was asked.
    static HAS_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread was given a context, or had one.
#[inline]
#[must_use]
pub fn has_context() -> bool {
    HAS_CONTEXT.get()
}

/// Makes the card's context current in this thread if it has none. CUDA's runtime does so in each thread that asks it
/// for memory, and programs such as launchers of kernels, and libraries, then use the driver directly.
pub fn bind(ordinal: i32) {
    let card = usize::try_from(ordinal).ok().and_then(|at| CARDS.get(at));
    let card = card.map_or(0, |card| card.load(Ordering::Relaxed));
    if card == 0 {
        return;
    }
    HAS_CONTEXT.set(true);
    let Some(driver) = ContextDriver::get() else { return };
    let mut context: Handle = std::ptr::null_mut();
    // SAFETY: an out-pointer of our own, and the card's context, which is never released.
    unsafe {
        if (driver.current)(&mut context) == SUCCESS && context.is_null() {
            (driver.set_current)(card as Handle);
        }
    }
}

/// Notes a stream that the program has named for a card's memory. An earlier note does not count, because handles of
/// ended streams are reused, in other contexts too.
pub fn note(ordinal: i32, stream: u64) {
    // Default streams are known by their names.
    if stream <= PER_THREAD_STREAM || place_of(stream).is_some_and(|(_, handle)| handle as u64 != stream) {
        return;
    }
    let card = usize::try_from(ordinal).ok().and_then(|at| CARDS.get(at));
    let (Some(card), Ok(driver)) = (card, Driver::get()) else { return };
    let mut context: Handle = std::ptr::null_mut();
    // SAFETY: the program has just named the stream, so it exists; the out-pointer is valid.
    let status = unsafe { (driver.stream_context)(stream as Handle, &mut context) };
    let is_other = status == SUCCESS && context as usize != card.load(Ordering::Relaxed);
    if is_other || COUNT.load(Ordering::Relaxed) > 0 {
        let other = Other { name: stream, context: context as usize, handle: stream };
        remember(stream, is_other.then_some(other));
    }
}

/// True if a wait for the card covers this stream: all of its own context, and default streams of its parts.
pub(crate) fn is_covered(stream: u64) -> bool {
    place_of(stream).is_none_or(|(_, handle)| handle as u64 <= PER_THREAD_STREAM)
}

/// The context of a stream that does not belong to the card's own, and the stream's handle there.
pub(crate) fn place_of(stream: u64) -> Option<(Handle, Handle)> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let others = others();
    let other = others.iter().find(|other| other.name == stream)?;
    Some((other.context as Handle, other.handle as Handle))
}
