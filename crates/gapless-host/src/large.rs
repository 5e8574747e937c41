//! Buffers from 1 MiB: an arena of reserved addresses whose freed memory is kept for the next buffer.
//!
//! * `allocate` takes the lowest addresses that fit. Where they still have memory, the kernel is not asked.
//! * `free` gives the addresses back to the space and returns: the memory stays until the helper gives it back.
//! * `reallocate` grows in place where it can, else the kernel moves the pages (`mremap`) instead of copying them.
//! * zeroed buffers: only what has memory is cleared.

use crate::arena::{Arena, Held};
use crate::bell;
use crate::budget::Budget;
use crate::huge;
use crate::space::Placed;
use crate::sys;
use crate::units::{GRANULE, HUGE, LARGE, MOST_ALIGNMENT, granules};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bytes that become writable at once.
const STEP: usize = 64 << 20;
/// From this size on pages are moved; below it copying is as fast.
const MOVE: usize = 4 << 20;
/// From this size on a zeroed buffer drops the memory that it finds instead of clearing it: such buffers are often
/// tables that are touched here and there.
const SPARSE: usize = 256 << 20;
/// A zeroed buffer from this size on, and any that takes half of the machine, gets small pages: where it is touched
/// here and there, a huge page for each touch would need 512 times the memory.
const THIN: usize = 1 << 30;
/// Buffers with small pages of their own that are remembered.
const THINS: usize = 64;
/// A buffer of this size starts the trial of huge pages.
const TRIAL: usize = 4 << 20;

const UNKNOWN: u32 = 0;
const SMALL_PAGES: u32 = 1;
const HUGE_PAGES: u32 = 2;

#[derive(Debug)]
pub struct Large {
    arena: Arena<GRANULE>,
    budget: &'static Budget,
    pages: AtomicU32,
    /// A forked child shares its kept memory with its parent: a write would copy what nobody wants.
    inherited: AtomicBool,
    /// Half of the machine's memory.
    half: AtomicUsize,
    /// Buffers with small pages, and where they begin, plus one; 0: nothing.
    thin: AtomicU32,
    thins: [AtomicU32; THINS],
    pub counters: Counters,
}

/// What was counted since the process began.
#[derive(Debug, Default)]
pub struct Counters {
    pub allocations: AtomicU64,
    pub frees: AtomicU64,
    /// Granules handed out, and those of them that had memory.
    pub granules: AtomicU64,
    pub reused: AtomicU64,
    /// Bytes that the kernel moved, and that were copied.
    pub moved: AtomicU64,
    pub copied: AtomicU64,
    pub given_back: AtomicU64,
    pub most_live: AtomicU64,
}

fn bytes(granules: u32) -> usize {
    granules as usize * GRANULE
}

impl Large {
    #[must_use]
    pub const fn new(budget: &'static Budget) -> Large {
        Large {
            arena: Arena::new(budget, STEP),
            budget,
            pages: AtomicU32::new(UNKNOWN),
            inherited: AtomicBool::new(false),
            half: AtomicUsize::new(usize::MAX),
            thin: AtomicU32::new(0),
            thins: [const { AtomicU32::new(0) }; THINS],
            counters: Counters {
                allocations: AtomicU64::new(0),
                frees: AtomicU64::new(0),
                granules: AtomicU64::new(0),
                reused: AtomicU64::new(0),
                moved: AtomicU64::new(0),
                copied: AtomicU64::new(0),
                given_back: AtomicU64::new(0),
                most_live: AtomicU64::new(0),
            },
        }
    }

    /// Whether an address lies in the arena.
    #[inline]
    #[must_use]
    pub fn contains(&self, block: *const u8) -> bool {
        self.arena.contains(block)
    }

    /// Whether no addresses could be reserved.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.arena.size() == 0
    }

    fn address(&self, granule: u32) -> *mut u8 {
        self.arena.address(granule)
    }

    /// Reserves the addresses: four times the machine's memory, or what can be had.
    fn begin(&self) -> bool {
        let memory = sys::memory();
        self.half.store(memory / 2, Ordering::Relaxed);
        let size = memory.saturating_mul(4).next_power_of_two().clamp(64 << 30, 64 << 40);
        self.arena.begin(size, MOST_ALIGNMENT)
    }

    /// A buffer; null where there is no memory, no room, or no budget.
    pub fn allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        let Some(len) = granules(size.max(1)) else { return std::ptr::null_mut() };
        if self.is_absent() && !self.begin() {
            return std::ptr::null_mut();
        }
        if self.inherited.load(Ordering::Relaxed) && self.inherited.swap(false, Ordering::Relaxed) {
            self.trim(u32::MAX);
        }
        let align = (alignment / GRANULE).max(1) as u32;
        let Some(placed) = self.place(len, align, 0) else { return std::ptr::null_mut() };
        if size >= TRIAL && self.pages.load(Ordering::Relaxed) == UNKNOWN {
            self.try_huge_pages();
        }
        if (zeroed && size >= THIN) || size >= self.half.load(Ordering::Relaxed) {
            self.make_thin(placed);
        }
        if zeroed {
            self.clear(placed, size);
        }
        self.count(placed);
        self.address(placed.start)
    }

    fn count(&self, placed: Placed) {
        let counters = &self.counters;
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.granules.fetch_add(u64::from(placed.len), Ordering::Relaxed);
        counters.reused.fetch_add(u64::from(placed.backed), Ordering::Relaxed);
    }

    fn place(&self, len: u32, align: u32, phase: u32) -> Option<Placed> {
        let placed = self.arena.place(len, align, phase, |start, length| self.advise(start, length))?;
        self.counters.most_live.fetch_max(self.arena.held().live, Ordering::Relaxed);
        Some(placed)
    }

    /// For what becomes writable.
    fn advise(&self, start: *mut u8, length: usize) {
        match self.pages.load(Ordering::Relaxed) {
            HUGE_PAGES => sys::advise_huge(start, length, true),
            SMALL_PAGES => sys::advise_huge(start, length, false),
            _ => {}
        }
    }

    fn try_huge_pages(&self) {
        let found = if huge::is_offered() && huge::pays() { HUGE_PAGES } else { SMALL_PAGES };
        if self.pages.compare_exchange(UNKNOWN, found, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.use_huge_pages(found == HUGE_PAGES);
        }
    }

    /// From now on, and for memory that is not there yet.
    pub fn use_huge_pages(&self, wanted: bool) {
        self.arena.with_writable(|start, length| {
            self.pages.store(if wanted { HUGE_PAGES } else { SMALL_PAGES }, Ordering::Relaxed);
            if length > 0 {
                sys::advise_huge(start, length, wanted);
            }
        });
    }

    #[must_use]
    pub fn has_huge_pages(&self) -> bool {
        self.pages.load(Ordering::Relaxed) == HUGE_PAGES
    }

    /// Small pages for one buffer.
    fn make_thin(&self, placed: Placed) {
        let free = |slot: &&AtomicU32| {
            slot.compare_exchange(0, placed.start + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if self.has_huge_pages() && self.thins.iter().find(free).is_some() {
            self.thin.fetch_add(1, Ordering::Relaxed);
            sys::advise_huge(self.address(placed.start), bytes(placed.len), false);
        }
    }

    /// The buffer is freed: what comes there next is like all others again.
    fn end_thin(&self, start: u32, len: u32) {
        let mine = |slot: &&AtomicU32| {
            slot.compare_exchange(start + 1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if self.thin.load(Ordering::Relaxed) > 0 && self.thins.iter().find(mine).is_some() {
            self.thin.fetch_sub(1, Ordering::Relaxed);
            sys::keep_errno(|| sys::advise_huge(self.address(start), bytes(len), self.has_huge_pages()));
        }
    }

    /// Makes a buffer zero: the parts that have memory.
    fn clear(&self, placed: Placed, size: usize) {
        let end = placed.start + placed.len;
        let mut at = placed.start;
        let run = |at| self.arena.space().as_ref().and_then(|space| space.backed_run(at, end));
        if placed.backed == 0 {
            return;
        }
        while let Some((from, to)) = run(at) {
            let start = self.address(from);
            let length = bytes(to - from).min(size.saturating_sub(bytes(from - placed.start)));
            let dropped = size >= SPARSE && sys::discard(start, bytes(to - from));
            if !dropped {
                // SAFETY: a part of the buffer, which is nobody else's and writable.
                unsafe { start.write_bytes(0, length) };
            }
            at = to;
        }
    }

    /// The length of the buffer at this address; `None` where no buffer begins.
    #[must_use]
    pub fn usable(&self, block: *const u8) -> Option<usize> {
        self.arena.usable(block)
    }

    /// Takes a buffer back. False: no buffer begins there.
    #[must_use]
    pub fn free(&self, block: *mut u8) -> bool {
        let Some(granule) = self.arena.unit(block) else { return false };
        if self.thin.load(Ordering::Relaxed) > 0
            && let Some(len) = self.usable(block)
        {
            self.end_thin(granule, (len / GRANULE) as u32);
        }
        let freed = self.arena.space().as_mut().and_then(|space| space.free(granule, true));
        if freed.is_some() {
            self.counters.frees.fetch_add(1, Ordering::Relaxed);
            bell::ring();
        }
        freed.is_some()
    }

    /// Changes a buffer's size. Null: it stays as it was. `None`: no buffer begins there.
    pub fn reallocate(&self, block: *mut u8, size: usize) -> Option<*mut u8> {
        let granule = self.arena.unit(block)?;
        let old = self.arena.space().as_ref()?.length(granule)?;
        let Some(len) = granules(size) else { return Some(std::ptr::null_mut()) };
        if len == old {
            return Some(block);
        }
        if len < old {
            self.arena.space().as_mut()?.shrink(granule, len);
            bell::ring();
            return Some(block);
        }
        Some(match self.arena.grow(granule, len, |start, length| self.advise(start, length)) {
            Some(Some(part)) => {
                self.count(part);
                block
            }
            Some(None) => std::ptr::null_mut(),
            None => self.move_to_larger(granule, old, len),
        })
    }

    fn move_to_larger(&self, granule: u32, old: u32, len: u32) -> *mut u8 {
        // Pages move as whole entries of the kernel's tables where both places have the same phase.
        let unit = (HUGE / GRANULE) as u32;
        let Some(placed) = self.place(len, unit, granule % unit) else { return std::ptr::null_mut() };
        self.count(placed);
        let (from, to) = (self.address(granule), self.address(placed.start));
        self.end_thin(granule, old);
        let moved = if bytes(old) >= MOVE { move_all(from, to, bytes(old)) } else { 0 };
        if moved < bytes(old) {
            // `move_all` moves whole parts from the front.
            // SAFETY: both buffers are ours, at least this long, and do not overlap.
            unsafe { to.add(moved).copy_from_nonoverlapping(from.add(moved), bytes(old) - moved) };
        }
        self.counters.moved.fetch_add(moved as u64, Ordering::Relaxed);
        self.counters.copied.fetch_add((bytes(old) - moved) as u64, Ordering::Relaxed);
        let gone = (moved / GRANULE) as u32;
        if let Some(space) = self.arena.space().as_mut() {
            space.free_moved(granule, gone);
        }
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        // The pages that moved were charged at their old place and are charged at the new one.
        self.budget.discharge(bytes(gone) as u64);
        bell::ring();
        to
    }

    /// Gives back kept memory, at most that many granules. Gives the bytes.
    pub fn trim(&self, most: u32) -> u64 {
        let given = self.arena.trim(most);
        self.counters.given_back.fetch_add(given, Ordering::Relaxed);
        given
    }

    #[must_use]
    pub fn held(&self) -> Held {
        self.arena.held()
    }

    /// Granules that nobody needed since the last call.
    pub fn low_water(&self) -> u32 {
        self.arena.low_water()
    }

    /// Says what is wrong with the tables; for tests.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        self.arena.fault()
    }

    /// Before a fork: nobody is in the middle of a change.
    pub fn before_fork(&self) {
        self.arena.before_fork();
    }

    /// After it, in the parent.
    ///
    /// # Safety
    /// [`Large::before_fork`] was called by this thread.
    pub unsafe fn after_fork(&self) {
        // SAFETY: as the caller says.
        unsafe { self.arena.after_fork() };
    }

    /// After it, in the child: what other threads were giving back is free again.
    ///
    /// # Safety
    /// [`Large::before_fork`] was called by this thread, in the parent.
    pub unsafe fn after_fork_in_child(&self) {
        // SAFETY: as the caller says.
        let kept = unsafe { self.arena.after_fork_in_child() };
        self.inherited.store(kept > 0, Ordering::Relaxed);
    }
}

/// Moves pages from the front. Gives how many bytes were moved: less than all where the kernel refuses a part.
fn move_all(from: *mut u8, to: *mut u8, length: usize) -> usize {
    if sys::keep_errno(|| sys::move_pages(from, to, length)) {
        return length;
    }
    // The kernel moves what is one mapping. A buffer that was moved before and then grew is two.
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

/// Whether a request goes to the arena.
#[inline]
#[must_use]
pub fn is_large(size: usize, alignment: usize) -> bool {
    size >= LARGE || alignment >= GRANULE
}
