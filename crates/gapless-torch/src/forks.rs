//! Tells each part of a forked child what it is. CUDA does not survive a fork, nor do our threads.

use crate::sharing::listening;
use crate::{background, interpreter, process, recorder};
use gapless_cuda::{locks, shared_pages};
use std::sync::atomic::{AtomicBool, Ordering};

extern "C" fn in_child() {
    process::set_forked();
    recorder::forked();
    interpreter::DOOR.forked();
    // A child's copies of what is open here would keep memory, and let callers wait.
    listening::close_in_forked_child();
    shared_pages::close_in_forked_child();
}

/// Registers the handler that tells a forked child what it is. Called before the first use of CUDA: a child that was
/// forked earlier has no CUDA state to damage.
pub(crate) fn watch() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.swap(true, Ordering::AcqRel) {
        // Fork handlers run in the order of their registration. That of the locks comes first, so that `in_child` can
        // take a lock that another thread of the parent held.
        let _ = locks::generation();
        background::in_forked_child(in_child);
    }
}
