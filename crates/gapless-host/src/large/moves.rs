//! A buffer without room to grow moves: the kernel moves its pages, or they are copied.

use super::{Large, bytes};
use crate::helper_wakeup;
use crate::sys;
use crate::units::HUGE;
use std::sync::atomic::Ordering;

/// From this size on pages are moved. Below it a copy is as fast.
const MOVE: usize = 4 << 20;

impl Large {
    /// Moves a buffer of `old` granules to a place of `len` granules, on the same node.
    pub(super) fn move_to_larger(&self, node: usize, granule: u32, old: u32, len: u32) -> *mut u8 {
        let arena = &self.arenas[node];
        // If both places have the same phase, the kernel moves whole entries of its page tables.
        let unit = (HUGE / crate::units::GRANULE) as u32;
        let Some(placed) = self.place(node, len, unit, granule % unit) else { return std::ptr::null_mut() };
        self.count(placed);
        let (from, to) = (arena.address(granule), arena.address(placed.start));
        let is_held = self.pinned.holds(from as usize, bytes(old));
        self.pinned.let_go(from as usize, bytes(old));
        // The new place may have kept memory with a registration.
        self.pinned.let_go(to as usize, bytes(len));
        let may_move = !self.dense.is_stopped() && self.moved.has_room();
        let moved =
            if may_move && !is_held && bytes(old) >= MOVE { move_all(from, to, bytes(old)) } else { 0 };
        if moved < bytes(old) {
            // `move_all` moves whole parts from the front.
            // SAFETY: both buffers are ours, have at least `bytes(old)` bytes, and do not overlap.
            unsafe { to.add(moved).copy_from_nonoverlapping(from.add(moved), bytes(old) - moved) };
        }
        self.counters.moved.fetch_add(moved as u64, Ordering::Relaxed);
        self.counters.copied.fetch_add((bytes(old) - moved) as u64, Ordering::Relaxed);
        if moved > 0 {
            self.moved.set(self.offset(to), self.offset(to) + (moved / bytes(1)) as u32, self.units());
            // The old place has no memory, so it can become one mapping with its neighbours.
            self.begin_anew(from, moved);
        }
        if is_held {
            return to;
        }
        let gone = (moved / bytes(1)) as u32;
        let _ = self.lengths[node].take(granule);
        self.live.fetch_sub(u64::from(old), Ordering::Relaxed);
        if let Some(space) = arena.space().as_mut() {
            space.free_moved(granule, gone);
        }
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        // Pages that moved were charged at their old place, and are charged at the new one.
        self.budget.discharge(bytes(gone) as u64);
        helper_wakeup::signal();
        to
    }

    /// Makes a range without memory one mapping with its neighbours again, with their kind of pages.
    pub(super) fn begin_anew(&self, start: *mut u8, length: usize) {
        sys::keep_errno(|| {
            if sys::map_anew(start, length) {
                self.advise(start, length);
            }
        });
        self.thick.clear(self.offset(start), self.offset(start) + (length / bytes(1)) as u32);
    }
}

/// Moves pages from the front. Returns the number of bytes that moved: fewer if the kernel refuses a part.
fn move_all(from: *mut u8, to: *mut u8, length: usize) -> usize {
    if sys::keep_errno(|| sys::move_pages(from, to, length)) {
        return length;
    }
    // The kernel moves only pages of one mapping. A buffer that was moved before and then grew has two.
    let half = (length / 2).next_multiple_of(HUGE);
    if length < 2 * HUGE || half >= length {
        return 0;
    }
    let first = move_all(from, to, half);
    if first < half {
        return first;
    }
    // SAFETY: `half < length`, and both ranges have `length`.
    let (from, to) = unsafe { (from.add(half), to.add(half)) };
    half + move_all(from, to, length - half)
}
