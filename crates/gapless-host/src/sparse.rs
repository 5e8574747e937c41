//! Buffers that are touched here and there, as tables are: a huge page for each touch would clear 2 MiB and need 512
//! times the memory. They get small pages.
//!
//! Nobody says how a buffer will be used. A zeroed one without memory may be a table, so the first of its size gets
//! small pages. When it is freed, some of its pages are looked at: if most were touched, the next one of that size gets
//! huge pages, until one is sparse again.

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Buffers that are remembered. Those beyond get huge pages.
const SLOTS: usize = 64;
/// Pages that are looked at.
const LOOKS: usize = 32;
/// A buffer begins at a multiple of this or more, so two bits of its address are free.
const MARKS: usize = 3;
const HAS_SMALL: usize = 1;
const IS_JUDGED: usize = 2;

#[derive(Debug)]
pub struct Sparse {
    /// Filled slots.
    count: AtomicU32,
    /// Where a buffer begins, with its marks; 0: nothing.
    slots: [AtomicUsize; SLOTS],
    /// One bit for each power of two: the last zeroed buffer of about that size was used densely.
    dense: AtomicU64,
    is_stopped: AtomicBool,
}

impl Sparse {
    #[must_use]
    pub const fn new() -> Sparse {
        Sparse {
            count: AtomicU32::new(0),
            slots: [const { AtomicUsize::new(0) }; SLOTS],
            dense: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Looks at no buffer any more: the call may be forbidden.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// A buffer that may be sparse begins; `is_surely`: it gets small pages whatever the last one was. Gives whether it
    /// gets small pages.
    pub fn begin(&self, start: *mut u8, length: usize, is_surely: bool) -> bool {
        let can_judge = !is_surely && !self.is_stopped.load(Ordering::Relaxed);
        if !is_surely && !can_judge {
            return false;
        }
        let has_small = is_surely || self.dense.load(Ordering::Relaxed) & bit(length) == 0;
        let marks = if has_small { HAS_SMALL } else { 0 } | if can_judge { IS_JUDGED } else { 0 };
        let value = start as usize | marks;
        let take = |slot: &AtomicUsize| {
            slot.compare_exchange(0, value, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let is_taken = self.slots.iter().any(take);
        if is_taken {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        is_taken && has_small
    }

    /// A buffer ends. Gives whether it had small pages.
    pub fn end(&self, start: *mut u8, length: usize) -> bool {
        if self.is_empty() {
            return false;
        }
        let mine = |slot: &AtomicUsize| {
            let value = slot.load(Ordering::Relaxed);
            let is_mine = value != 0 && value & !MARKS == start as usize;
            (is_mine && slot.compare_exchange(value, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok())
                .then_some(value & MARKS)
        };
        let Some(marks) = self.slots.iter().find_map(mine) else { return false };
        self.count.fetch_sub(1, Ordering::Relaxed);
        if marks & IS_JUDGED != 0 && !self.is_stopped.load(Ordering::Relaxed) {
            if is_dense(start, length) {
                self.dense.fetch_or(bit(length), Ordering::Relaxed);
            } else {
                self.dense.fetch_and(!bit(length), Ordering::Relaxed);
            }
        }
        marks & HAS_SMALL != 0
    }
}

impl Default for Sparse {
    fn default() -> Sparse {
        Sparse::new()
    }
}

fn bit(length: usize) -> u64 {
    1 << length.max(1).ilog2()
}

/// Whether most of some pages, spread over the buffer, have memory.
fn is_dense(start: *mut u8, length: usize) -> bool {
    let at = |look: usize| length / (2 * LOOKS) * (2 * look + 1) / sys::PAGE * sys::PAGE;
    let found =
        sys::keep_errno(|| (0..LOOKS).filter(|look| sys::is_resident(start.wrapping_add(at(*look)))).count());
    found >= LOOKS / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 64 << 20;

    /// Touches one page in `every`, as the owner of the buffer would.
    fn use_once(sparse: &Sparse, start: *mut u8, every: usize) -> bool {
        let has_small = sparse.begin(start, LENGTH, false);
        assert!(sys::discard(start, LENGTH));
        sys::advise_huge(start, LENGTH, !has_small);
        for at in (0..LENGTH).step_by(every * sys::PAGE) {
            // SAFETY: inside of the test's mapping.
            unsafe { start.add(at).write_volatile(1) };
        }
        assert_eq!(sparse.end(start, LENGTH), has_small);
        has_small
    }

    #[test]
    fn the_first_buffer_and_those_after_a_sparse_one_get_small_pages() {
        let start = sys::reserve(LENGTH, 2 << 20).expect("addresses");
        assert!(sys::commit(start, LENGTH));
        let sparse = Sparse::new();
        assert!(use_once(&sparse, start, 4096), "the first may be a table");
        assert!(use_once(&sparse, start, 1), "the one before was a table");
        assert!(!use_once(&sparse, start, 1), "the one before was filled");
        assert!(!use_once(&sparse, start, 4096), "and this one is a table, with huge pages");
        assert!(use_once(&sparse, start, 4096), "which is seen too");
        assert!(sparse.is_empty());
        sys::unmap(start, LENGTH);
    }

    #[test]
    fn what_is_surely_sparse_is_not_judged_and_a_full_table_changes_nothing() {
        let sparse = Sparse::new();
        let at = |number: usize| ((number + 1) << 20) as *mut u8;
        for number in 0..SLOTS {
            assert!(sparse.begin(at(number), LENGTH, true));
        }
        assert!(!sparse.begin(at(SLOTS), LENGTH, true), "no slot");
        assert!(!sparse.end(at(SLOTS), LENGTH));
        for number in 0..SLOTS {
            assert!(sparse.end(at(number), LENGTH));
        }
        assert!(sparse.is_empty());
        sparse.stop();
        assert!(!sparse.begin(at(0), LENGTH, false), "nothing is judged");
    }
}
