//! The guard around each entry of the library: it catches panics, bars C++ exceptions, and keeps the message of a
//! failure for the thread that called.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work` and catches a panic. A C++ exception in it would end the process, so it calls nothing of
/// [`crate::foreign`].
pub(crate) fn guarded<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    let _barred = Barred::new();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(fallback)
}

// ---- the message of a failure ----

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps the message of a call that failed.
pub(crate) fn set_error(message: &str) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has no thread-local variables any more, and cannot ask for its last error either.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// The message of this thread's last call that failed. It is valid until the next one fails.
pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

// ---- sections that must not throw ----

#[cfg(debug_assertions)]
thread_local! {
    /// Number of callers that an exception must not pass.
    static BARRED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// While it lives, this thread calls nothing that may throw.
#[derive(Debug)]
pub struct Barred(PhantomData<*const ()>);

impl Barred {
    #[inline]
    #[must_use]
    pub fn new() -> Barred {
        #[cfg(debug_assertions)]
        BARRED.with(|barred| barred.set(barred.get() + 1));
        Barred(PhantomData)
    }
}

impl Default for Barred {
    fn default() -> Barred {
        Barred::new()
    }
}

impl Drop for Barred {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        BARRED.with(|barred| barred.set(barred.get() - 1));
    }
}

/// Aborts a debug build that calls foreign code below a guard or with a card locked.
#[inline]
pub(crate) fn check(what: &str) {
    #[cfg(debug_assertions)]
    if BARRED.with(std::cell::Cell::get) > 0 {
        eprintln!("gapless: {what} may throw, and was called below a guard or with a card locked");
        std::process::abort();
    }
    let _ = what;
}
