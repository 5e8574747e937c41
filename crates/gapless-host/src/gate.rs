//! No fork while a thread enters or leaves the small core.
//!
//! mimalloc takes a lock for that. A child that is forked meanwhile has the lock without the thread that would open it,
//! and waits for ever when it starts a thread of its own. So both go through a gate that a fork closes.
//!
//! A thread leaves in the destructor of mimalloc's key. The C library runs destructors in the order in which keys were
//! made: one key is made before mimalloc's and closes the gate, one after it and opens it again.

use crate::lock::Lock;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

static GATE: Lock<()> = Lock::new(());
const NO_KEY: u32 = u32::MAX;
static BEFORE: AtomicU32 = AtomicU32::new(NO_KEY);
static AFTER: AtomicU32 = AtomicU32::new(NO_KEY);

/// Makes the small core ready with its key between the two of the gate.
pub fn around(begin: impl FnOnce()) {
    make(&BEFORE, close);
    begin();
    make(&AFTER, open);
}

fn make(key: &AtomicU32, destructor: unsafe extern "C" fn(*mut c_void)) {
    let mut made: libc::pthread_key_t = 0;
    // SAFETY: `made` is valid for writing, and the library with the destructor is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut made, Some(destructor)) } == 0 {
        key.store(made, Ordering::Relaxed);
    }
}

unsafe extern "C" fn close(_: *mut c_void) {
    GATE.acquire();
}

unsafe extern "C" fn open(_: *mut c_void) {
    // SAFETY: `close` ran in this thread, because both keys were set together.
    unsafe { GATE.release() };
}

/// A new thread enters. It leaves by itself.
pub fn enter(begin: impl FnOnce()) {
    let guard = GATE.lock();
    begin();
    let (before, after) = (BEFORE.load(Ordering::Relaxed), AFTER.load(Ordering::Relaxed));
    // Without both, and in this order, a thread would leave with the gate closed.
    if before < after && after != NO_KEY {
        let any = std::ptr::from_ref(&GATE).cast::<c_void>();
        // SAFETY: keys that `make` made. The second is set first: with one alone the gate is never closed.
        unsafe {
            if libc::pthread_setspecific(after, any) == 0 && libc::pthread_setspecific(before, any) != 0 {
                libc::pthread_setspecific(after, std::ptr::null());
            }
        }
    }
    drop(guard);
}

pub fn before_fork() {
    GATE.acquire();
}

/// # Safety
/// [`before_fork`] was called by this thread.
pub unsafe fn after_fork() {
    // SAFETY: as the caller says.
    unsafe { GATE.release() };
}
