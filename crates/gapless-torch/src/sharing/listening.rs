//! The descriptor of the socket that answers readers. A forked child closes its copy.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The listening descriptor; -1: none.
static LISTENING: AtomicI32 = AtomicI32::new(-1);

/// True if readers are answered.
pub(super) fn is_open() -> bool {
    LISTENING.load(Ordering::Relaxed) >= 0
}

/// Notes the descriptor before a thread answers on it.
pub(super) fn set(file: RawFd) {
    LISTENING.store(file, Ordering::Relaxed);
}

/// The descriptor answers no more, and its number may be another file's.
pub(super) fn forget(file: RawFd) {
    let _ = LISTENING.compare_exchange(file, -1, Ordering::Relaxed, Ordering::Relaxed);
}

/// Closes the child's copy: with it, readers would wait for an answer after the parent is gone.
pub(crate) fn close_in_forked_child() {
    let file = LISTENING.swap(-1, Ordering::Relaxed);
    if file >= 0 {
        // SAFETY: the descriptor is the child's own copy, and the thread that listened does not exist in the child.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
    }
}
