//! Buffers from 1 MiB: an arena of reserved addresses whose freed memory is kept for the next buffer.
//!
//! ```text
//!   slots   buffers of up to 8 MiB between two owners: no lock
//!   dense   guesses if the next buffer will be filled: only then it gets huge pages (pages)
//!   marks   the lengths of buffers, and the granules that were moved or have huge pages
//!   moves   a buffer that has no room to grow
//! ```
//!
//! * `allocate` takes the lowest addresses that fit. If they still have memory, no system call is needed.
//! * `free` gives the addresses back to the space and returns: the memory stays until the helper gives it back.
//! * `reallocate` grows in place if it can; otherwise the kernel moves the pages (`mremap`), without a copy.
//! * Zeroed buffers: only pages that have memory are cleared.
//! * Each NUMA node has an arena, so a buffer goes back to the node of its memory. With one node no call asks for it.
//! * Memory that a driver has registered (`pinned`) is not given back, moved or dropped while it is in use.

mod dense;
mod forks;
mod marks;
mod moves;
mod pages;
mod slots;
mod zeroed;

use crate::arena::{Arena, Held};
use crate::budget::Budget;
use crate::helper_wakeup;
use crate::lock::Lock;
use crate::numa::{self, Topology};
use crate::pinned::Pinned;
use crate::space::Placed;
use crate::sys;
use crate::units::{GRANULE, LARGE, MOST_ALIGNMENT, granules};
use dense::Dense;
use marks::{Lengths, Marks};
use pages::UNKNOWN;
use slots::{Entry, Slots};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Addresses of all arenas: more than any program has, and a quarter of all that exist.
const ADDRESSES: usize = 32 << 40;
/// The most bytes that become writable at once.
const STEP: usize = 64 << 20;
/// Kept memory goes back before fresh memory is taken, if both together would exceed the program's peak by more than
/// this part and by more than these bytes.
const SPARE_PART: u64 = 12;
const SPARE: u64 = 48 << 20;

#[derive(Debug)]
pub struct Large {
    /// One for each node, one after the other: `[base, base + nodes * size)`.
    arenas: [Arena<GRANULE>; numa::MOST],
    base: AtomicUsize,
    size: AtomicUsize,
    nodes: AtomicUsize,
    topology: Topology,
    begun: Lock<()>,
    pub pinned: Pinned,
    budget: &'static Budget,
    lengths: [Lengths; numa::MOST],
    slots: Slots,
    dense: Dense,
    /// Granules that get huge pages, and granules to which pages were moved.
    thick: Marks,
    moved: Marks,
    /// Granules that the program has.
    live: AtomicU64,
    pages: AtomicU32,
    /// True in a forked child that shares kept memory with its parent: a write to that memory would copy pages whose
    /// bytes are not needed.
    inherited: AtomicBool,
    /// Half of the machine's memory.
    half: AtomicUsize,
    pub counters: Counters,
}

/// Sums since the process began.
#[derive(Debug, Default)]
pub struct Counters {
    pub allocations: AtomicU64,
    pub frees: AtomicU64,
    /// Granules that were handed out, and those of them that had memory.
    pub granules: AtomicU64,
    pub reused: AtomicU64,
    /// Bytes that the kernel moved, and bytes that were copied.
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

    /// For a machine with this topology.
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
            lengths: [const { Lengths::new() }; numa::MOST],
            slots: Slots::new(),
            dense: Dense::new(),
            thick: Marks::new(),
            moved: Marks::new(),
            live: AtomicU64::new(0),
            pages: AtomicU32::new(UNKNOWN),
            inherited: AtomicBool::new(false),
            half: AtomicUsize::new(usize::MAX),
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

    /// True if an address lies in an arena.
    #[inline]
    #[must_use]
    pub fn contains(&self, block: *const u8) -> bool {
        (block as usize).wrapping_sub(self.base.load(Ordering::Relaxed)) < self.size.load(Ordering::Relaxed)
    }

    /// True if a buffer was ever near an address. Where addresses are scarce, others map pages in unused parts of the
    /// arena.
    #[must_use]
    pub fn reaches(&self, address: *const u8) -> bool {
        let node = self.of(address);
        let offset = self.arenas[node].offset(address);
        self.contains(address) && self.lengths[node].is_reached((offset / GRANULE) as u32)
    }

    /// True if no addresses could be reserved.
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

    /// The arena for a new buffer: that of the node on which this thread runs.
    fn here(&self) -> usize {
        match self.nodes() {
            1 => 0,
            nodes => (self.topology.here)() % nodes,
        }
    }

    /// The arena of a buffer.
    fn of(&self, block: *const u8) -> usize {
        match self.nodes() {
            1 => 0,
            nodes => {
                let offset = (block as usize).wrapping_sub(self.base.load(Ordering::Relaxed));
                let each = self.size.load(Ordering::Relaxed) / nodes;
                (offset / each.max(1)).min(nodes - 1)
            }
        }
    }

    /// Granules before an address, over all arenas.
    fn offset(&self, block: *const u8) -> u32 {
        ((block as usize).wrapping_sub(self.base.load(Ordering::Relaxed)) / GRANULE) as u32
    }

    fn units(&self) -> u32 {
        (self.size.load(Ordering::Relaxed) / GRANULE) as u32
    }

    /// Reserves the addresses, or as many as possible.
    fn begin(&self) -> bool {
        let _begun = self.begun.lock();
        if !self.is_absent() {
            return true;
        }
        self.half.store(sys::memory() / 2, Ordering::Relaxed);
        let nodes = (self.topology.nodes)().clamp(1, numa::MOST);
        let size = ADDRESSES / nodes / MOST_ALIGNMENT * MOST_ALIGNMENT;
        if nodes > 1
            && let Some(start) = sys::reserve(size * nodes, MOST_ALIGNMENT)
        {
            // SAFETY: `node < nodes`, and `start` has `size * nodes` reserved bytes.
            let at = |node: usize| unsafe { start.add(node * size) };
            let begins = |node: usize| {
                self.arenas[node].begin_at(at(node), size) && self.lengths[node].begin(size / GRANULE)
            };
            if (0..nodes).all(begins) {
                self.nodes.store(nodes, Ordering::Relaxed);
                self.base.store(start as usize, Ordering::Relaxed);
                self.size.store(size * nodes, Ordering::Release);
                return true;
            }
            return false;
        }
        let first = &self.arenas[0];
        if !first.begin(ADDRESSES, MOST_ALIGNMENT) || !self.lengths[0].begin(first.size() / GRANULE) {
            return false;
        }
        self.base.store(first.address(0) as usize, Ordering::Relaxed);
        self.size.store(first.size(), Ordering::Release);
        true
    }

    /// Allocates a buffer. Null if there is no memory, no room, or no budget.
    pub fn allocate(&self, size: usize, alignment: usize, zeroed: bool) -> *mut u8 {
        let (Some(len), Ok(align)) = (granules(size.max(1)), u32::try_from(alignment / GRANULE)) else {
            return std::ptr::null_mut();
        };
        if self.is_absent() && !self.begin() {
            return std::ptr::null_mut();
        }
        if self.inherited.load(Ordering::Relaxed) && self.inherited.swap(false, Ordering::Relaxed) {
            self.trim(u32::MAX);
        }
        let node = self.here();
        let arena = &self.arenas[node];
        let len = if align > 1 { len } else { slots::rounded(len) };
        if align <= 1
            && let Some(found) = self.slots.take(len, node)
        {
            let start = arena.address(found.start);
            if zeroed {
                self.clear_part(start, size);
            }
            self.lengths[node].set(found.start, found.len);
            self.has_more(found.len);
            return start;
        }
        let Some(placed) = self.place(node, len, align.max(1), 0) else { return std::ptr::null_mut() };
        let start = arena.address(placed.start);
        if placed.backed < placed.len / 2 {
            self.choose_pages(start, bytes(placed.len));
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

    fn has_more(&self, len: u32) {
        let live = self.live.fetch_add(u64::from(len), Ordering::Relaxed) + u64::from(len);
        let most = &self.counters.most_live;
        if live * GRANULE as u64 > most.load(Ordering::Relaxed) {
            most.fetch_max(live * GRANULE as u64, Ordering::Relaxed);
        }
    }

    fn place(&self, node: usize, len: u32, align: u32, phase: u32) -> Option<Placed> {
        let arena = &self.arenas[node];
        let placed = arena.place(len, align, phase, |start, length| self.advise(start, length))?;
        if !self.lengths[node].reach(placed.start) {
            if let Some(space) = arena.space().as_mut() {
                space.free(placed.start, true);
            }
            return None;
        }
        self.lengths[node].set(placed.start, placed.len);
        self.has_more(placed.len);
        // Smaller buffers come and go too often, so their kept memory is left to the decay.
        if placed.len > slots::MOST && placed.backed < placed.len {
            self.make_room(u64::from(placed.len - placed.backed));
        }
        Some(placed)
    }

    /// Called when fresh memory is about to be touched: gives back kept memory, so that the process holds little more
    /// than the program's peak.
    fn make_room(&self, fresh: u64) {
        let Held { live, kept } = self.held();
        let most = self.counters.most_live.load(Ordering::Relaxed).max(live);
        let (most, kept_least) = (most + (most / SPARE_PART).max(SPARE), fresh * GRANULE as u64);
        let over = (live + kept).saturating_sub(most).min(kept).min(kept_least);
        if over > 0 {
            self.trim_kept((over / GRANULE as u64) as u32 + 1);
        }
    }

    /// Notes that addresses are scarce from now on. With several nodes the arenas stay as they are.
    pub fn tighten(&self) {
        let _begun = self.begun.lock();
        if self.is_absent() || self.nodes() > 1 {
            return;
        }
        self.slots.close();
        self.trim(u32::MAX);
        self.arenas[0].tighten();
        self.lengths[0].tighten();
        [&self.thick, &self.moved].into_iter().for_each(Marks::tighten);
    }

    /// Does now what the first buffers would do, and stops rare system calls, because both may be forbidden later.
    pub fn settle(&self) {
        self.dense.stop();
        self.begin();
    }

    /// The length of the buffer at this address; `None` if no buffer begins there.
    #[must_use]
    pub fn usable(&self, block: *const u8) -> Option<usize> {
        let node = self.of(block);
        let len = self.lengths[node].get(self.arenas[node].unit(block)?);
        (len > 0).then(|| bytes(len))
    }

    /// Frees a buffer. False if no buffer begins there.
    #[must_use]
    pub fn free(&self, block: *mut u8) -> bool {
        let node = self.of(block);
        let Some(start) = self.arenas[node].unit(block) else { return false };
        if !self.pinned.is_empty()
            && let Some(length) = self.usable(block)
            && self.pinned.holds(block as usize, length)
        {
            return true;
        }
        let len = self.lengths[node].take(start);
        if len == 0 {
            return false;
        }
        self.live.fetch_sub(u64::from(len), Ordering::Relaxed);
        let own = Entry { start, len, arena: node };
        if let Some(out) = self.slots.put(own) {
            if out == own {
                self.counters.frees.fetch_add(1, Ordering::Relaxed);
            }
            self.release(out);
        }
        helper_wakeup::signal();
        true
    }

    /// Gives a buffer that no slot keeps back to the space.
    fn release(&self, entry: Entry) {
        let arena = &self.arenas[entry.arena];
        self.dense.ends(arena.address(entry.start), bytes(entry.len));
        if let Some(space) = arena.space().as_mut() {
            space.free(entry.start, true);
        }
    }

    /// Changes a buffer's size. Null if that failed: then the buffer is as before. `None` if no buffer begins there.
    pub fn reallocate(&self, block: *mut u8, size: usize) -> Option<*mut u8> {
        let node = self.of(block);
        let arena = &self.arenas[node];
        let granule = arena.unit(block)?;
        let old = Some(self.lengths[node].get(granule)).filter(|len| *len > 0)?;
        let Some(len) = granules(size).map(slots::rounded) else { return Some(std::ptr::null_mut()) };
        if len == old {
            return Some(block);
        }
        if len < old {
            // A part that the driver uses must not go.
            if !self.pinned.is_used(block as usize + bytes(len), bytes(old - len)) {
                let shorter = arena.space().as_mut().and_then(|space| space.shrink(granule, len));
                if shorter.is_some() {
                    self.lengths[node].set(granule, len);
                    self.live.fetch_sub(u64::from(old - len), Ordering::Relaxed);
                }
                helper_wakeup::signal();
            }
            return Some(block);
        }
        Some(match arena.grow(granule, len, |start, length| self.advise(start, length)) {
            Some(Some(part)) => {
                self.count(part);
                self.lengths[node].set(granule, len);
                self.has_more(part.len);
                block
            }
            Some(None) => std::ptr::null_mut(),
            None => self.move_to_larger(node, granule, old, len),
        })
    }

    /// Gives back kept memory, at most so many granules. Returns the bytes.
    pub fn trim(&self, most: u32) -> u64 {
        self.slots.sweep(true, |entry| self.release(entry));
        self.trim_kept(most)
    }

    fn trim_kept(&self, most: u32) -> u64 {
        let mut left = most;
        let mut given = 0;
        let gone = |start: *mut u8, length: usize| {
            let from = self.offset(start);
            if self.moved.clear(from, from + (length / GRANULE) as u32) {
                self.begin_anew(start, length);
            }
        };
        for arena in self.each() {
            let before = |start: *mut u8, length| self.pinned.let_go(start as usize, length);
            let now = arena.trim_around(left, before, gone);
            left -= (now / GRANULE as u64) as u32;
            given += now;
        }
        self.counters.given_back.fetch_add(given, Ordering::Relaxed);
        given
    }

    #[must_use]
    pub fn held(&self) -> Held {
        let live = self.live.load(Ordering::Relaxed) * GRANULE as u64;
        let all: u64 = self.each().map(Arena::held).map(|held| held.live + held.kept).sum();
        Held { live, kept: all.saturating_sub(live) }
    }

    /// Buffers that were handed out and freed, granules that were handed out, and those of them that had memory.
    #[must_use]
    pub fn figures(&self) -> (u64, u64, u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (allocations, frees, granules) = self.slots.figures();
        let counters = &self.counters;
        (
            allocations + read(&counters.allocations),
            frees + read(&counters.frees),
            granules + read(&counters.granules),
            granules + read(&counters.reused),
        )
    }

    /// Called at each tick. Returns the granules that no request needed since the last one.
    pub fn low_water(&self) -> u32 {
        self.slots.sweep(false, |entry| self.release(entry));
        self.each().map(Arena::low_water).sum()
    }

    /// Describes an error in the tables; for tests.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        self.each().find_map(Arena::fault)
    }
}

/// True if a request goes to the arena.
#[inline]
#[must_use]
pub fn is_large(size: usize, alignment: usize) -> bool {
    size >= LARGE || alignment >= GRANULE
}

#[cfg(test)]
mod tests;
