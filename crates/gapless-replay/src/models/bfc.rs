//! BFC, best fit with coalescing: the allocator of TensorFlow, XLA and JAX (`bfc_allocator.cc`), one heap for all
//! streams.
//!
//! The smallest free chunk that is large enough serves a request, the lowest of equals (the real one walks 21 bins
//! upward: the same order); it is split if it is twice as large or wastes 128 MiB. Else the heap grows by a region
//! whose size doubles each time, and a tenth less is tried while the device refuses. Regions are given back only with
//! `gc`, before a request fails; the cache cannot be emptied. Defaults are the allocator's own: grow up to the whole
//! card, no `gc`. JAX runs with `preallocate:0.75`, or with `fraction:0.75` if preallocation is switched off;
//! TensorFlow with `gc:true`. Left out: chunks with the time of their free, the two-ended heap for collectives, the
//! wait of up to ten seconds for other threads before a request fails. If the device refuses the smallest regions, the
//! real one asks forever (nine tenths of 2304 bytes or less round up to the same again); here the request fails.

use crate::allocator::{Allocator, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
use crate::device::Device;
use crate::free_set::{Entry, FreeSet};
use crate::models::chunks::{Chunks, NONE};
use crate::models::ledger::{Ledger, round_up};
use crate::models::recipe::Recipe;
use crate::models::segments::Segments;
use crate::models::settings::{Keys, SettingsError, settings};
use gapless_trace::{Bytes, DeviceAddr};
use std::collections::BTreeMap;
use std::str::FromStr;

/// The unit of sizes.
const UNIT: u64 = 256;
/// The first region of a heap that grows.
const FIRST_REGION: u64 = 2 << 20;
/// A chunk is never left this much larger than its request.
const MAX_WASTE: u64 = 128 << 20;
/// Limits that are shares of the card are rounded up to this.
const LIMIT_UNIT: u64 = 2 << 20;

const BUSY: u32 = 0;
const FREE: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BfcSettings {
    /// Take this share of the card in one region with the first request, and never more.
    pub preallocate: Option<f64>,
    /// Without preallocation: the share of the card that the heap may grow to. None: all of it.
    pub fraction: Option<f64>,
    /// Give wholly free regions back before a request fails.
    pub gc: bool,
    /// The share of the limit that a chunk may waste before it is split; none: 128 MiB.
    pub fragmentation: Option<f64>,
}

impl Recipe for BfcSettings {
    const NAME: &'static str = "bfc";
    const ABOUT: &'static str = "TensorFlow's and JAX's: best fit with coalescing";
    const KEYS: Keys =
        &[("preallocate", "0.75"), ("fraction", "0.75"), ("gc", "true"), ("fragmentation", "0.01")];

    fn build<D: Device + 'static>(
        &self,
        device: D,
        lanes: &[Lane],
    ) -> Result<Box<dyn Allocator>, SettingsError> {
        Ok(Box::new(Bfc::new(device, lanes, self)))
    }

    fn takes_a_share(&self) -> bool {
        self.preallocate.is_some()
    }
}

impl FromStr for BfcSettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<BfcSettings, SettingsError> {
        let mut parsed = BfcSettings::default();
        for setting in settings(Self::NAME, Self::KEYS, text)? {
            match setting.key {
                "preallocate" => {
                    let off = setting.flag() == Ok(false);
                    parsed.preallocate = if off { None } else { Some(setting.share()?) };
                }
                "fraction" => parsed.fraction = Some(setting.share()?),
                "gc" => parsed.gc = setting.flag()?,
                _ => parsed.fragmentation = Some(setting.share()?),
            }
        }
        Ok(parsed)
    }
}

#[derive(Clone, Debug)]
pub struct Bfc<D> {
    ledger: Ledger,
    segments: Segments<D>,
    chunks: Chunks,
    free: FreeSet,
    /// Regions by address, with their first chunk: merging keeps the lower of two, so it is the same for life.
    regions: BTreeMap<u64, u32>,
    limit: u64,
    max_waste: u64,
    next_region: u64,
    gc: bool,
}

impl<D: Device> Bfc<D> {
    #[must_use]
    pub fn new(device: D, _lanes: &[Lane], settings: &BfcSettings) -> Bfc<D> {
        let segments = Segments::new(device);
        let total = segments.total();
        let limit = settings
            .preallocate
            .or(settings.fraction)
            .map_or(total, |share| round_up((total as f64 * share) as u64, LIMIT_UNIT).min(total));
        let next_region =
            round_up(if settings.preallocate.is_some() { limit } else { limit.min(FIRST_REGION) }, UNIT);
        let max_waste = settings.fragmentation.map_or(MAX_WASTE, |share| (share * limit as f64) as u64);
        Bfc {
            ledger: Ledger::default(),
            segments,
            chunks: Chunks::default(),
            free: FreeSet::default(),
            regions: BTreeMap::new(),
            limit,
            max_waste,
            next_region,
            gc: settings.gc,
        }
    }

    fn reserved(&self) -> u64 {
        self.ledger.stats.reserved.current
    }

    fn insert_free(&mut self, handle: u32) {
        let chunk = self.chunks.get_mut(handle);
        chunk.state = FREE;
        self.free.insert(Entry { size: chunk.size, tie: chunk.addr, block: handle });
    }

    fn remove_free(&mut self, handle: u32) {
        let chunk = self.chunks.get(handle);
        self.free.remove(chunk.size, chunk.addr);
    }

    /// Serves `rounded` bytes from the free chunks.
    #[inline]
    fn find(&mut self, rounded: u64) -> Option<u32> {
        let Entry { size, tie, block: handle } = self.free.at_least(rounded)?;
        self.free.remove(size, tie);
        if size / 2 >= rounded || size - rounded >= self.max_waste {
            // A remainder of nothing is possible only if nothing may be wasted.
            if size > rounded {
                let tail = self.chunks.split(handle, rounded);
                self.insert_free(tail);
            }
        }
        self.chunks.get_mut(handle).state = BUSY;
        Some(handle)
    }

    /// Takes a region that can serve `rounded` bytes.
    fn extend(&mut self, rounded: u64) -> bool {
        let available = self.limit.saturating_sub(self.reserved()) / UNIT * UNIT;
        if rounded > available {
            return false;
        }
        let mut doubled = false;
        while rounded > self.next_region {
            self.next_region = self.next_region.saturating_mul(2);
            doubled = true;
        }
        let mut bytes = self.next_region.min(available);
        let addr = loop {
            if let Some(addr) = self.segments.take(bytes, &mut self.ledger.stats) {
                break addr;
            }
            // In single precision, as the real one counts.
            let less = round_up((bytes as f32 * 0.9f32) as u64, UNIT);
            if less < rounded || less >= bytes {
                return false;
            }
            bytes = less;
        };
        if !doubled {
            self.next_region = self.next_region.saturating_mul(2);
        }
        let handle = self.chunks.segment(addr, bytes, FREE);
        self.regions.insert(addr, handle);
        self.insert_free(handle);
        true
    }

    /// Gives the wholly free regions back, if that could make room for `rounded` bytes.
    fn collect(&mut self, rounded: u64) -> bool {
        if !self.gc {
            return false;
        }
        // Free neighbours are always merged, so a region that is wholly free is one chunk.
        let chunk = |handle: u32| self.chunks.get(handle);
        let whole = |handle: u32| chunk(handle).state == FREE && chunk(handle).next == NONE;
        let free: Vec<(u64, u32)> = self
            .regions
            .iter()
            .filter(|&(_, &handle)| whole(handle))
            .map(|(&addr, &handle)| (addr, handle))
            .collect();
        let bytes: u64 = free.iter().map(|&(_, handle)| chunk(handle).size).sum();
        if bytes == 0 || rounded > (self.limit - self.reserved()).saturating_add(bytes) {
            return false;
        }
        for (addr, handle) in free {
            self.remove_free(handle);
            self.chunks.forget(handle);
            self.regions.remove(&addr);
            self.segments.give(addr, &mut self.ledger.stats);
        }
        true
    }

    #[cold]
    fn find_after_growing(&mut self, rounded: u64) -> Option<u32> {
        if self.extend(rounded) {
            return self.find(rounded);
        }
        if self.collect(rounded) && self.extend(rounded) {
            self.ledger.stats.retries += 1;
            return self.find(rounded);
        }
        None
    }
}

impl<D: Device> Allocator for Bfc<D> {
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom> {
        let rounded = round_up(size.0, UNIT);
        let Some(handle) = self.find(rounded).or_else(|| self.find_after_growing(rounded)) else {
            let free = self.segments.available().min(self.limit - self.reserved());
            return Err(self.ledger.oom(size, rounded, free));
        };
        let chunk = self.chunks.get(handle);
        Ok(self.ledger.hold(slot, size, lane, (chunk.addr, chunk.size, handle)))
    }

    fn free_requested(&mut self, slot: Slot) {
        self.ledger.free_requested(slot);
    }

    fn free_completed(&mut self, slot: Slot) {
        let Some(held) = self.ledger.free_completed(slot) else { return };
        let mut handle = held.handle;
        let (prev, next) = (self.chunks.get(handle).prev, self.chunks.get(handle).next);
        if next != NONE && self.chunks.get(next).state == FREE {
            self.remove_free(next);
            self.chunks.absorb_next(handle);
        }
        if prev != NONE && self.chunks.get(prev).state == FREE {
            self.remove_free(prev);
            self.chunks.absorb_next(prev);
            handle = prev;
        }
        self.insert_free(handle);
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
    const GIB: u64 = 1 << 30;

    fn bfc(total: u64, settings: &str) -> Bfc<SimDevice> {
        Bfc::new(SimDevice::new(total), &[Lane::default()], &settings.parse().expect("settings"))
    }

    #[test]
    fn regions_double_from_2_mib_until_the_request_fits() {
        let mut heap = bfc(GIB, "");
        heap.alloc(0, Bytes(1), 0).expect("room");
        assert_eq!(heap.reserved(), 2 * MIB);
        heap.alloc(1, Bytes(2 * MIB), 0).expect("room");
        assert_eq!(heap.reserved(), 6 * MIB, "the second region is twice the first, though 2 MiB would do");
        heap.alloc(2, Bytes(9 * MIB), 0).expect("room");
        assert_eq!(heap.reserved(), 22 * MIB, "8 doubled once for the request");
        heap.alloc(3, Bytes(16 * MIB), 0).expect("room");
        assert_eq!(heap.reserved(), 38 * MIB, "doubled for a request is not doubled again after it");
        assert_eq!(heap.stats().segments.current, 4);
    }

    #[test]
    fn a_chunk_is_split_when_twice_as_large_or_when_it_wastes_128_mib() {
        let mut heap = bfc(4 * GIB, "preallocate:1");
        heap.alloc(0, Bytes(MIB), 0).expect("room");
        heap.alloc(1, Bytes(256), 0).expect("room");
        heap.free(0);
        heap.alloc(0, Bytes(MIB / 2 + 256), 0).expect("room");
        assert_eq!(heap.stats().allocated.current, MIB + 256, "served whole: less than twice as large");
        heap.free(0);
        heap.alloc(0, Bytes(MIB / 2), 0).expect("room");
        assert_eq!(heap.stats().allocated.current, MIB / 2 + 256);

        let mut heap = bfc(GIB, "preallocate:1");
        heap.alloc(0, Bytes(GIB - 128 * MIB + 256), 0).expect("room");
        assert_eq!(heap.stats().allocated.current, GIB, "wastes 256 bytes less than 128 MiB");
        heap.free(0);
        heap.alloc(0, Bytes(GIB - 128 * MIB), 0).expect("room");
        assert_eq!(heap.stats().allocated.current, GIB - 128 * MIB);
    }

    #[test]
    fn the_smallest_chunk_serves_and_the_lowest_of_equals() {
        let mut heap = bfc(GIB, "preallocate:1");
        let addrs: Vec<_> =
            (0..7).map(|slot| heap.alloc(slot, Bytes(4096 + u64::from(slot % 2) * 256), 0)).collect();
        for slot in [5, 4, 2, 1] {
            heap.free(slot);
        }
        // Free now: 1 and 2 as one, 4 and 5 as one, equally large.
        assert_eq!(heap.alloc(8, Bytes(8192), 0), addrs[1]);
        assert_eq!(heap.alloc(9, Bytes(8192), 0), addrs[4]);
    }

    #[test]
    fn preallocation_takes_its_share_with_the_first_request_and_never_more() {
        let mut heap = bfc(GIB, "preallocate:0.75");
        assert_eq!(heap.reserved(), 0);
        heap.alloc(0, Bytes(1), 0).expect("room");
        assert_eq!(heap.reserved(), 768 * MIB);
        let oom = heap.alloc(1, Bytes(768 * MIB), 0).expect_err("the rest of the card is not ours");
        assert_eq!((oom.asked, oom.free), (Bytes(768 * MIB), Bytes(0)));
        assert_eq!(heap.stats().ooms, 1);
        heap.free(0);
        heap.alloc(1, Bytes(768 * MIB), 0).expect("room again");
        heap.empty_cache(None);
        assert_eq!(heap.reserved(), 768 * MIB);
    }

    #[test]
    fn a_tenth_less_is_tried_while_the_device_refuses() {
        // Something else uses a part of the card.
        let mut device = SimDevice::new(80 * GIB);
        device.malloc(30 * GIB).expect("room");
        let mut heap = Bfc::new(device, &[], &"preallocate:1".parse().expect("settings"));
        heap.alloc(0, Bytes(1), 0).expect("room");
        assert_eq!(
            heap.reserved(),
            50_722_697_216,
            "80 GiB times 0.9 to the fifth is 50_722_705_152, but not in single precision"
        );
        assert!(heap.alloc(1, Bytes(10 * GIB), 0).is_ok());
        assert!(heap.alloc(2, Bytes(45 * GIB), 0).is_err());
        assert!(heap.alloc(2, Bytes(100), 0).is_ok(), "a failure changes nothing");
    }

    #[test]
    fn garbage_collection_gives_free_regions_back_before_a_request_fails() {
        for (settings, served) in [("gc:true", true), ("", false)] {
            let mut heap = bfc(64 * MIB, settings);
            for slot in 0..3 {
                heap.alloc(slot, Bytes(16 * MIB), 0).expect("room");
            }
            (0..3).for_each(|slot| heap.free(slot));
            assert_eq!(heap.stats().segments.current, 3, "16 MiB, 16 and 32: none holds 60");
            assert_eq!(heap.alloc(3, Bytes(60 * MIB), 0).is_ok(), served);
            assert_eq!(heap.stats().device_frees, if served { 3 } else { 0 });
            assert_eq!(heap.stats().retries, u64::from(served));
        }
    }

    #[test]
    fn settings_are_read_or_refused_with_what_there_is() {
        let parsed: BfcSettings = "preallocate:off, gc:on,fraction:0.5".parse().expect("settings");
        assert_eq!(parsed, BfcSettings { gc: true, fraction: Some(0.5), ..BfcSettings::default() });
        let message = |text: &str| text.parse::<BfcSettings>().expect_err("refused").to_string();
        assert_eq!(
            message("grow:1"),
            "bfc has no setting \"grow\"; it has preallocate, fraction, gc, fragmentation"
        );
        assert_eq!(message("gc"), "bfc: \"gc\" needs a value: write gc:true");
        assert_eq!(message("gc:1,gc:0"), "bfc: gc is given twice; keep one of them");
        assert!(message("preallocate:1.5").starts_with("bfc: preallocate cannot be \"1.5\": give a share"));
    }
}
