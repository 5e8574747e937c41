//! Locks and atomics: the standard library's, or those of a scheduler that tries many interleavings, in tests.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// A lock whatever happened to its last holder: a panic leaves what it guards as the last completed step had it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
