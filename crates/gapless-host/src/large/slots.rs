//! Freed buffers of 1 to 8 MiB on their way to the next owner, without a lock or a system call.
//!
//! A thread puts a buffer into a slot of its shelf and takes one from there, with one atomic exchange each. The space
//! counts such a buffer as handed out. The helper takes out buffers that stayed for a tick, and they become kept
//! memory. If memory is short, a request takes all of them out.

use crate::local;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The largest buffer, in granules: 8 MiB.
pub const MOST: u32 = 128;
const SHELVES: usize = 8;
const SLOTS: usize = 16;
/// A shelf has at most this many granules: 32 MiB.
const SHELF_MOST: u32 = 512;

/// A buffer in a slot: a bit that there is one (1 bit), the tick (17), the arena (4), the length (10), the start (32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub start: u32,
    pub len: u32,
    pub arena: usize,
}

const IS_FILLED: u64 = 1 << 63;
const TICKS: u32 = (1 << 17) - 1;

impl Entry {
    fn pack(self, tick: u32) -> u64 {
        let (tick, arena) = (u64::from(tick & TICKS) << 46, (self.arena as u64) << 42);
        IS_FILLED | tick | arena | u64::from(self.len) << 32 | u64::from(self.start)
    }

    fn unpack(word: u64) -> Option<Entry> {
        let (start, len) = (word as u32, (word >> 32) as u32 & 1023);
        (word != 0).then_some(Entry { start, len, arena: (word >> 42) as usize & 15 })
    }
}

fn tick_of(word: u64) -> u32 {
    (word >> 46) as u32 & TICKS
}

/// The shelf of all threads whose numbers fall together, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shelf {
    slots: [AtomicU64; SLOTS],
    /// Granules in the slots.
    held: AtomicU32,
    /// The slot that is emptied next when all are filled.
    hand: AtomicU32,
    /// Buffers that were handed out from here and freed here, and granules that were handed out.
    allocations: AtomicU64,
    frees: AtomicU64,
    granules: AtomicU64,
}

#[derive(Debug)]
pub struct Slots {
    shelves: [Shelf; SHELVES],
    tick: AtomicU32,
    /// The granules of a shelf; 0 if memory or addresses are scarce and no buffer may wait here.
    most: AtomicU32,
}

/// The length of a buffer for a request of `len` granules: eight steps for each doubling, so that others fit too.
#[must_use]
pub fn rounded(len: u32) -> u32 {
    if !(16..=MOST).contains(&len) {
        return len;
    }
    len.next_multiple_of(1 << (len.ilog2() - 3))
}

impl Slots {
    #[must_use]
    pub const fn new() -> Slots {
        Slots {
            shelves: [const {
                Shelf {
                    slots: [const { AtomicU64::new(0) }; SLOTS],
                    held: AtomicU32::new(0),
                    hand: AtomicU32::new(0),
                    allocations: AtomicU64::new(0),
                    frees: AtomicU64::new(0),
                    granules: AtomicU64::new(0),
                }
            }; SHELVES],
            tick: AtomicU32::new(0),
            most: AtomicU32::new(SHELF_MOST),
        }
    }

    /// Lets no buffer wait here any more.
    pub fn close(&self) {
        self.most.store(0, Ordering::Relaxed);
    }

    fn mine(&self) -> &Shelf {
        // The upper half of this address differs between threads, because it lies above their stacks.
        let mixed = (local::get() as u64 >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shelves[(mixed >> 61) as usize]
    }

    /// Takes a buffer of at least `len` granules and less than twice as many: the shortest of the shelf.
    pub fn take(&self, len: u32, arena: usize) -> Option<Entry> {
        let shelf = self.mine();
        if shelf.held.load(Ordering::Relaxed) < len {
            return None;
        }
        let mut best: Option<(usize, u64, u32)> = None;
        for (at, slot) in shelf.slots.iter().enumerate() {
            let word = slot.load(Ordering::Relaxed);
            let Some(found) = Entry::unpack(word) else { continue };
            let fits = found.len >= len && found.len < 2 * len && found.arena == arena;
            if fits && best.is_none_or(|(_, _, length)| found.len < length) {
                best = Some((at, word, found.len));
                if found.len == len {
                    break;
                }
            }
        }
        let (at, word, found) = best?;
        // Acquire, so that this thread sees what the last owner's thread wrote.
        shelf.slots[at].compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        shelf.held.fetch_sub(found, Ordering::Relaxed);
        shelf.allocations.fetch_add(1, Ordering::Relaxed);
        shelf.granules.fetch_add(u64::from(found), Ordering::Relaxed);
        Entry::unpack(word)
    }

    /// Puts a freed buffer here. Returns a buffer that must go back to the space: this one, or one that it replaced.
    pub fn put(&self, entry: Entry) -> Option<Entry> {
        let shelf = self.mine();
        let is_full = shelf.held.load(Ordering::Relaxed) + entry.len > self.most.load(Ordering::Relaxed);
        if entry.len > MOST || is_full {
            return Some(entry);
        }
        shelf.frees.fetch_add(1, Ordering::Relaxed);
        shelf.held.fetch_add(entry.len, Ordering::Relaxed);
        let word = entry.pack(self.tick.load(Ordering::Relaxed));
        for slot in &shelf.slots {
            let is_empty = slot.load(Ordering::Relaxed) == 0;
            if is_empty && slot.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed).is_ok() {
                return None;
            }
        }
        let at = shelf.hand.fetch_add(1, Ordering::Relaxed) as usize % SLOTS;
        let old = Entry::unpack(shelf.slots[at].swap(word, Ordering::AcqRel))?;
        shelf.held.fetch_sub(old.len, Ordering::Relaxed);
        Some(old)
    }

    /// Called at each tick: gives out each buffer that stayed since the tick before; with `all`, every buffer.
    pub fn sweep(&self, all: bool, mut give: impl FnMut(Entry)) {
        let now = if all { 0 } else { self.tick.fetch_add(1, Ordering::Relaxed) };
        for shelf in &self.shelves {
            if shelf.held.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for slot in &shelf.slots {
                let word = slot.load(Ordering::Relaxed);
                let is_old = tick_of(word) != now & TICKS;
                if word != 0
                    && (all || is_old)
                    && slot.compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
                    && let Some(entry) = Entry::unpack(word)
                {
                    shelf.held.fetch_sub(entry.len, Ordering::Relaxed);
                    give(entry);
                }
            }
        }
    }

    /// Buffers that were handed out from here and freed here, and granules that were handed out.
    #[must_use]
    pub fn figures(&self) -> (u64, u64, u64) {
        let sum = |of: fn(&Shelf) -> &AtomicU64| {
            self.shelves.iter().map(|shelf| of(shelf).load(Ordering::Relaxed)).sum()
        };
        (sum(|shelf| &shelf.allocations), sum(|shelf| &shelf.frees), sum(|shelf| &shelf.granules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_as_it_went_in() {
        for (start, len, arena, tick) in [(0, 1, 0, 0), (u32::MAX, MOST, 7, TICKS), (77, 16, 3, TICKS + 5)] {
            let entry = Entry { start, len, arena };
            let word = entry.pack(tick);
            assert_eq!((Entry::unpack(word), tick_of(word)), (Some(entry), tick & TICKS));
        }
        assert_eq!(Entry::unpack(0), None);
    }

    #[test]
    fn lengths_are_rounded_by_an_eighth_at_most() {
        for len in 1..=2 * MOST {
            let to = rounded(len);
            assert!(to >= len && (to - len) * 8 <= len, "{len}: {to}");
            assert_eq!(rounded(to), to);
        }
    }

    #[test]
    fn the_shortest_that_fits_is_taken_and_what_stays_for_a_tick_is_swept() {
        let slots = Slots::new();
        let entry = |start: u32, len: u32| Entry { start, len, arena: 0 };
        for (start, len) in [(0, 40), (100, 20), (200, 24)] {
            assert_eq!(slots.put(entry(start, len)), None);
        }
        assert_eq!(slots.take(16, 1), None, "of another node");
        assert_eq!(slots.take(21, 0), Some(entry(200, 24)));
        assert_eq!(slots.take(21, 0), Some(entry(0, 40)));
        assert_eq!(slots.take(21, 0), None, "too short");
        assert_eq!(slots.take(10, 0), None, "twice as long");
        let mut swept = Vec::new();
        slots.sweep(false, |found| swept.push(found));
        assert!(swept.is_empty(), "it came in this tick");
        slots.sweep(false, |found| swept.push(found));
        assert_eq!(swept, [entry(100, 20)]);
        assert_eq!(slots.figures(), (2, 3, 64));
    }

    #[test]
    fn a_full_shelf_gives_its_oldest_and_a_closed_one_everything() {
        let slots = Slots::new();
        let entry = |start: u32| Entry { start, len: 16, arena: 0 };
        let given: Vec<_> = (0..SLOTS as u32 + 2).map(|at| slots.put(entry(at * 16))).collect();
        assert!(given[..SLOTS].iter().all(Option::is_none));
        assert_eq!(given[SLOTS..], [Some(entry(0)), Some(entry(16))]);
        assert_eq!(
            slots.put(Entry { start: 9000, len: MOST + 1, arena: 0 }).map(|found| found.start),
            Some(9000)
        );
        slots.close();
        assert_eq!(slots.put(entry(9000)), Some(entry(9000)));
    }
}
