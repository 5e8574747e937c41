//! Handlers that are asked before a request fails: they may free memory, and the request is tried again.
//!
//! The thread whose request failed calls them in the order of their registration. It holds no lock of ours, so they may
//! take Python's lock, allocate and free. A request that fails inside of a handler fails without asking handlers. While
//! a capture is open none is asked, because a handler's work could become part of the graph, or break it.

use crate::interpreter::DOOR;
use gapless_cuda::locks::Lock;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// The message for a handler. All sizes are bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub device: i32,
    /// Size of the request.
    pub requested: u64,
    /// Bytes that must become free in addition, as far as the pool knows.
    pub missing: u64,
    pub allocated: u64,
    pub reserved: u64,
    /// The most that this process may hold; 0: no limit but the device's.
    pub limit: u64,
}

/// Returns the bytes that it freed, 0 if it freed none, or [`LOOK`] if it does not know.
pub type Callback = unsafe extern "C" fn(*const Pressure, *mut c_void) -> u64;

/// A handler's answer if it does not know: Gapless compares its own count of frees.
pub const LOOK: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Handler {
    id: u64,
    callback: Callback,
    user: *mut c_void,
}

// SAFETY: the pointer belongs to the program, which registered it to be passed to its callback by any thread.
unsafe impl Send for Handler {}
// SAFETY: the pointer is only passed on, never read through.
unsafe impl Sync for Handler {}

static HANDLERS: Lock<Vec<Handler>> = Lock::new(Vec::new);
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Adds a handler and returns its number.
pub fn add(callback: Callback, user: *mut c_void) -> u64 {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    HANDLERS.lock().push(Handler { id, callback, user });
    id
}

/// Removes a handler. False if there was none. A call that is under way is not interrupted.
pub fn remove(id: u64) -> bool {
    let mut handlers = HANDLERS.lock();
    let before = handlers.len();
    handlers.retain(|handler| handler.id != id);
    handlers.len() != before
}

/// Asks one handler after the other until `retry` succeeds. `look` returns the message for the next one, and the number
/// of frees so far; if it returns `None`, no more are asked. Returns the result of `retry`, and how many were asked.
pub fn ask<T>(
    mut look: impl FnMut() -> Option<(Pressure, u64)>,
    mut retry: impl FnMut() -> Option<T>,
) -> (Option<T>, usize) {
    if ASKING.get() {
        return (None, 0);
    }
    let handlers = HANDLERS.lock().clone();
    let mut asked = 0;
    for Handler { callback, user, .. } in handlers {
        let Some((pressure, before)) = look() else { break };
        // Most handlers are Python functions, which must not be called once the interpreter ends.
        let Some(_visit) = DOOR.enter() else { break };
        asked += 1;
        ASKING.set(true);
        // SAFETY: the program registered this callback to be called by any thread with this `user`.
        let claimed = unsafe { callback(&raw const pressure, user) };
        ASKING.set(false);
        let helped = match claimed {
            0 => false,
            LOOK => look().is_some_and(|(_, now)| now != before),
            _ => true,
        };
        if helped && let Some(served) = retry() {
            return (Some(served), asked);
        }
    }
    (None, asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_cuda::locks::Lock;

    /// Handlers are the process's: one test at a time.
    static ALONE: Lock<()> = Lock::new(|| ());

    struct Told {
        calls: Vec<(u64, Pressure)>,
        answers: Vec<u64>,
        inner: Option<usize>,
    }

    unsafe extern "C" fn tell(pressure: *const Pressure, user: *mut c_void) -> u64 {
        // SAFETY: the test passes a `Told` as `user`, which outlives its handlers, and `ask` a valid `Pressure`.
        let (told, pressure) = unsafe { (&mut *user.cast::<Told>(), *pressure) };
        let at = told.calls.len();
        told.calls.push((at as u64, pressure));
        // A request that fails inside of a handler.
        let (served, asked) = ask(|| Some((pressure, 0)), || Some(()));
        assert!(served.is_none());
        told.inner = Some(asked);
        told.answers[at]
    }

    #[test]
    fn handlers_are_asked_in_turn_until_the_request_is_served() {
        let _alone = ALONE.lock();
        let mut told = Told { calls: Vec::new(), answers: vec![0, LOOK, 5, 7], inner: None };
        let user = (&raw mut told).cast::<c_void>();
        let ids: Vec<u64> = (0..4).map(|_| add(tell, user)).collect();
        let mut freed = 0;
        let mut retries = 0;
        let look = || {
            freed += 1;
            Some((Pressure { device: 3, requested: 9, ..Pressure::default() }, freed))
        };
        let (served, asked) = ask(look, || {
            retries += 1;
            (retries == 2).then_some("memory")
        });
        // The first freed nothing, so there was no retry. The second did not know, but the count of frees had changed.
        assert_eq!((served, asked, retries), (Some("memory"), 3, 2));
        assert_eq!((told.calls.len(), told.inner), (3, Some(0)), "and none was asked inside of another");
        assert_eq!((told.calls[0].1.device, told.calls[0].1.requested), (3, 9));
        assert!(ids.iter().all(|&id| remove(id)) && !remove(ids[0]));
        assert_eq!(ask(|| Some((Pressure::default(), 0)), || Some(())), (None, 0));
    }

    #[test]
    fn nobody_is_asked_where_nothing_may_be_done() {
        let _alone = ALONE.lock();
        let mut told = Told { calls: Vec::new(), answers: vec![1], inner: None };
        let id = add(tell, (&raw mut told).cast());
        assert_eq!(ask(|| None, || Some(())), (None, 0));
        assert!(told.calls.is_empty() && remove(id));
    }
}
