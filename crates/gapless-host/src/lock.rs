//! A lock that never allocates, and that a forked child can open.
//!
//! Between the handlers before and after a fork, the thread that forks has every lock. Handlers that were registered
//! before ours run in between, and allocate, so for that thread alone the locks are open ([`hand_over`]).

use crate::{local, sys};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The thread that forks and has every lock, by the address of its [`local`] data; 0 if there is none.
static FORKER: AtomicUsize = AtomicUsize::new(0);

/// Lets this thread, which forks and has every lock, pass through them.
pub fn hand_over() {
    FORKER.store(local::get() as usize, Ordering::Relaxed);
}

/// Ends that after the fork. The locks are opened next, in the parent and in the child.
pub fn take_back() {
    FORKER.store(0, Ordering::Relaxed);
}

fn is_forker() -> bool {
    FORKER.load(Ordering::Relaxed) == local::get() as usize
}

const OPEN: u32 = 0;
const HELD: u32 = 1;
/// It is held, and another thread may be waiting.
const AWAITED: u32 = 2;
/// Tries before a thread sleeps, because a holder needs only a few hundred nanoseconds.
const LOOKS: u32 = 100;

#[derive(Debug)]
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// True if this thread had the lock before, and keeps it.
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

    /// Takes the lock if no thread has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Not `then_some`: it would always make a guard, and dropping that would open a lock that another thread has.
        self.is_taken_at_once().then(|| Guard { lock: self, is_nested: false })
    }

    /// Takes the lock without a guard, for a fork.
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

    /// Opens the lock after [`Lock::acquire`]. A forked child calls it too, because its only thread took the lock.
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
        // SAFETY: the lock is this thread's while a guard lives. A nested guard is of that thread too.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is this thread's while a guard lives, and the caller has this guard exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if !self.is_nested {
            // SAFETY: `lock` took it for this guard, which ends here.
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
        // SAFETY: this test took it, and no guard is alive.
        unsafe { LOCK.release() };
        other.join().expect("a thread");
        assert_eq!(*LOCK.lock(), 11);
    }
}
