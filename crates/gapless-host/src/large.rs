//! Buffers from 1 MiB: an arena of reserved addresses whose freed memory is kept for the next buffer.
//!
//! * `allocate` takes the lowest addresses that fit. Where they still have memory, the kernel is not asked.
//! * `free` gives the addresses back to the space and returns: the memory stays until the helper gives it back.
//! * `reallocate` grows in place where it can, else the kernel moves the pages (`mremap`) instead of copying them.
//! * zeroed buffers: only what has memory is cleared.
//! * each NUMA node has an arena: a buffer goes back to the node that its memory lies on. One node is never asked for.
//! * memory that a driver has registered (`pinned`) is not given back, moved or dropped while it is in use.

use crate::arena::{Arena, Held};
use crate::bell;
use crate::budget::Budget;
use crate::huge;
use crate::lock::Lock;
use crate::numa::{self, Topology};
use crate::pinned::Pinned;
use crate::space::Placed;
use crate::sparse::Sparse;
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
/// A zeroed buffer from this size on may be such a table, and gets small pages if the last one was; from the second
/// size on, and any that takes half of the machine, always.
const MAYBE_THIN: usize = 16 << 20;
const THIN: usize = 1 << 30;
/// A buffer of this size starts the trial of huge pages.
const TRIAL: usize = 4 << 20;

const UNKNOWN: u32 = 0;
const SMALL_PAGES: u32 = 1;
const HUGE_PAGES: u32 = 2;

#[derive(Debug)]
pub struct Large {
    /// One for each node, behind each other: `[base, base + nodes * size)`.
    arenas: [Arena<GRANULE>; numa::MOST],
    base: AtomicUsize,
    size: AtomicUsize,
    nodes: AtomicUsize,
    topology: Topology,
    begun: Lock<()>,
    pub pinned: Pinned,
    budget: &'static Budget,
    pages: AtomicU32,
    /// A forked child shares its kept memory with its parent: a write would copy what nobody wants.
    inherited: AtomicBool,
    /// Half of the machine's memory.
    half: AtomicUsize,
    sparse: Sparse,
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
        Large::on(budget, numa::MACHINE)
    }

    /// For a machine whose nodes are told.
    #[must_use]
    pub const fn on(budget: &'static Budget, topology: Topology) -> Large {
        Large {
            arenas: [
                Arena::new(budget, STEP),
                Arena::new(budget, STEP),
                Arena::new(budget, STEP),
                Arena::new(budget, STEP),
                Arena::new(budget, STEP),
                Arena::new(budget, STEP),
                Arena::new(budget, STEP),
                Arena::new(budget, STEP),
            ],
            base: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            nodes: AtomicUsize::new(1),
            topology,
            begun: Lock::new(()),
            pinned: Pinned::new(),
            budget,
            pages: AtomicU32::new(UNKNOWN),
            inherited: AtomicBool::new(false),
            half: AtomicUsize::new(usize::MAX),
            sparse: Sparse::new(),
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

    /// Whether an address lies in an arena.
    #[inline]
    #[must_use]
    pub fn contains(&self, block: *const u8) -> bool {
        (block as usize).wrapping_sub(self.base.load(Ordering::Relaxed)) < self.size.load(Ordering::Relaxed)
    }

    /// Whether no addresses could be reserved.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.size.load(Ordering::Acquire) == 0
    }

    fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed)
    }

    fn each(&self) -> impl Iterator<Item = &Arena<GRANULE>> {
        self.arenas.iter().take(self.nodes())
    }

    /// The arena of a new buffer: that of the node on which this thread runs.
    fn here(&self) -> &Arena<GRANULE> {
        match self.nodes() {
            1 => &self.arenas[0],
            nodes => &self.arenas[(self.topology.here)() % nodes],
        }
    }

    /// The arena of a buffer.
    fn of(&self, block: *const u8) -> &Arena<GRANULE> {
        match self.nodes() {
            1 => &self.arenas[0],
            nodes => {
                let offset = (block as usize).wrapping_sub(self.base.load(Ordering::Relaxed));
                let each = self.size.load(Ordering::Relaxed) / nodes;
                &self.arenas[(offset / each.max(1)).min(nodes - 1)]
            }
        }
    }

    /// Reserves the addresses: four times the machine's memory for each node, or what can be had.
    fn begin(&self) -> bool {
        let _begun = self.begun.lock();
        if !self.is_absent() {
            return true;
        }
        let memory = sys::memory();
        self.half.store(memory / 2, Ordering::Relaxed);
        let size = memory.saturating_mul(4).next_power_of_two().clamp(64 << 30, 64 << 40);
        let nodes = (self.topology.nodes)().clamp(1, numa::MOST);
        if nodes > 1
            && let Some(start) = sys::reserve(size * nodes, MOST_ALIGNMENT)
        {
            // SAFETY: inside of what was reserved.
            let at = |node: usize| unsafe { start.add(node * size) };
            if (0..nodes).all(|node| self.arenas[node].begin_at(at(node), size)) {
                self.nodes.store(nodes, Ordering::Relaxed);
                self.base.store(start as usize, Ordering::Relaxed);
                self.size.store(size * nodes, Ordering::Release);
                return true;
            }
            return false;
        }
        let first = &self.arenas[0];
        let is_there = first.begin(size, MOST_ALIGNMENT);
        self.base.store(first.address(0) as usize, Ordering::Relaxed);
        self.size.store(first.size(), Ordering::Release);
        is_there
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
        let arena = self.here();
        let Some(placed) = self.place(arena, len, align, 0) else { return std::ptr::null_mut() };
        let start = arena.address(placed.start);
        if size >= TRIAL && self.pages.load(Ordering::Relaxed) == UNKNOWN {
            self.try_huge_pages();
        }
        let is_surely_thin = (zeroed && size >= THIN) || size >= self.half.load(Ordering::Relaxed);
        // Where most of it has memory, pages are what they are.
        let gets_pages = placed.backed < placed.len / 2 || size >= SPARSE;
        if is_surely_thin || (zeroed && size >= MAYBE_THIN && gets_pages) {
            self.make_thin(start, bytes(placed.len), is_surely_thin);
        }
        if zeroed {
            self.clear(arena, placed, size);
        }
        self.count(placed);
        start
    }

    fn count(&self, placed: Placed) {
        let counters = &self.counters;
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.granules.fetch_add(u64::from(placed.len), Ordering::Relaxed);
        counters.reused.fetch_add(u64::from(placed.backed), Ordering::Relaxed);
    }

    fn place(&self, arena: &Arena<GRANULE>, len: u32, align: u32, phase: u32) -> Option<Placed> {
        let placed = arena.place(len, align, phase, |start, length| self.advise(start, length))?;
        self.counters.most_live.fetch_max(self.held().live, Ordering::Relaxed);
        Some(placed)
    }

    /// For what becomes writable.
    fn advise(&self, start: *mut u8, length: usize) {
        if self.nodes() > 1 {
            let node = self.each().position(|arena| arena.contains(start)).unwrap_or(0);
            (self.topology.prefer)(start, length, node);
        }
        match self.pages.load(Ordering::Relaxed) {
            HUGE_PAGES => sys::advise_huge(start, length, true),
            SMALL_PAGES => sys::advise_huge(start, length, false),
            _ => {}
        }
    }

    /// Addresses are scarce from now on. On several nodes the arenas stay as they are.
    pub fn tighten(&self, most: usize) {
        let _begun = self.begun.lock();
        if self.is_absent() || self.nodes() > 1 {
            return;
        }
        self.trim(u32::MAX);
        self.arenas[0].tighten(most);
        self.size.store(self.arenas[0].size(), Ordering::Release);
    }

    /// Does what the first buffers would do: later it may not be allowed.
    pub fn settle(&self) {
        self.sparse.stop();
        if self.begin() && self.pages.load(Ordering::Relaxed) == UNKNOWN {
            self.try_huge_pages();
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
        for arena in &self.arenas {
            arena.with_writable(|start, length| {
                self.pages.store(if wanted { HUGE_PAGES } else { SMALL_PAGES }, Ordering::Relaxed);
                if length > 0 {
                    sys::advise_huge(start, length, wanted);
                }
            });
        }
    }

    #[must_use]
    pub fn has_huge_pages(&self) -> bool {
        self.pages.load(Ordering::Relaxed) == HUGE_PAGES
    }

    /// Small pages for one buffer, if it is sparse as far as anybody can know.
    fn make_thin(&self, start: *mut u8, length: usize, is_surely: bool) {
        if self.has_huge_pages() && self.sparse.begin(start, length, is_surely) {
            sys::advise_huge(start, length, false);
        }
    }

    /// The buffer is freed: what comes there next is like all others again.
    fn end_thin(&self, start: *mut u8, length: usize) {
        if self.sparse.end(start, length) {
            sys::keep_errno(|| sys::advise_huge(start, length, self.has_huge_pages()));
        }
    }

    /// Makes a buffer zero: the parts that have memory.
    fn clear(&self, arena: &Arena<GRANULE>, placed: Placed, size: usize) {
        let end = placed.start + placed.len;
        let mut at = placed.start;
        let run = |at| arena.space().as_ref().and_then(|space| space.backed_run(at, end));
        if placed.backed == 0 {
            return;
        }
        while let Some((from, to)) = run(at) {
            let start = arena.address(from);
            let length = bytes(to - from).min(size.saturating_sub(bytes(from - placed.start)));
            let dropped = size >= SPARSE && {
                self.pinned.let_go(start as usize, bytes(to - from));
                sys::discard(start, bytes(to - from))
            };
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
        self.of(block).usable(block)
    }

    /// Takes a buffer back. False: no buffer begins there.
    #[must_use]
    pub fn free(&self, block: *mut u8) -> bool {
        let arena = self.of(block);
        let Some(granule) = arena.unit(block) else { return false };
        if (!self.sparse.is_empty() || !self.pinned.is_empty())
            && let Some(length) = self.usable(block)
        {
            if self.pinned.holds(block as usize, length) {
                return true;
            }
            self.end_thin(block, length);
        }
        let freed = arena.space().as_mut().and_then(|space| space.free(granule, true));
        if freed.is_some() {
            self.counters.frees.fetch_add(1, Ordering::Relaxed);
            bell::ring();
        }
        freed.is_some()
    }

    /// Changes a buffer's size. Null: it stays as it was. `None`: no buffer begins there.
    pub fn reallocate(&self, block: *mut u8, size: usize) -> Option<*mut u8> {
        let arena = self.of(block);
        let granule = arena.unit(block)?;
        let old = arena.space().as_ref()?.length(granule)?;
        let Some(len) = granules(size) else { return Some(std::ptr::null_mut()) };
        if len == old {
            return Some(block);
        }
        if len < old {
            // What the driver uses stays whole.
            if !self.pinned.is_used(block as usize + bytes(len), bytes(old - len)) {
                arena.space().as_mut()?.shrink(granule, len);
                bell::ring();
            }
            return Some(block);
        }
        Some(match arena.grow(granule, len, |start, length| self.advise(start, length)) {
            Some(Some(part)) => {
                self.count(part);
                block
            }
            Some(None) => std::ptr::null_mut(),
            None => self.move_to_larger(arena, granule, old, len),
        })
    }

    /// The new place is on the same node.
    fn move_to_larger(&self, arena: &Arena<GRANULE>, granule: u32, old: u32, len: u32) -> *mut u8 {
        // Pages move as whole entries of the kernel's tables where both places have the same phase.
        let unit = (HUGE / GRANULE) as u32;
        let Some(placed) = self.place(arena, len, unit, granule % unit) else { return std::ptr::null_mut() };
        self.count(placed);
        let (from, to) = (arena.address(granule), arena.address(placed.start));
        self.end_thin(from, bytes(old));
        let is_held = self.pinned.holds(from as usize, bytes(old));
        self.pinned.let_go(from as usize, bytes(old));
        // What comes to the new place was kept there, maybe with a registration.
        self.pinned.let_go(to as usize, bytes(len));
        let can_move = !is_held && bytes(old) >= MOVE;
        let moved = if can_move { move_all(from, to, bytes(old)) } else { 0 };
        if moved < bytes(old) {
            // `move_all` moves whole parts from the front.
            // SAFETY: both buffers are ours, at least this long, and do not overlap.
            unsafe { to.add(moved).copy_from_nonoverlapping(from.add(moved), bytes(old) - moved) };
        }
        self.counters.moved.fetch_add(moved as u64, Ordering::Relaxed);
        self.counters.copied.fetch_add((bytes(old) - moved) as u64, Ordering::Relaxed);
        if is_held {
            return to;
        }
        let gone = (moved / GRANULE) as u32;
        if let Some(space) = arena.space().as_mut() {
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
        let mut left = most;
        let mut given = 0;
        for arena in self.each() {
            let now = arena.trim_after(left, |start, length| self.pinned.let_go(start as usize, length));
            left -= (now / GRANULE as u64) as u32;
            given += now;
        }
        self.counters.given_back.fetch_add(given, Ordering::Relaxed);
        given
    }

    #[must_use]
    pub fn held(&self) -> Held {
        let add = |sum: Held, of: Held| Held { live: sum.live + of.live, kept: sum.kept + of.kept };
        self.each().map(Arena::held).fold(Held::default(), add)
    }

    /// Granules that nobody needed since the last call.
    pub fn low_water(&self) -> u32 {
        self.each().map(Arena::low_water).sum()
    }

    /// Says what is wrong with the tables; for tests.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        self.each().find_map(Arena::fault)
    }

    /// Before a fork: nobody is in the middle of a change.
    pub fn before_fork(&self) {
        self.begun.acquire();
        self.pinned.before_fork();
        self.arenas.iter().for_each(Arena::before_fork);
    }

    /// After it, in the parent.
    ///
    /// # Safety
    /// [`Large::before_fork`] was called by this thread.
    pub unsafe fn after_fork(&self) {
        // SAFETY: as the caller says.
        unsafe {
            self.arenas.iter().for_each(|arena| arena.after_fork());
            self.pinned.after_fork(false);
            self.begun.release();
        }
    }

    /// After it, in the child: what other threads were giving back is free again.
    ///
    /// # Safety
    /// [`Large::before_fork`] was called by this thread, in the parent.
    pub unsafe fn after_fork_in_child(&self) {
        // SAFETY: as the caller says.
        let kept: u32 = unsafe { self.arenas.iter().map(|arena| arena.after_fork_in_child()).sum() };
        // SAFETY: as above.
        unsafe {
            self.pinned.after_fork(true);
            self.begun.release();
        }
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

#[cfg(test)]
mod tests;
