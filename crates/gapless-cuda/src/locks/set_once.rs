//! A value that is set once, without a lock: threads that come at once may each make it, and one of them wins.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `OnceLock`, but no thread ever waits for another one: it may not be in this process.
pub struct SetOnce<T> {
    value: AtomicPtr<T>,
    owned: PhantomData<T>,
}

// SAFETY: the value is shared by those who have the cell, and goes with it.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}
// SAFETY: as above.
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
        // SAFETY: what was set stays until the cell goes.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value.
    ///
    /// # Errors
    /// With the value, where there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let made = Box::into_raw(Box::new(value));
        match self.value.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            // SAFETY: made above, and no other thread knows of it.
            Err(_) => Err(*unsafe { Box::from_raw(made) }),
        }
    }

    /// The value, which `make` makes where there is none.
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
        // SAFETY: set just now, here or by another thread, and it stays.
        unsafe { &*self.value.load(Ordering::Acquire) }
    }
}

impl<T> Drop for SetOnce<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: `set` made it, and the cell was the last to know of it.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}
