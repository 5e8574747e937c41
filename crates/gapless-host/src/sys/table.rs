//! Lists of fixed length in memory of their own, for tables of the allocator.

use super::{PAGE, damaged, extend, map, reserve_or_choose, unmap};
use std::marker::PhantomData;

/// A type that is valid when all its bytes are zero.
///
/// # Safety
/// All bytes zero are a valid value of the type.
pub unsafe trait Zeroed: Copy {}

// SAFETY: an integer.
unsafe impl Zeroed for u32 {}
// SAFETY: an integer.
unsafe impl Zeroed for u64 {}

/// A list of fixed length in memory of its own, zero until it is written. The kernel supplies only the pages that are
/// touched. A long list ([`Table::lazy`]) is reserved, and becomes writable from its start as it is used, because pages
/// that a process may write count for limits and for its commit charge, even untouched.
#[derive(Debug)]
pub struct Table<T: Zeroed> {
    start: *mut T,
    length: usize,
    /// Entries from the start that are writable. The others are zero.
    open: usize,
    /// True if the others are not reserved.
    is_chosen: bool,
    owns: PhantomData<T>,
}

// SAFETY: the table owns its memory, and hands out only copies.
unsafe impl<T: Zeroed + Send> Send for Table<T> {}

impl<T: Zeroed> Table<T> {
    #[must_use]
    pub fn new(length: usize) -> Option<Table<T>> {
        let start = map(length.checked_mul(size_of::<T>())?)?;
        Some(Table { start: start.cast(), length, open: length, is_chosen: false, owns: PhantomData })
    }

    /// A list that becomes writable as it is used: see [`Table::reach`].
    #[must_use]
    pub fn lazy(length: usize) -> Option<Table<T>> {
        let bytes = length.checked_mul(size_of::<T>())?.next_multiple_of(PAGE);
        let (start, is_chosen) = reserve_or_choose(bytes, PAGE)?;
        Some(Table { start: start.cast(), length, open: 0, is_chosen, owns: PhantomData })
    }

    /// Makes the first `count` entries writable, or all if there are fewer. False if there is no memory for them.
    #[must_use]
    pub fn reach(&mut self, count: usize) -> bool {
        let count = count.min(self.length);
        count <= self.open || self.open_to(count)
    }

    #[cold]
    fn open_to(&mut self, count: usize) -> bool {
        // A quarter more each time, so that a table of gigabytes takes a few dozen calls.
        let bytes = (count * size_of::<T>()).next_multiple_of(PAGE);
        let more = (bytes + (bytes / 4).clamp(OPENED, OPENED << 4)).next_multiple_of(PAGE);
        let all = (self.length * size_of::<T>()).next_multiple_of(PAGE);
        let before = self.open_bytes();
        // SAFETY: the open part lies inside of the table.
        let behind: *mut u8 = unsafe { self.start.cast::<u8>().add(before) };
        let made = [more.min(all), bytes]
            .into_iter()
            .find(|bytes| *bytes <= before || extend(behind, bytes - before, self.is_chosen));
        self.open = made.map_or(self.open, |bytes| (bytes / size_of::<T>()).min(self.length));
        made.is_some()
    }

    #[must_use]
    pub fn get(&self, at: usize) -> T {
        if at >= self.open {
            return self.behind(at);
        }
        // SAFETY: `at < open`, and that part of the table is mapped, aligned to a page, and valid when zero.
        unsafe { self.start.add(at).read() }
    }

    #[cold]
    fn behind(&self, at: usize) -> T {
        if at >= self.length {
            damaged();
        }
        // SAFETY: the type is valid when zero.
        unsafe { std::mem::zeroed() }
    }

    /// The address of an entry. Only for tables that are not lazy.
    #[must_use]
    pub fn place(&self, at: usize) -> *const T {
        if at >= self.open {
            damaged();
        }
        // SAFETY: `at < open`, so the entry lies inside of the table.
        unsafe { self.start.add(at) }
    }

    pub fn set(&mut self, at: usize, value: T) {
        // Callers of lazy tables have called `reach` before, when they could still refuse.
        if at >= self.open && (at >= self.length || !self.open_to(at + 1)) {
            damaged();
        }
        // SAFETY: `at < open`, which is mapped and writable, and `&mut self` keeps others out.
        unsafe { self.start.add(at).write(value) }
    }
}

/// At least this many bytes of a lazy table become writable at once.
const OPENED: usize = 64 << 10;

impl<T: Zeroed> Table<T> {
    /// Bytes of the entries that are writable, in whole pages.
    fn open_bytes(&self) -> usize {
        (self.open * size_of::<T>()).next_multiple_of(PAGE)
    }

    /// Gives up the addresses behind the entries that are writable. They are taken again when they are needed.
    pub fn tighten(&mut self) {
        let (open, all) = (self.open_bytes(), (self.length * size_of::<T>()).next_multiple_of(PAGE));
        if !self.is_chosen && open < all {
            // SAFETY: `open` lies inside of the table, and nothing behind it is read or written while it is not open.
            unmap(unsafe { self.start.cast::<u8>().add(open) }, all - open);
        }
        self.is_chosen = true;
    }
}

impl<T: Zeroed> Drop for Table<T> {
    fn drop(&mut self) {
        let all = (self.length * size_of::<T>()).next_multiple_of(PAGE);
        let bytes = if self.is_chosen { self.open_bytes() } else { all };
        if bytes > 0 {
            unmap(self.start.cast(), bytes);
        }
    }
}
