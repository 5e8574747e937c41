//! Memory for sampled blocks of at most 32 KiB, at addresses of their own, so that one comparison recognises them.
//!
//! The area is cut into regions of 64 KiB; a region has slots of one size. A free slot holds the address of the next.
//! The caller holds the recorder's lock. Regions are never given back, because samples are few.

use crate::sampler::Kind;
use crate::sys;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

const AREA: usize = 4 << 30;
const REGION: usize = 64 << 10;
/// The largest block.
pub const MOST: usize = Kind::SMALL_MOST;
/// Steps of 16 bytes up to 128, then four sizes for each power of two.
const CLASSES: usize = 40;

/// The first address of the area; 0 if there is none.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// The class of each region, plus one. Set before a slot of it is handed out, and never changed.
static REGIONS: [AtomicU8; AREA / REGION] = [const { AtomicU8::new(0) }; AREA / REGION];

/// True if an address lies in the area.
#[inline(always)]
pub fn contains(block: *const u8) -> bool {
    // Without an area the difference is the address itself. Only null lies in the lowest 4 GiB, and the second
    // comparison excludes it.
    let base = BASE.load(Ordering::Relaxed);
    (block as usize).wrapping_sub(base) < AREA && base != 0
}

/// The class that serves `size` bytes.
fn class_of(size: usize) -> usize {
    if size <= 128 {
        return size.max(1).div_ceil(16) - 1;
    }
    let power = (size - 1).ilog2() as usize;
    8 + (power - 7) * 4 + ((size - 1) >> (power - 2) & 3)
}

fn size_of_class(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * 16;
    }
    let power = (class - 8) / 4 + 7;
    (1 << power) + ((class - 8) % 4 + 1) * (1 << (power - 2))
}

fn class_at(block: *const u8) -> Option<usize> {
    let offset = (block as usize).wrapping_sub(BASE.load(Ordering::Relaxed));
    let class = REGIONS.get(offset / REGION)?.load(Ordering::Acquire).checked_sub(1)?;
    (offset % REGION).is_multiple_of(size_of_class(usize::from(class))).then_some(usize::from(class))
}

/// The bytes of a slot; `None` if no slot begins there.
pub fn usable(block: *const u8) -> Option<usize> {
    class_at(block).map(size_of_class)
}

#[derive(Debug)]
pub struct Slots {
    used: usize,
    free: [usize; CLASSES],
}

impl Slots {
    pub const fn new() -> Slots {
        Slots { used: 0, free: [0; CLASSES] }
    }

    /// Takes a slot; `None` if the block is too large or there is no room.
    pub fn take(&mut self, size: usize, alignment: usize) -> Option<*mut u8> {
        // A slot whose size is a power of two lies at a multiple of its size.
        let wanted = if alignment <= 16 { size } else { size.max(alignment).next_power_of_two() };
        if wanted > MOST || alignment > 4096 {
            return None;
        }
        let class = class_of(wanted);
        if self.free[class] == 0 {
            self.add_region(class)?;
        }
        let slot = self.free[class];
        // SAFETY: a free slot of ours, which holds the address of the next.
        self.free[class] = unsafe { (slot as *const usize).read() };
        Some(slot as *mut u8)
    }

    fn add_region(&mut self, class: usize) -> Option<()> {
        if BASE.load(Ordering::Relaxed) == 0 {
            let start = sys::reserve(AREA, REGION)?;
            BASE.store(start as usize, Ordering::Release);
        }
        let base = BASE.load(Ordering::Relaxed);
        if self.used == AREA / REGION {
            return None;
        }
        let start = base + self.used * REGION;
        if !sys::commit(start as *mut u8, REGION) {
            return None;
        }
        REGIONS[self.used].store(class as u8 + 1, Ordering::Release);
        self.used += 1;
        let size = size_of_class(class);
        for at in (0..REGION / size).rev() {
            self.push(start + at * size, class);
        }
        Some(())
    }

    fn push(&mut self, slot: usize, class: usize) {
        // SAFETY: a slot of ours that is not handed out, at a multiple of 16.
        unsafe { (slot as *mut usize).write(self.free[class]) };
        self.free[class] = slot;
    }

    /// Frees a slot. False if no slot begins there.
    pub fn give(&mut self, block: *mut u8) -> bool {
        let class = class_at(block);
        if let Some(class) = class {
            self.push(block as usize, class);
        }
        class.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for size in 0..=MOST {
            let class = class_of(size);
            assert!(class < CLASSES && size_of_class(class) >= size, "{size}");
            assert!(class == 0 || size_of_class(class - 1) < size, "{size}");
        }
        assert_eq!(size_of_class(CLASSES - 1), MOST);
    }

    #[test]
    fn slots_are_aligned_apart_from_each_other_and_used_again() {
        let mut slots = Slots::new();
        let mut held: Vec<(usize, usize)> = Vec::new();
        let mut seed = 3u64;
        for round in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let size = (seed >> 40) as usize % (1 << (seed >> 60));
            let alignment = 16 << ((seed >> 33) % 9);
            let block = slots.take(size, alignment).expect("the area is large");
            assert!(contains(block) && (block as usize).is_multiple_of(alignment));
            assert!(usable(block).is_some_and(|usable| usable >= size));
            held.push((block as usize, size));
            if round % 3 == 0 {
                let (block, _) = held.swap_remove((seed >> 20) as usize % held.len());
                assert!(slots.give(block as *mut u8));
            }
        }
        held.sort_unstable();
        assert!(held.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(slots.take(MOST + 1, 16).is_none() && slots.take(8, 8192).is_none());
        assert!(!slots.give((held[0].0 + 8) as *mut u8), "no slot begins there");
    }
}
