//! Marks on granules, and the lengths of buffers by the granule at which they begin: tables beside the space.

use crate::lock::Lock;
use crate::space::bits::Bits;
use crate::sys;
use crate::units::GRANULE;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Granules that have a property of their own. Most processes have none.
#[derive(Debug)]
pub struct Marks {
    bits: Lock<Option<Bits>>,
    /// The number of runs of marks, approximately: neighbours may count twice.
    runs: AtomicU32,
}

/// Each run of marks is a mapping of the kernel, and a process may have 65,530 mappings.
const MOST_RUNS: u32 = 16 << 10;

impl Marks {
    #[must_use]
    pub const fn new() -> Marks {
        Marks { bits: Lock::new(None), runs: AtomicU32::new(0) }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.load(Ordering::Relaxed) == 0
    }

    /// True if there is room for one more run.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.runs.load(Ordering::Relaxed) < MOST_RUNS
    }

    /// Marks `[from, to)` of `all` granules. False if there is no memory for the mark.
    pub fn set(&self, from: u32, to: u32, all: u32) -> bool {
        let mut guard = self.bits.lock();
        if guard.is_none() {
            *guard = Bits::new(all);
        }
        let Some(bits) = guard.as_mut().filter(|_| from < to) else { return false };
        if !bits.reach(to) {
            return false;
        }
        if from == 0 || bits.count(from - 1, from) == 0 {
            self.runs.fetch_add(1, Ordering::Relaxed);
        }
        bits.set(from, to);
        true
    }

    /// Removes the marks of `[from, to)`. Returns true if there were any.
    pub fn clear(&self, from: u32, to: u32) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut guard = self.bits.lock();
        let Some(bits) = guard.as_mut() else { return false };
        let (mut at, mut begun) = (from, 0);
        while let Some((start, end)) = bits.first_run(at, to) {
            begun += u32::from(start > from || from == 0 || bits.count(from - 1, from) == 0);
            at = end;
        }
        if at == from {
            return false;
        }
        bits.clear(from, to);
        let less = |runs: u32| Some(runs.saturating_sub(begun));
        let _ = self.runs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        true
    }

    /// Gives up addresses of the table that were never needed.
    pub fn tighten(&self) {
        if let Some(bits) = self.bits.lock().as_mut() {
            bits.tighten();
        }
    }

    pub fn before_fork(&self) {
        self.bits.acquire();
    }

    /// # Safety
    /// This thread called [`Marks::before_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: this thread has the lock since `before_fork` (the caller's contract).
        unsafe { self.bits.release() };
    }
}

/// The length in granules of each of the program's buffers, by the granule at which it begins. Read without a lock.
#[derive(Debug)]
pub struct Lengths {
    table: AtomicPtr<AtomicU32>,
    /// Entries from the start that are writable. No buffer begins beyond them.
    reach: AtomicUsize,
    all: AtomicUsize,
    /// True if the others are not reserved.
    is_chosen: AtomicBool,
    reaching: Lock<()>,
}

/// At least this many entries become writable at once.
const REACHED: usize = 16 << 10;

impl Lengths {
    #[must_use]
    pub const fn new() -> Lengths {
        Lengths {
            table: AtomicPtr::new(std::ptr::null_mut()),
            reach: AtomicUsize::new(0),
            all: AtomicUsize::new(0),
            is_chosen: AtomicBool::new(false),
            reaching: Lock::new(()),
        }
    }

    /// Reserves a table for `all` granules. False if there are no addresses for it.
    pub fn begin(&self, all: usize) -> bool {
        let Some((table, is_chosen)) = sys::reserve_or_choose(all * size_of::<u32>(), GRANULE) else {
            return false;
        };
        self.is_chosen.store(is_chosen, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
        self.table.store(table.cast(), Ordering::Release);
        true
    }

    /// Makes room for a buffer that begins at `start`. False if there is no memory for it.
    pub fn reach(&self, start: u32) -> bool {
        self.is_reached(start) || self.reach_more(start as usize + 1)
    }

    /// True if a buffer could begin at `start` without more room in the table.
    #[must_use]
    pub fn is_reached(&self, start: u32) -> bool {
        (start as usize) < self.reach.load(Ordering::Acquire)
    }

    #[cold]
    fn reach_more(&self, count: usize) -> bool {
        let _reaching = self.reaching.lock();
        let (before, all) = (self.reach.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed));
        if before >= count || count > all {
            return before >= count;
        }
        let wanted = (count + count / 4).next_multiple_of(REACHED).min(all);
        let table: *mut u8 = self.table.load(Ordering::Acquire).cast();
        // SAFETY: `before <= wanted <= all`, and the table has `all` entries. Both ends are multiples of a page.
        let (start, bytes) = unsafe { (table.add(before * 4), (wanted - before) * 4) };
        let is_open = sys::extend(start, bytes, self.is_chosen.load(Ordering::Relaxed));
        if is_open {
            self.reach.store(wanted, Ordering::Release);
        }
        is_open
    }

    /// Gives up the addresses of the table that were never needed.
    pub fn tighten(&self) {
        let _reaching = self.reaching.lock();
        let (reach, all) = (self.reach.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed));
        if !self.is_chosen.swap(true, Ordering::Relaxed) && reach < all {
            // SAFETY: `reach < all`, the table's reserved entries, and both ends are multiples of a page.
            let end = unsafe { self.table.load(Ordering::Relaxed).add(reach) };
            sys::unmap(end.cast(), (all - reach) * size_of::<u32>());
        }
    }

    fn place(&self, start: u32) -> Option<&AtomicU32> {
        // SAFETY: entries below `reach` are writable, and stay so.
        self.is_reached(start).then(|| unsafe { &*self.table.load(Ordering::Relaxed).add(start as usize) })
    }

    /// The length; 0 if no buffer begins there.
    #[must_use]
    pub fn get(&self, start: u32) -> u32 {
        self.place(start).map_or(0, |place| place.load(Ordering::Relaxed))
    }

    /// Sets the length of a buffer that begins, or changes. The caller made room for it.
    pub fn set(&self, start: u32, len: u32) {
        if let Some(place) = self.place(start) {
            place.store(len, Ordering::Relaxed);
        }
    }

    /// Ends a buffer. Returns 0 if there was none, or if another thread ended it.
    #[must_use]
    pub fn take(&self, start: u32) -> u32 {
        self.place(start).map_or(0, |place| place.swap(0, Ordering::Relaxed))
    }

    pub fn before_fork(&self) {
        self.reaching.acquire();
    }

    /// # Safety
    /// This thread called [`Lengths::before_fork`].
    pub unsafe fn after_fork(&self) {
        // SAFETY: this thread has the lock since `before_fork` (the caller's contract).
        unsafe { self.reaching.release() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_marks_are_counted_and_taken_away_in_parts() {
        let marks = Marks::new();
        assert!(marks.is_empty() && !marks.clear(0, 100));
        assert!(marks.set(10, 20, 1000) && marks.set(50, 60, 1000));
        assert_eq!(marks.runs.load(Ordering::Relaxed), 2);
        assert!(marks.set(20, 30, 1000), "beside another");
        assert_eq!(marks.runs.load(Ordering::Relaxed), 2);
        assert!(!marks.clear(30, 50));
        // From the top, as memory is given back.
        assert!(marks.clear(55, 70) && !marks.is_empty());
        assert!(marks.clear(40, 55) && marks.clear(0, 40));
        assert!(marks.is_empty() && !marks.clear(0, 1000));
    }

    #[test]
    fn a_length_is_taken_once() {
        let lengths = Lengths::new();
        assert_eq!((lengths.get(5), lengths.take(5)), (0, 0), "before it begins");
        assert!(lengths.begin(100_000) && lengths.reach(70_000) && !lengths.reach(100_000));
        lengths.set(70_000, 16);
        assert_eq!((lengths.get(70_000), lengths.get(70_001), lengths.get(99_999)), (16, 0, 0));
        assert_eq!((lengths.take(70_000), lengths.take(70_000)), (16, 0));
    }
}
