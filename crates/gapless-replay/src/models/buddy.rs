//! The binary buddy system: blocks are powers of two, a block is halved until it is just large enough, and two free
//! halves of one block become that block again. One heap for all streams.
//!
//! Of the free blocks of an order the lowest is taken; if there is none, the next larger order is halved. Segments are
//! powers of two as well: `segment` bytes, or more if a request needs it; one that is free again serves smaller
//! requests too. Wholly free segments are given back when the cache is emptied and before a request fails.

use crate::allocator::{Allocator, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
use crate::device::Device;
use crate::models::ledger::Ledger;
use crate::models::recipe::Recipe;
use crate::models::segments::Segments;
use crate::models::settings::{Keys, SettingsError, settings};
use gapless_trace::{Bytes, DeviceAddr, PoolId};
use std::collections::BTreeMap;
use std::str::FromStr;

/// The order of the smallest block, 512 bytes: the unit that PyTorch rounds to.
const MIN_ORDER: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BuddySettings {
    /// The least that is taken from the device.
    pub segment: u64,
}

impl Default for BuddySettings {
    fn default() -> BuddySettings {
        BuddySettings { segment: 32 << 20 }
    }
}

impl Recipe for BuddySettings {
    const NAME: &'static str = "buddy";
    const ABOUT: &'static str = "powers of two, split and merged";
    const KEYS: Keys = &[("segment", "32MiB")];

    fn build<D: Device + 'static>(
        &self,
        device: D,
        lanes: &[Lane],
    ) -> Result<Box<dyn Allocator>, SettingsError> {
        Ok(Box::new(Buddy::new(device, lanes, self)))
    }
}

impl FromStr for BuddySettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<BuddySettings, SettingsError> {
        let mut parsed = BuddySettings::default();
        for setting in settings(Self::NAME, Self::KEYS, text)? {
            let wanted = "a power of two of at least 512 bytes, such as 32MiB";
            parsed.segment =
                setting.bytes(wanted, |bytes| bytes.is_power_of_two() && bytes >= 1 << MIN_ORDER)?;
        }
        Ok(parsed)
    }
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    base: u64,
    order: u32,
}

#[derive(Clone, Debug)]
pub struct Buddy<D> {
    ledger: Ledger,
    segments: Segments<D>,
    /// By handle; those given back are in `unused`.
    all: Vec<Segment>,
    unused: Vec<u32>,
    /// Free blocks of each order: address to segment.
    free: Vec<BTreeMap<u64, u32>>,
    /// Bit k: there is a free block of order k.
    filled: u64,
    segment_order: u32,
}

impl<D: Device> Buddy<D> {
    #[must_use]
    pub fn new(device: D, _lanes: &[Lane], settings: &BuddySettings) -> Buddy<D> {
        Buddy {
            ledger: Ledger::default(),
            segments: Segments::new(device),
            all: Vec::new(),
            unused: Vec::new(),
            free: vec![BTreeMap::new(); 64],
            filled: 0,
            segment_order: settings.segment.max(1 << MIN_ORDER).ilog2(),
        }
    }

    #[inline]
    fn insert_free(&mut self, addr: u64, order: u32, segment: u32) {
        self.free[order as usize].insert(addr, segment);
        self.filled |= 1 << order;
    }

    /// True if there was such a free block.
    #[inline]
    fn remove_free(&mut self, addr: u64, order: u32) -> bool {
        let blocks = &mut self.free[order as usize];
        let found = blocks.remove(&addr).is_some();
        if blocks.is_empty() {
            self.filled &= !(1 << order);
        }
        found
    }

    /// Serves a block of `order` from the free blocks.
    #[inline]
    fn find(&mut self, order: u32) -> Option<(u64, u32)> {
        let large_enough = self.filled & !((1 << order) - 1);
        if large_enough == 0 {
            return None;
        }
        let mut from = large_enough.trailing_zeros();
        let (&addr, &segment) = self.free[from as usize].first_key_value()?;
        self.remove_free(addr, from);
        while from > order {
            from -= 1;
            self.insert_free(addr + (1 << from), from, segment);
        }
        Some((addr, segment))
    }

    fn grow(&mut self, order: u32) -> bool {
        let order = order.max(self.segment_order);
        let Some(base) = self.segments.take(1 << order, &mut self.ledger.stats) else { return false };
        let segment = Segment { base, order };
        let handle = if let Some(handle) = self.unused.pop() {
            self.all[handle as usize] = segment;
            handle
        } else {
            self.all.push(segment);
            (self.all.len() - 1) as u32
        };
        self.insert_free(base, order, handle);
        true
    }

    /// Gives wholly free segments back; true if there were any.
    fn shrink(&mut self) -> bool {
        let mut any = false;
        // No block is larger than its segment, and a segment of at least this order is free if its base is free at that
        // order.
        for order in self.segment_order..64 {
            let whole = |(&addr, &handle): (&u64, &u32)| {
                let segment = self.all[handle as usize];
                (segment.base == addr && segment.order == order).then_some((addr, handle))
            };
            let gone: Vec<(u64, u32)> = self.free[order as usize].iter().filter_map(whole).collect();
            for (base, handle) in gone {
                self.remove_free(base, order);
                self.unused.push(handle);
                self.segments.give(base, &mut self.ledger.stats);
                any = true;
            }
        }
        any
    }

    #[cold]
    fn find_after_growing(&mut self, order: u32) -> Option<(u64, u32)> {
        if self.grow(order) {
            return self.find(order);
        }
        if self.shrink() && self.grow(order) {
            self.ledger.stats.retries += 1;
            return self.find(order);
        }
        None
    }
}

/// The order of the smallest block for `size` bytes; none if no address could hold it.
#[inline]
fn order_of(size: u64) -> Option<u32> {
    let order = size.checked_next_power_of_two()?.ilog2().max(MIN_ORDER);
    (order <= 62).then_some(order)
}

impl<D: Device> Allocator for Buddy<D> {
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom> {
        let order = order_of(size.0);
        let found = order.and_then(|order| self.find(order).or_else(|| self.find_after_growing(order)));
        let (Some(order), Some((addr, segment))) = (order, found) else {
            let asked = order.map_or(size.0, |order| 1 << order.max(self.segment_order));
            return Err(self.ledger.oom(size, asked, self.segments.available()));
        };
        Ok(self.ledger.hold(slot, size, lane, (addr, 1 << order, segment)))
    }

    fn free_requested(&mut self, slot: Slot) {
        self.ledger.free_requested(slot);
    }

    fn free_completed(&mut self, slot: Slot) {
        let Some(held) = self.ledger.free_completed(slot) else { return };
        let segment = self.all[held.handle as usize];
        let (mut offset, mut order) = (held.addr - segment.base, held.size.ilog2());
        while order < segment.order && self.remove_free(segment.base + (offset ^ (1 << order)), order) {
            offset &= !(1 << order);
            order += 1;
        }
        self.insert_free(segment.base + offset, order, held.handle);
    }

    /// One heap: there are no pools whose cache could be emptied alone.
    fn empty_cache(&mut self, _pool: Option<PoolId>) {
        self.shrink();
    }

    fn stats(&self) -> &Stats {
        &self.ledger.stats
    }

    fn inventory(&self) -> Inventory {
        self.segments.inventory(&self.ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimDevice;

    const MIB: u64 = 1 << 20;

    fn buddy(total: u64) -> Buddy<SimDevice> {
        Buddy::new(SimDevice::new(total), &[], &BuddySettings::default())
    }

    #[test]
    fn blocks_are_powers_of_two_and_halves_become_whole_again() {
        let mut heap = buddy(1 << 30);
        let a = heap.alloc(0, Bytes(1), 0).expect("room");
        let b = heap.alloc(1, Bytes(513), 0).expect("room");
        let c = heap.alloc(2, Bytes(512), 0).expect("room");
        assert_eq!(
            (b.0 - a.0, c.0 - a.0),
            (1024, 512),
            "the buddy of the first is taken before another block is halved"
        );
        assert_eq!(heap.stats().allocated.current, 512 + 1024 + 512);
        (0..3).for_each(|slot| heap.free(slot));
        assert_eq!(heap.alloc(3, Bytes(32 * MIB), 0), Ok(a), "the segment is whole again");
        assert_eq!(heap.stats().segments.current, 1);
    }

    #[test]
    fn a_request_beyond_the_largest_order_gets_a_segment_of_its_own() {
        let mut heap = buddy(1 << 30);
        heap.alloc(0, Bytes(33 * MIB), 0).expect("room");
        assert_eq!(heap.stats().reserved.current, 64 * MIB);
        heap.free(0);
        heap.alloc(1, Bytes(MIB), 0).expect("room");
        assert_eq!(heap.stats().reserved.current, 64 * MIB, "free again, it serves smaller requests");
    }

    #[test]
    fn free_segments_go_back_when_the_cache_is_emptied_and_before_a_request_fails() {
        let mut heap = buddy(64 * MIB);
        heap.alloc(0, Bytes(MIB), 0).expect("room");
        heap.alloc(1, Bytes(32 * MIB), 0).expect("room");
        heap.free(1);
        heap.empty_cache(None);
        assert_eq!(heap.stats().reserved.current, 32 * MIB, "the first segment is in use");
        heap.free(0);
        heap.alloc(2, Bytes(64 * MIB), 0).expect("room, once the first segment is given back");
        assert_eq!((heap.stats().retries, heap.stats().device_frees), (1, 2));
        assert_eq!(heap.alloc(3, Bytes(1), 0).expect_err("full").asked, Bytes(32 * MIB));
        assert!(heap.alloc(3, Bytes(u64::MAX), 0).is_err());
        assert_eq!(heap.stats().ooms, 2);
    }

    #[test]
    fn the_segment_size_must_be_a_power_of_two() {
        assert_eq!("segment:2MiB".parse(), Ok(BuddySettings { segment: 2 * MIB }));
        let message = "segment:20MiB".parse::<BuddySettings>().expect_err("refused").to_string();
        assert_eq!(
            message,
            "buddy: segment cannot be \"20MiB\": give a power of two of at least 512 bytes, such as 32MiB"
        );
    }
}
