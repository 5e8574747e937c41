//! The card that an address belongs to, found without a lock.
//!
//! A free may come from any thread, with any card current. Asking card after card would mean to wait for the lock of
//! the wrong card, whose holder may itself wait for work of this thread's card. So each address range of a card's
//! allocator is noted here by its granules of 2 MiB, which no two cards share.
//!
//! An address has 43 bits of granule: four levels of 2,048 places. A place is empty, or has the card of all granules
//! below it, or the next level. Levels are made when they are needed and never freed, so readers need no lock.

use crate::locks::Lock;
use std::sync::atomic::{AtomicUsize, Ordering};

const GRANULE_BITS: u32 = 21;
const LEVEL_BITS: u32 = 11;
const PLACES: usize = 1 << LEVEL_BITS;
const LEVELS: u32 = 4;

/// 0: empty. Odd: a card's number, doubled, plus one. Otherwise the address of the next level.
struct Level([AtomicUsize; PLACES]);

static TOP: Level = Level([const { AtomicUsize::new(0) }; PLACES]);
/// Held while places change.
static CHANGES: Lock<()> = Lock::new(|| ());

/// The number of granules below a place at this depth, as a power of two.
fn bits_of(depth: u32) -> u32 {
    LEVEL_BITS * (LEVELS - 1 - depth)
}

fn at(granule: u64, depth: u32) -> usize {
    (granule >> bits_of(depth)) as usize & (PLACES - 1)
}

/// The card whose allocator has this address.
#[inline]
#[must_use]
pub fn card_of(addr: u64) -> Option<i32> {
    let granule = addr >> GRANULE_BITS;
    let mut level = &TOP;
    for depth in 0..LEVELS {
        let found = level.0[at(granule, depth)].load(Ordering::Acquire);
        if found == 0 {
            return None;
        }
        if found & 1 == 1 {
            return Some((found >> 1) as i32);
        }
        // SAFETY: `split` stored this address of a level, and levels are never freed.
        level = unsafe { &*(found as *const Level) };
    }
    None
}

/// Notes that a card has these addresses.
pub(crate) fn note(addr: u64, size: u64, card: i32) {
    set(addr, size, (card.max(0) as usize) << 1 | 1);
}

/// Notes that no card has these addresses.
pub(crate) fn forget(addr: u64, size: u64) {
    set(addr, size, 0);
}

fn set(addr: u64, size: u64, value: usize) {
    let _changes = CHANGES.lock();
    let (first, end) = (addr >> GRANULE_BITS, (addr + size).div_ceil(1 << GRANULE_BITS));
    fill(&TOP, 0, 0, first, end, value);
}

/// Sets the granules from `first` to `end` of a level whose own first granule is `base`.
fn fill(level: &Level, depth: u32, base: u64, first: u64, end: u64, value: usize) {
    let bits = bits_of(depth);
    let (from, to) = ((first.max(base) - base) >> bits, (end - base).div_ceil(1 << bits).min(PLACES as u64));
    for place in from..to {
        let start = base + (place << bits);
        if first <= start && start + (1 << bits) <= end {
            // A level below this place stays for threads that still read it, but is not used again.
            level.0[place as usize].store(value, Ordering::Release);
        } else {
            fill(split(level, place as usize), depth + 1, start, first, end, value);
        }
    }
}

/// The level below a place. If there is none, it is made with the place's value everywhere.
fn split(level: &Level, place: usize) -> &'static Level {
    let found = level.0[place].load(Ordering::Acquire);
    if found != 0 && found & 1 == 0 {
        // SAFETY: the code below stored this address of a level, and levels are never freed.
        return unsafe { &*(found as *const Level) };
    }
    let made: &'static Level = Box::leak(Box::new(Level(std::array::from_fn(|_| AtomicUsize::new(found)))));
    level.0[place].store(std::ptr::from_ref(made) as usize, Ordering::Release);
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const GRANULE: u64 = 1 << GRANULE_BITS;

    #[test]
    fn random_ranges_are_told_as_a_plain_map_tells_them() {
        // Addresses near boundaries of levels, and at the usual addresses of real and simulated drivers.
        let bases = [0x3000_0000_0000_0000u64, 0x7f40_0000_0000 - 40 * GRANULE, (1 << 43) - 30 * GRANULE];
        let mut plain: BTreeMap<u64, i32> = BTreeMap::new();
        let mut seed = 9u64;
        let mut next = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % most
        };
        for _ in 0..3000 {
            let base = bases[next(3) as usize];
            let first = base / GRANULE + next(80);
            let most = if next(20) == 0 { 5000 } else { 20 };
            let count = 1 + next(most);
            let card = next(5) as i32 - 1;
            if card < 0 {
                forget(first * GRANULE, count * GRANULE);
            } else {
                note(first * GRANULE, count * GRANULE, card);
            }
            for granule in first..first + count {
                if card < 0 {
                    plain.remove(&granule);
                } else {
                    plain.insert(granule, card);
                }
            }
            for _ in 0..20 {
                let granule = base / GRANULE + next(6000);
                let inside = granule * GRANULE + next(GRANULE);
                assert_eq!(card_of(inside), plain.get(&granule).copied(), "{inside:#x}");
            }
        }
        for base in bases {
            forget(base, 6000 * GRANULE);
        }
    }

    #[test]
    fn a_range_that_is_larger_than_a_level_is_noted_at_once() {
        let (base, size) = (0x4000_0000_0000_0000u64, 1 << 44);
        note(base, size, 63);
        assert_eq!([base, base + size - 1].map(card_of), [Some(63); 2]);
        assert_eq!([base - 1, base + size].map(card_of), [None; 2]);
        forget(base + (1 << 40), GRANULE);
        assert_eq!(card_of(base + (1 << 40)), None);
        assert_eq!(card_of(base + (1 << 40) + GRANULE), Some(63));
        forget(base, size);
        assert_eq!(card_of(base + 5), None);
    }
}
