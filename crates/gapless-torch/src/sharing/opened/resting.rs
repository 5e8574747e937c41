//! Memory of other processes that no tensor has any more, and that stays mapped for a moment.
//!
//! Most producers send the same blocks again and again, and opening one costs a round trip and several driver calls. So
//! dropped memory rests first, and can be opened again from here. Its time and bytes are bounded, because the
//! producer's card keeps the pages meanwhile. A thread of its own closes what is due: closing waits for the card, and
//! no thread of the program should.

use super::{Key, Memory, close};
use crate::background::{self, Running};
use crate::guard::guarded;
use gapless_cuda::locks::{Lock, Signal};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time that memory rests, and the most bytes that do.
const REST: Duration = Duration::from_millis(100);
const MOST: u64 = 128 << 20;
/// Pause before memory that could not be closed is tried again.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Resting {
    key: Key,
    memory: Memory,
    until: Instant,
}

#[derive(Debug, Default)]
struct Rest {
    /// Oldest first.
    all: Vec<Resting>,
    has_thread: bool,
}

static REST_ROOM: Lock<Rest> = Lock::new(Rest::default);
static CHANGED: Signal = Signal::new();
/// Closings under way: their memory is neither in the list nor unmapped.
static CLOSING: AtomicU32 = AtomicU32::new(0);

/// Puts memory to rest that no tensor has any more.
pub(super) fn put(key: Key, memory: Memory) {
    let mut rest = REST_ROOM.lock();
    if !rest.has_thread {
        rest.has_thread = background::spawn("gapless-close", || guarded((), run)).is_ok();
    }
    if !rest.has_thread {
        drop(rest);
        let device = key.0;
        // Without a thread the memory is closed here. If a capture is open, it stays mapped.
        std::mem::forget(close(device, memory));
        return;
    }
    rest.all.push(Resting { key, memory, until: Instant::now() + REST });
    let mut bytes: u64 = rest.all.iter().map(|resting| resting.memory.size()).sum();
    let now = Instant::now();
    for resting in &mut rest.all {
        if bytes > MOST {
            bytes -= resting.memory.size();
            resting.until = now;
        }
    }
    drop(rest);
    CHANGED.notify_all();
}

/// Takes the memory that rests under this key, so that it can be used again.
pub(super) fn take(key: &Key) -> Option<Memory> {
    let mut rest = REST_ROOM.lock();
    let at = rest.all.iter().position(|resting| resting.key == *key)?;
    Some(rest.all.remove(at).memory)
}

/// Closes all resting memory because memory is scarce, and waits a moment for that. False if there was none.
pub(crate) fn close_all() -> bool {
    let mut rest = REST_ROOM.lock();
    if rest.all.is_empty() && CLOSING.load(Ordering::Acquire) == 0 {
        return false;
    }
    let now = Instant::now();
    rest.all.iter_mut().for_each(|resting| resting.until = now);
    CHANGED.notify_all();
    while (!rest.all.is_empty() || CLOSING.load(Ordering::Acquire) > 0) && now.elapsed() < REST {
        rest = CHANGED.wait_for(rest, LOOK);
    }
    true
}

fn run() {
    let mut rest = REST_ROOM.lock();
    loop {
        let now = Instant::now();
        let Some(due) = rest.all.iter().map(|resting| resting.until).min() else {
            rest = CHANGED.wait(rest);
            continue;
        };
        if due > now {
            rest = CHANGED.wait_for(rest, due - now);
            continue;
        }
        let (due, kept) = std::mem::take(&mut rest.all).into_iter().partition(|resting| resting.until <= now);
        rest.all = kept;
        CLOSING.fetch_add(1, Ordering::AcqRel);
        drop(rest);
        let due: Vec<Resting> = due;
        let left: Vec<Resting> = due.into_iter().filter_map(closed).collect();
        rest = REST_ROOM.lock();
        rest.all.extend(left);
        CLOSING.fetch_sub(1, Ordering::AcqRel);
        CHANGED.notify_all();
    }
}

/// Closes one. Returns it if it cannot be closed now.
fn closed(Resting { key, memory, .. }: Resting) -> Option<Resting> {
    let Some(_running) = Running::begin() else {
        // The process ends, and its mappings end with it.
        std::mem::forget(memory);
        return None;
    };
    let memory = close(key.0, memory)?;
    Some(Resting { key, memory, until: Instant::now() + LOOK })
}
