//! Entry to Python. A thread that asks for Python's lock while the interpreter ends does not come back, or ends the
//! process.
//!
//! Up to Python 3.13, a thread that wants the lock of an interpreter that is being torn down is ended inside of the
//! call, through its callers' frames. Later releases leave it hanging there. So each entry to Python from native code
//! is a [`Visit`]. None begins after the package's function for the end of the process has run ([`Door::close`], which
//! waits for visits under way), nor after Python reports that it is finalising.

use crate::cxx::find_global;
use gapless_cuda::locks::{self, SetOnce};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The longest wait of the process's end for visits under way: one of the program's handlers may need time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Counts the visits, and can be closed.
#[derive(Debug)]
pub struct Door {
    is_closed: AtomicBool,
    inside: AtomicUsize,
}

/// The door of this process.
pub static DOOR: Door = Door::new();

/// While it lives, this thread may take Python's lock, or wait for it.
#[derive(Debug)]
#[must_use = "the visit ends with it"]
pub struct Visit<'a> {
    door: &'a Door,
    generation: u32,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // A forked child does not count visits that its parent began.
        if self.generation == locks::generation() {
            self.door.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Door {
    const fn new() -> Door {
        Door { is_closed: AtomicBool::new(false), inside: AtomicUsize::new(0) }
    }

    /// `None` if Python ends, or has ended.
    #[inline]
    pub fn enter(&self) -> Option<Visit<'_>> {
        // Counted before the check: either `close` sees this visit, or this visit sees that the door is closed.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let visit = Visit { door: self, generation: locks::generation() };
        (!self.is_closed.load(Ordering::SeqCst) && !is_finalizing()).then_some(visit)
    }

    /// Called in a forked child, which does not have the threads of the visits.
    pub fn forked(&self) {
        self.inside.store(0, Ordering::SeqCst);
    }

    /// Lets no visit begin any more. True if all visits ended within `patience`. The caller does not hold Python's
    /// lock.
    pub fn close(&self, patience: Duration) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + patience;
        while self.inside.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// True if the interpreter of this process is being torn down, or was.
fn is_finalizing() -> bool {
    type Ask = unsafe extern "C" fn() -> c_int;
    static FOUND: SetOnce<(Option<Ask>, Option<Ask>)> = SetOnce::new();
    let (finalizing, initialized) = *FOUND.get_or_init(|| {
        // SAFETY: Python's headers give these names this type, in all versions since 3.7.
        let ask = |found: *mut c_void| unsafe { std::mem::transmute::<*mut c_void, Ask>(found) };
        let finalizing =
            find_global(&[], c"Py_IsFinalizing").or_else(|| find_global(&[], c"_Py_IsFinalizing"));
        (finalizing.map(ask), find_global(&[], c"Py_IsInitialized").map(ask))
    });
    // SAFETY: Python lets any thread ask both, at any time, without its lock.
    unsafe { finalizing.is_some_and(|ask| ask() != 0) || initialized.is_some_and(|ask| ask() == 0) }
}

/// Python's functions that release its lock and take it again.
#[derive(Clone, Copy)]
struct Lock {
    is_held: unsafe extern "C" fn() -> c_int,
    give_up: unsafe extern "C" fn() -> *mut c_void,
    take: unsafe extern "C" fn(*mut c_void),
}

impl Lock {
    fn find() -> Option<Lock> {
        let find = |name| find_global(&[], name);
        // SAFETY: Python's headers give these names these types, in all versions since 3.4.
        unsafe {
            Some(Lock {
                is_held: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(find(
                    c"PyGILState_Check",
                )?),
                give_up: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(find(
                    c"PyEval_SaveThread",
                )?),
                take: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(find(
                    c"PyEval_RestoreThread",
                )?),
            })
        }
    }
}

/// Runs `wait` without Python's lock, if this thread has it, because the thread that is waited for may want it.
pub fn without_its_lock(wait: impl FnOnce()) {
    static FOUND: SetOnce<Option<Lock>> = SetOnce::new();
    let visit = DOOR.enter();
    let lock = visit.as_ref().and(*FOUND.get_or_init(Lock::find));
    // SAFETY: Python lets any thread ask this, and the visit keeps the interpreter alive.
    let Some(lock) = lock.filter(|lock| unsafe { (lock.is_held)() } != 0) else { return wait() };
    // SAFETY: this thread has the lock, as `is_held` reported.
    let mine = unsafe { (lock.give_up)() };
    wait();
    // SAFETY: `mine` is the state that `give_up` returned to this thread.
    unsafe { (lock.take)(mine) };
}

/// Called by Python's functions for the end of the process: no thread enters Python any more.
pub(crate) fn end() {
    DOOR.close(PATIENCE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_door_lets_nobody_in_and_waits_for_who_is_inside() {
        let door: &'static Door = Box::leak(Box::new(Door::new()));
        let visit = door.enter().expect("no Python is here that could go");
        assert!(!door.close(Duration::from_millis(5)), "somebody is inside");
        assert!(door.enter().is_none());
        static LEAVES: AtomicBool = AtomicBool::new(false);
        let leaves = std::thread::spawn(move || {
            // Gives `close` time to begin its wait; the test is right without it.
            std::thread::sleep(Duration::from_millis(50));
            LEAVES.store(true, Ordering::SeqCst);
            drop(visit);
        });
        assert!(door.close(Duration::from_secs(600)) && LEAVES.load(Ordering::SeqCst), "it waited");
        leaves.join().expect("it left");
        assert_eq!(door.inside.load(Ordering::SeqCst), 0);
    }
}
