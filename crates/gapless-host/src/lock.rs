//! A lock that never allocates, and that a forked child can open.

use crate::sys;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

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
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(OPEN), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard(self)
    }

    /// The value, where nobody else has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let taken = self.word.compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(Guard(self))
    }

    /// Takes the lock without a guard: around a fork.
    pub fn acquire(&self) {
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
        // SAFETY: this guard is the only one.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the guard took it, and ends here.
        unsafe { self.0.release() };
    }
}
