//! The device under a model: memory and addresses, nothing else. A model asks; the device has a capacity and chooses
//! the address.
//!
//! [`SimDevice`] places by one rule: the lowest gap that is large enough, aligned to 2 MiB. The real driver's addresses
//! follow no documented rule. They matter only because PyTorch up to 2.11 breaks ties between equally large free blocks
//! by address, and [`Placement::Highest`] shows by how much.

use std::collections::BTreeMap;

/// The unit of the device's addresses and of physical memory.
pub const GRANULE: u64 = 2 << 20;

/// Memory and addresses.
pub trait Device {
    /// Takes a segment of `size` bytes; `None` if there is no memory for it.
    fn malloc(&mut self, size: u64) -> Option<u64>;

    /// Gives a segment back.
    fn free(&mut self, addr: u64, size: u64);

    /// Reserves addresses without memory behind them.
    fn reserve(&mut self, size: u64) -> u64;

    fn unreserve(&mut self, addr: u64, size: u64);

    /// Puts `size` bytes of memory behind reserved addresses; `false` if there is none.
    fn map(&mut self, addr: u64, size: u64) -> bool;

    fn unmap(&mut self, addr: u64, size: u64);

    /// The size of the card.
    fn total(&self) -> u64;

    /// Bytes that the card still has.
    fn available(&self) -> u64;

    /// True if the caller is about to see memory given back that its own rules cannot explain: recordings know (see
    /// `recorded.rs`), simulated devices do not.
    fn expects_free(&self) -> Option<bool> {
        None
    }
}

/// The place of a new range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    #[default]
    Lowest,
    /// Downward from the top: the other extreme, to see if an answer depends on addresses.
    Highest,
}

/// Addresses out of one region, by a fixed rule.
#[derive(Clone, Debug)]
struct Region {
    start: u64,
    end: u64,
    placement: Placement,
    /// Free gaps below `end`, start to size; neighbours are always merged.
    gaps: BTreeMap<u64, u64>,
}

impl Region {
    fn new(start: u64, size: u64, placement: Placement) -> Region {
        Region { start, end: start + size, placement, gaps: BTreeMap::from([(start, size)]) }
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let size = size.div_ceil(GRANULE) * GRANULE;
        let fits = |(&start, &len): (&u64, &u64)| (len >= size).then_some((start, len));
        match self.placement {
            Placement::Lowest => {
                let (start, len) = self.gaps.iter().find_map(fits)?;
                self.gaps.remove(&start);
                if len > size {
                    self.gaps.insert(start + size, len - size);
                }
                Some(start)
            }
            Placement::Highest => {
                let (start, len) = self.gaps.iter().rev().find_map(fits)?;
                if len > size {
                    self.gaps.insert(start, len - size);
                } else {
                    self.gaps.remove(&start);
                }
                Some(start + len - size)
            }
        }
    }

    fn give(&mut self, addr: u64, size: u64) {
        let mut size = size.div_ceil(GRANULE) * GRANULE;
        debug_assert!(addr >= self.start && addr + size <= self.end);
        let mut start = addr;
        if let Some((&before, &len)) = self.gaps.range(..addr).next_back()
            && before + len == addr
        {
            start = before;
            size += len;
        }
        if let Some(len) = self.gaps.remove(&(start + size)) {
            size += len;
        }
        self.gaps.insert(start, size);
    }
}

/// A simulated card.
#[derive(Clone, Debug)]
pub struct SimDevice {
    total: u64,
    used: u64,
    segments: Region,
    ranges: Region,
}

impl SimDevice {
    /// A base that looks like a device address, and leaves room above for ranges.
    const SEGMENTS: u64 = 0x7000_0000_0000;
    const RANGES: u64 = 0x1000_0000_0000_0000;
    const SPACE: u64 = 1 << 60;

    #[must_use]
    pub fn new(total: u64) -> SimDevice {
        SimDevice::placing(total, Placement::Lowest)
    }

    #[must_use]
    pub fn placing(total: u64, placement: Placement) -> SimDevice {
        SimDevice {
            total,
            used: 0,
            segments: Region::new(Self::SEGMENTS, Self::RANGES - Self::SEGMENTS, placement),
            ranges: Region::new(Self::RANGES, Self::SPACE * 8, placement),
        }
    }

    fn charge(&mut self, size: u64) -> bool {
        let fits = self.total.saturating_sub(self.used) >= size;
        if fits {
            self.used += size;
        }
        fits
    }
}

impl Device for SimDevice {
    fn malloc(&mut self, size: u64) -> Option<u64> {
        if !self.charge(size) {
            return None;
        }
        let addr = self.segments.take(size);
        if addr.is_none() {
            self.used -= size;
        }
        addr
    }

    fn free(&mut self, addr: u64, size: u64) {
        self.used -= size;
        self.segments.give(addr, size);
    }

    fn reserve(&mut self, size: u64) -> u64 {
        self.ranges.take(size).unwrap_or(Self::RANGES + Self::SPACE * 8)
    }

    fn unreserve(&mut self, addr: u64, size: u64) {
        self.ranges.give(addr, size);
    }

    fn map(&mut self, _addr: u64, size: u64) -> bool {
        self.charge(size)
    }

    fn unmap(&mut self, _addr: u64, size: u64) {
        self.used -= size;
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn available(&self) -> u64 {
        self.total - self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_gap_that_is_large_enough_is_taken() {
        let mut device = SimDevice::new(1 << 40);
        let a = device.malloc(GRANULE).expect("room");
        let b = device.malloc(4 * GRANULE).expect("room");
        let c = device.malloc(GRANULE).expect("room");
        assert!(a < b && b < c);
        device.free(b, 4 * GRANULE);
        assert_eq!(device.malloc(5 * GRANULE), Some(c + GRANULE));
        assert_eq!(device.malloc(3 * GRANULE - 512), Some(b), "addresses are granted in whole granules");
        assert_eq!(device.malloc(GRANULE), Some(b + 3 * GRANULE));
    }

    #[test]
    fn capacity_counts_bytes_whatever_they_are_behind() {
        let mut device = SimDevice::new(3 * GRANULE);
        let range = device.reserve(1 << 40);
        assert!(device.map(range, 2 * GRANULE));
        assert_eq!(device.malloc(2 * GRANULE), None);
        let segment = device.malloc(GRANULE).expect("room");
        assert!(!device.map(range + 2 * GRANULE, GRANULE));
        device.free(segment, GRANULE);
        assert!(device.map(range + 2 * GRANULE, GRANULE));
        assert_eq!(device.available(), 0);
    }
}
