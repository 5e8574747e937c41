//! Addresses for windows: reserved from the device in large pieces, handed out best fit, and joined when they come
//! back. So a program that requests ever new sizes needs only the addresses of its present windows and the gaps between
//! them.

use crate::device::{Device, DeviceError};
use std::collections::{BTreeMap, BTreeSet};

/// Invariants: free ranges do not touch, unless a reservation begins between them, because no window reaches over two.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// Free ranges: beginning and bytes.
    by_addr: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// Beginnings of reservations.
    reservations: BTreeSet<u64>,
}

impl Ranges {
    /// Takes addresses for `size` bytes. If none are free, reserves at least `piece` bytes.
    pub(crate) fn take(
        &mut self,
        device: &mut impl Device,
        size: u64,
        piece: u64,
    ) -> Result<u64, DeviceError> {
        if self.by_size.range((size, 0)..).next().is_none() {
            let (addr, bytes) = match device.reserve(piece.max(size)) {
                Ok(addr) => (addr, piece.max(size)),
                // Other parts of the process may have taken the rest of the addresses, so only as much as needed.
                Err(_) => (device.reserve(size)?, size),
            };
            self.reservations.insert(addr);
            self.insert(addr, bytes);
        }
        let &(whole, addr) = self.by_size.range((size, 0)..).next().ok_or(DeviceError::OutOfMemory)?;
        self.remove(addr, whole);
        if whole > size {
            self.insert(addr + size, whole - size);
        }
        Ok(addr)
    }

    /// Takes addresses back, with nothing mapped there.
    pub(crate) fn give(&mut self, addr: u64, size: u64) {
        let (mut from, mut bytes) = (addr, size);
        if let Some((&before, &length)) = self.by_addr.range(..addr).next_back()
            && before + length == addr
            && !self.reservations.contains(&addr)
        {
            self.remove(before, length);
            (from, bytes) = (before, length + bytes);
        }
        let end = addr + size;
        if let Some(&length) = self.by_addr.get(&end).filter(|_| !self.reservations.contains(&end)) {
            self.remove(end, length);
            bytes += length;
        }
        self.insert(from, bytes);
    }

    fn insert(&mut self, addr: u64, size: u64) {
        self.by_addr.insert(addr, size);
        self.by_size.insert((size, addr));
    }

    fn remove(&mut self, addr: u64, size: u64) {
        self.by_addr.remove(&addr);
        self.by_size.remove(&(size, addr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDevice;

    #[test]
    fn what_comes_back_is_joined_and_serves_again() {
        let mut device = SimDevice::new(1 << 30);
        let mut ranges = Ranges::default();
        let mut take = |ranges: &mut Ranges, size| ranges.take(&mut device, size, 100).expect("addresses");
        let first: Vec<u64> = (0..4).map(|_| take(&mut ranges, 25)).collect();
        assert_eq!(first, [0, 25, 50, 75].map(|at| first[0] + at), "one reservation serves all four");
        for at in [2, 0, 3, 1] {
            ranges.give(first[at], 25);
        }
        assert_eq!(take(&mut ranges, 100), first[0], "joined in whatever order they came back");
        let second = take(&mut ranges, 60);
        ranges.give(first[0], 100);
        ranges.give(second, 60);
        assert_ne!(take(&mut ranges, 150), first[0], "nothing reaches over two reservations");
    }
}
