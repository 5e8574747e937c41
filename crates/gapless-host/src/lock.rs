//! A lock that never allocates, and that a forked child can open.
//!
//! Between the handlers before and after a fork, the thread that forks has every lock. Handlers of other libraries run
//! in between, and allocate: for that thread alone the locks are open ([`hand_over`]).

use crate::{local, sys};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The thread that forks and has every lock: the address of what it knows (`local`). 0: none.
static FORKER: AtomicUsize = AtomicUsize::new(0);

/// This thread forks, and has every lock: it may pass through them.
pub fn hand_over() {
    FORKER.store(local::get() as usize, Ordering::Relaxed);
}

/// The fork is over: the locks are opened next, in the parent and in the child.
pub fn take_back() {
    FORKER.store(0, Ordering::Relaxed);
}

fn is_forker() -> bool {
    FORKER.load(Ordering::Relaxed) == local::get() as usize
}

const OPEN: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may be waiting.
const AWAITED: u32 = 2;
/// Looks at the lock before a thread sleeps: a holder is done within some hundred nanoseconds.
const LOOKS: u32 = 100;

#[derive(Debug)]
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time to the value.
unsafe impl<T: Send> Sync for Lock<T> {}

#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The lock was this thread's before, and stays so.
    is_nested: bool,
}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(OPEN), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        if self.is_taken_at_once() {
            return Guard { lock: self, is_nested: false };
        }
        if is_forker() {
            return Guard { lock: self, is_nested: true };
        }
        self.wait();
        Guard { lock: self, is_nested: false }
    }

    /// The value, where nobody else has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Not `then_some`: it would make a guard in any case, and drop it, which opens a lock that somebody else has.
        self.is_taken_at_once().then(|| Guard { lock: self, is_nested: false })
    }

    /// Takes the lock without a guard: around a fork.
    pub fn acquire(&self) {
        if !self.is_taken_at_once() {
            self.wait();
        }
    }

    #[inline]
    fn is_taken_at_once(&self) -> bool {
        self.word.compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.word.compare_exchange_weak(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(AWAITED, Ordering::Acquire) != OPEN {
            sys::wait(&self.word, AWAITED, None);
        }
    }

    /// The value, for the thread that called [`Lock::acquire`].
    pub fn value(&self) -> *mut T {
        self.value.get()
    }

    /// Opens what [`Lock::acquire`] took. A forked child calls it too: the thread that holds the lock there is itself.
    ///
    /// # Safety
    /// The caller took the lock and has no guard of it.
    pub unsafe fn release(&self) {
        if self.word.swap(OPEN, Ordering::Release) == AWAITED {
            sys::wake(&self.word, 1);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one that is in use: a nested one belongs to the thread that has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if !self.is_nested {
            // SAFETY: the guard took it, and ends here.
            unsafe { self.lock.release() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_forks_passes_through_locks_that_it_has_and_others_wait() {
        static LOCK: Lock<u32> = Lock::new(0);
        LOCK.acquire();
        hand_over();
        *LOCK.lock() += 1;
        assert!(LOCK.try_lock().is_none(), "the lock is still held");
        let other = std::thread::spawn(|| *LOCK.lock() += 10);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(*LOCK.lock(), 1, "the other thread waits");
        take_back();
        // SAFETY: taken above, and no guard is alive.
        unsafe { LOCK.release() };
        other.join().expect("a thread");
        assert_eq!(*LOCK.lock(), 11);
    }
}
