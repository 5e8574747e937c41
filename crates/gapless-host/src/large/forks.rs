//! Forks: all locks are taken before one, and given back in parent and child.

use super::Large;
use super::marks::{Lengths, Marks};
use crate::arena::Arena;
use std::sync::atomic::Ordering;

impl Large {
    /// Called before a fork: takes all locks, so that no thread is in the middle of a change.
    pub fn before_fork(&self) {
        self.begun.acquire();
        self.pinned.before_fork();
        [&self.thick, &self.moved].into_iter().for_each(Marks::before_fork);
        self.lengths.iter().for_each(Lengths::before_fork);
        self.arenas.iter().for_each(Arena::before_fork);
    }

    /// Called after a fork, in the parent.
    ///
    /// # Safety
    /// This thread called [`Large::before_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: this thread has the locks of the arenas since `before_fork` (the caller's contract).
        unsafe {
            self.arenas.iter().for_each(|arena| arena.after_fork());
            self.open(false);
        }
    }

    /// Called after a fork, in the child. Memory that other threads were giving back is free again.
    ///
    /// # Safety
    /// This thread called [`Large::before_fork`], in the parent.
    pub unsafe fn after_fork_in_child(&self) {
        // SAFETY: this thread took the locks of the arenas in `before_fork`, in the parent (the caller's contract).
        let kept: u32 = unsafe { self.arenas.iter().map(|arena| arena.after_fork_in_child()).sum() };
        // SAFETY: it also took the other locks there.
        unsafe { self.open(true) };
        self.inherited.store(kept > 0, Ordering::Relaxed);
    }

    unsafe fn open(&self, in_child: bool) {
        // SAFETY: the two callers have these locks since `before_fork`.
        unsafe {
            self.lengths.iter().for_each(|lengths| lengths.after_fork());
            [&self.moved, &self.thick].into_iter().for_each(|marks| marks.after_fork());
            self.pinned.after_fork(in_child);
            self.begun.release();
        }
    }
}
