//! A value that is set once, without a lock: threads that come at the same time may each make one, and one stays.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A `OnceLock` in which no thread waits for another, because that one may not exist in this process.
pub struct SetOnce<T> {
    value: AtomicPtr<T>,
    owned: PhantomData<T>,
}

// SAFETY: threads share the value by reference, and it lives as long as the cell.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}
// SAFETY: the cell owns the value, which moves with it.
unsafe impl<T: Send> Send for SetOnce<T> {}

impl<T: fmt::Debug> fmt::Debug for SetOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl<T> Default for SetOnce<T> {
    fn default() -> SetOnce<T> {
        SetOnce::new()
    }
}

impl<T> SetOnce<T> {
    #[must_use]
    pub const fn new() -> SetOnce<T> {
        SetOnce { value: AtomicPtr::new(ptr::null_mut()), owned: PhantomData }
    }

    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: a value that was set stays until the cell is dropped.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value.
    ///
    /// # Errors
    /// With the value, if another was set before.
    pub fn set(&self, value: T) -> Result<(), T> {
        let made = Box::into_raw(Box::new(value));
        match self.value.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            // SAFETY: it was made above, and no other thread has seen it.
            Err(_) => Err(*unsafe { Box::from_raw(made) }),
        }
    }

    /// The value. If there is none, `make` makes it.
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.init(make),
        }
    }

    #[cold]
    fn init(&self, make: impl FnOnce() -> T) -> &T {
        let _ = self.set(make());
        // SAFETY: this or another thread has just set it, and it stays.
        unsafe { &*self.value.load(Ordering::Acquire) }
    }
}

impl<T> Drop for SetOnce<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: `set` made it, and nothing borrows from a cell that is dropped.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}
