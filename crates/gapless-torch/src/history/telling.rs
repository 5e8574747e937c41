//! Tells trackers the entries that were queued for them, in order, with no card locked.

use super::{DEPTH, HEARD, INSIDE, TRACKERS, Untold, is_watched, untold};
use crate::overlay::layout::{LongTraceEntry, TraceEntry};
use crate::overlay::traces;
use crate::{interpreter, process};

/// Tells trackers what happened since they last heard. If another thread is telling, it tells this thread's entries
/// too, in order. This thread does not wait for that, because a tracker may need a lock that this thread holds. A
/// tracker that allocates hears of that after its call.
///
/// # Safety
/// C++ exceptions may pass the callers; no card is locked.
#[inline]
pub unsafe fn tell_trackers() {
    if is_watched() && !process::is_forked() {
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        unsafe { tell_all() };
    }
}

/// [`tell_trackers`] for entries that trackers must hear before this thread goes on: their memory is about to go, or to
/// be handed out. If another thread is telling, this one waits for it, without Python's lock. PyTorch's own allocator
/// tells trackers under its lock, so a tracker needs nothing else from a thread that waits here. Within a tracker the
/// queued entries are told at once.
///
/// # Safety
/// As [`tell_trackers`].
pub unsafe fn tell_trackers_first() {
    // In a forked child, the thread that was telling may not exist.
    if !is_watched() || process::is_forked() {
        return;
    }
    if DEPTH.get() > 0 {
        // SAFETY: our caller lets exceptions pass; this thread is inside of a tracker, so it has the turn.
        return unsafe { tell_listed() };
    }
    let last = untold().put;
    loop {
        // SAFETY: our caller lets exceptions pass, and no card is locked here.
        unsafe { tell_all() };
        let is_over = |untold: &Untold| untold.heard >= last || !untold.is_telling;
        let has_heard =
            |untold: &Untold| untold.heard >= last || (untold.entries.is_empty() && !untold.is_telling);
        if has_heard(&untold()) {
            return;
        }
        interpreter::without_its_lock(|| {
            let mut untold = untold();
            while !is_over(&untold) {
                untold = HEARD.wait(untold);
            }
        });
    }
}

/// The right to tell trackers. It ends with this value, also if a tracker throws.
struct Turn;

impl Turn {
    fn take() -> Option<Turn> {
        let mut untold = untold();
        if untold.is_telling {
            return None;
        }
        untold.is_telling = true;
        Some(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        untold().is_telling = false;
        HEARD.notify_all();
    }
}

/// An entry in PyTorch's layout, which trackers only read. What it owns is freed after they heard it, or if one throws.
struct Shown(*mut TraceEntry);

impl Drop for Shown {
    fn drop(&mut self) {
        // SAFETY: `tell_listed` makes this value for an entry that it has written, and that outlives it.
        unsafe { traces::end_trace_entry(self.0) };
        DEPTH.set(DEPTH.get() - 1);
        INSIDE.set(INSIDE.get() + 1);
        if DEPTH.get() == 0 {
            untold().heard += INSIDE.take();
            HEARD.notify_all();
        }
    }
}

/// # Safety
/// As [`tell_trackers`].
#[cold]
unsafe fn tell_all() {
    // Looks again after a turn: threads that queued entries meanwhile found the turn taken and went on.
    while !untold().entries.is_empty() {
        let Some(_turn) = Turn::take() else { return };
        // SAFETY: our caller lets exceptions pass, no card is locked, and this thread has the turn.
        unsafe { tell_listed() };
    }
}

/// # Safety
/// As [`tell_trackers`]; this thread has the turn.
unsafe fn tell_listed() {
    let trackers = TRACKERS.lock().clone();
    loop {
        let next = untold().entries.pop_front();
        let Some((device, entry)) = next else { return };
        let mut room = std::mem::MaybeUninit::<LongTraceEntry>::uninit();
        let place: *mut TraceEntry = room.as_mut_ptr().cast();
        // SAFETY: `room` is large enough for the longest entry of any build, and does not move.
        unsafe { traces::write_trace_entry(place, device, &entry) };
        DEPTH.set(DEPTH.get() + 1);
        let shown = Shown(place);
        for tracker in &trackers {
            // SAFETY: our caller lets exceptions pass; the entry was written just now, and `shown` keeps it.
            unsafe { tracker.tell(shown.0) };
        }
    }
}
