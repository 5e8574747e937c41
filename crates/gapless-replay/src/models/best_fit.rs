//! Free chunks by (size, address): the smallest that is large enough, the lowest of those. One ordered set for each power of two, and a
//! word that says which are not empty: the sets stay small, and the order over all of them is that of one set.

use std::collections::BTreeSet;

/// (size, address, chunk).
pub(super) type Free = (u64, u64, u32);

#[derive(Clone, Debug)]
pub(super) struct BestFit {
    bins: Vec<BTreeSet<Free>>,
    /// Bit b: bin b is not empty.
    filled: u64,
}

impl Default for BestFit {
    fn default() -> BestFit {
        BestFit { bins: vec![BTreeSet::new(); 64], filled: 0 }
    }
}

#[inline]
fn bin(size: u64) -> usize {
    size.max(1).ilog2() as usize
}

impl BestFit {
    #[inline]
    pub(super) fn insert(&mut self, free: Free) {
        let bin = bin(free.0);
        self.bins[bin].insert(free);
        self.filled |= 1 << bin;
    }

    #[inline]
    pub(super) fn remove(&mut self, free: Free) {
        let bin = bin(free.0);
        let found = self.bins[bin].remove(&free);
        debug_assert!(found, "{free:x?} is not free");
        if self.bins[bin].is_empty() {
            self.filled &= !(1 << bin);
        }
    }

    /// Takes the smallest chunk of at least `size` bytes out.
    #[inline]
    pub(super) fn take(&mut self, size: u64) -> Option<Free> {
        let own = bin(size);
        let mut found = None;
        if self.filled >> own & 1 == 1 {
            found = self.bins[own].range((size, 0, 0)..).next().copied();
        }
        if found.is_none() {
            let above = self.filled & (!1u64).checked_shl(own as u32).unwrap_or(0);
            if above == 0 {
                return None;
            }
            found = self.bins[above.trailing_zeros() as usize].first().copied();
        }
        let found = found?;
        self.remove(found);
        Some(found)
    }

    /// Takes everything out, by address.
    pub(super) fn drain_by_address(&mut self) -> Vec<Free> {
        let mut all: Vec<Free> = self.bins.iter_mut().flat_map(std::mem::take).collect();
        self.filled = 0;
        all.sort_unstable_by_key(|free| free.1);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_is_taken_and_the_lowest_of_those() {
        let mut index = BestFit::default();
        for free in [(768, 10, 0), (1024, 5, 1), (1024, 3, 2), (4096, 1, 3), (u64::MAX, 0, 4)] {
            index.insert(free);
        }
        assert_eq!(index.take(800), Some((1024, 3, 2)), "from the next bin");
        assert_eq!(index.take(600), Some((768, 10, 0)), "from its own bin");
        assert_eq!(index.take(600), Some((1024, 5, 1)));
        assert_eq!(index.take(4097), Some((u64::MAX, 0, 4)));
        assert_eq!(index.take(4097), None);
        assert_eq!(index.take(u64::MAX), None);
        assert_eq!(index.drain_by_address(), vec![(4096, 1, 3)]);
        assert_eq!(index.take(1), None);
    }
}
