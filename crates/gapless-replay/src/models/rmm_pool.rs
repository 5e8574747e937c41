//! RMM's `pool_memory_resource`: best fit with coalescing, a list of free blocks for each stream.
//!
//! The smallest block of the stream's list that is large enough serves a request, the lowest of equals; the rest stays
//! in the list. Else the other streams' lists are asked in turn (the stream waits for the other's last free); then they
//! are merged into this one, one by one, until a block is large enough; then the pool grows: by the bytes that it holds
//! already, or by half of the rest to `maximum`, and by half of that while the device refuses. A freed block merges
//! with neighbours in its stream's list only. Nothing is given back before the end. `initial` bytes are taken when the
//! pool is made: by default half of the card's free bytes, as in Python. Streams are asked in the order in which they
//! first appeared, the default stream first; the real order is that of their events' addresses.

use crate::allocator::{Allocator, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
use crate::device::Device;
use crate::free_set::{Entry, FreeSet};
use crate::models::chunks::{Chunks, NONE};
use crate::models::ledger::{Ledger, round_up};
use crate::models::recipe::Recipe;
use crate::models::segments::Segments;
use crate::models::settings::{Keys, SettingsError, settings};
use gapless_trace::{Bytes, DeviceAddr, StreamId};
use std::str::FromStr;

/// The unit of sizes.
pub(super) const UNIT: u64 = 256;
/// Making a stream wait for another's event, in nanoseconds.
const EVENT_WAIT_NS: u64 = 300;

/// The state of a chunk in use; else its list.
const BUSY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RmmPoolSettings {
    /// Bytes that the pool takes when it is made; none: half of the card's free bytes.
    pub initial: Option<u64>,
    /// Bytes to which it may grow; none: all that the device gives.
    pub maximum: Option<u64>,
}

impl Recipe for RmmPoolSettings {
    const NAME: &'static str = "rmm-pool";
    const ABOUT: &'static str = "RMM's pool, which takes half of the card";
    const KEYS: Keys = &[("initial", "10GiB"), ("maximum", "30GiB")];

    fn build<D: Device + 'static>(
        &self,
        device: D,
        lanes: &[Lane],
    ) -> Result<Box<dyn Allocator>, SettingsError> {
        Ok(Box::new(RmmPool::new(device, lanes, self)?))
    }

    fn takes_a_share(&self) -> bool {
        self.initial.is_none()
    }
}

impl FromStr for RmmPoolSettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<RmmPoolSettings, SettingsError> {
        let mut parsed = RmmPoolSettings::default();
        for setting in settings(Self::NAME, Self::KEYS, text)? {
            let bytes = setting
                .bytes("a size with its unit, a multiple of 256 bytes, such as 10GiB", |b| {
                    b.is_multiple_of(UNIT)
                })?;
            if setting.key == "initial" {
                parsed.initial = Some(bytes);
            } else {
                parsed.maximum = Some(bytes);
            }
        }
        if let (Some(initial), Some(maximum)) = (parsed.initial, parsed.maximum)
            && initial > maximum
        {
            let (initial, maximum) = (Bytes(initial), Bytes(maximum));
            return Err(SettingsError::InitialOverMaximum { model: RmmPoolSettings::NAME, initial, maximum });
        }
        Ok(parsed)
    }
}

/// The free blocks of one stream.
#[derive(Clone, Debug)]
struct List {
    stream: StreamId,
    /// A list comes into being with its first use, and goes when it is merged into another.
    present: bool,
    free: FreeSet,
}

#[derive(Clone, Debug)]
pub struct RmmPool<D> {
    ledger: Ledger,
    segments: Segments<D>,
    chunks: Chunks,
    /// In order of first use.
    lists: Vec<List>,
    /// The list of each lane, once it was used.
    lane_lists: Vec<Option<u32>>,
    streams: Vec<StreamId>,
    maximum: Option<u64>,
}

impl<D: Device> RmmPool<D> {
    /// # Errors
    /// When the card cannot give `initial` bytes, or they are more than `maximum`.
    pub fn new(device: D, lanes: &[Lane], settings: &RmmPoolSettings) -> Result<RmmPool<D>, SettingsError> {
        let mut pool = RmmPool {
            ledger: Ledger::default(),
            segments: Segments::new(device),
            chunks: Chunks::default(),
            lists: Vec::new(),
            lane_lists: vec![None; lanes.len()],
            streams: lanes.iter().map(|lane| lane.stream).collect(),
            maximum: settings.maximum,
        };
        let available = pool.segments.available();
        let half = (available as f64 * 0.5) as u64 / UNIT * UNIT;
        let initial = settings.initial.unwrap_or(half);
        if let Some(maximum) = settings.maximum.filter(|&maximum| initial > maximum) {
            let (initial, maximum) = (Bytes(initial), Bytes(maximum));
            return Err(SettingsError::InitialOverMaximum { model: RmmPoolSettings::NAME, initial, maximum });
        }
        if initial > 0 {
            let list = pool.list_of_stream(StreamId(0));
            let Some(handle) = pool.take_segment(initial) else {
                let (asked, available) = (Bytes(initial), Bytes(available));
                return Err(SettingsError::DoesNotFit {
                    model: RmmPoolSettings::NAME,
                    key: "initial",
                    asked,
                    available,
                });
            };
            pool.lists[list as usize].present = true;
            pool.insert_free(handle, list);
        }
        Ok(pool)
    }

    fn list_of_stream(&mut self, stream: StreamId) -> u32 {
        let at = self.lists.iter().position(|list| list.stream == stream).unwrap_or_else(|| {
            self.lists.push(List { stream, present: false, free: FreeSet::default() });
            self.lists.len() - 1
        });
        at as u32
    }

    #[inline]
    fn list_of(&mut self, lane: LaneIndex) -> u32 {
        let known = self.lane_lists.get(lane as usize).copied().flatten();
        known.unwrap_or_else(|| {
            let stream = self.streams.get(lane as usize).copied().unwrap_or_default();
            let list = self.list_of_stream(stream);
            if let Some(of_lane) = self.lane_lists.get_mut(lane as usize) {
                *of_lane = Some(list);
            }
            list
        })
    }

    fn take_segment(&mut self, size: u64) -> Option<u32> {
        let addr = self.segments.take(size, &mut self.ledger.stats)?;
        Some(self.chunks.segment(addr, size, BUSY))
    }

    #[inline]
    fn insert_free(&mut self, handle: u32, list: u32) {
        let chunk = self.chunks.get_mut(handle);
        chunk.state = list;
        self.lists[list as usize].free.insert(Entry { size: chunk.size, tie: chunk.addr, block: handle });
    }

    /// Puts a block in a list and merges it with its neighbours there.
    fn insert_merging(&mut self, mut handle: u32, list: u32) {
        let (prev, next) = (self.chunks.get(handle).prev, self.chunks.get(handle).next);
        for neighbour in [next, prev] {
            if neighbour == NONE || self.chunks.get(neighbour).state != list {
                continue;
            }
            let chunk = self.chunks.get(neighbour);
            self.lists[list as usize].free.remove(chunk.size, chunk.addr);
            if neighbour == next {
                self.chunks.absorb_next(handle);
            } else {
                self.chunks.absorb_next(neighbour);
                handle = neighbour;
            }
        }
        self.insert_free(handle, list);
    }

    /// Takes `size` bytes off the block's front; the rest stays free in `list`.
    #[inline]
    fn cut(&mut self, handle: u32, size: u64, list: u32) -> u32 {
        if self.chunks.get(handle).size > size {
            // The rest has no free neighbour in its list: it was part of a block that had none.
            let rest = self.chunks.split(handle, size);
            self.insert_free(rest, list);
        }
        self.chunks.get_mut(handle).state = BUSY;
        handle
    }

    #[inline]
    fn take_from(&mut self, list: u32, size: u64) -> Option<u32> {
        let free = &mut self.lists[list as usize].free;
        let entry = free.at_least(size)?;
        free.remove(entry.size, entry.tie);
        Some(self.cut(entry.block, size, list))
    }

    fn find(&mut self, size: u64, list: u32) -> Option<u32> {
        if let Some(handle) = self.take_from(list, size) {
            return Some(handle);
        }
        self.lists[list as usize].present = true;
        let others = |pool: &Self, other: &u32| *other != list && pool.lists[*other as usize].present;
        for other in 0..self.lists.len() as u32 {
            if others(self, &other)
                && let Some(handle) = self.take_from(other, size)
            {
                self.ledger.stats.driver_ns += EVENT_WAIT_NS;
                return Some(handle);
            }
        }
        for other in 0..self.lists.len() as u32 {
            if !others(self, &other) {
                continue;
            }
            self.ledger.stats.driver_ns += EVENT_WAIT_NS;
            self.lists[other as usize].present = false;
            let moved = std::mem::take(&mut self.lists[other as usize].free);
            // Whatever the order, neighbours end up merged.
            for entry in moved.iter() {
                self.insert_merging(entry.block, list);
            }
            if let Some(handle) = self.take_from(list, size) {
                return Some(handle);
            }
        }
        let handle = self.expand(size)?;
        Some(self.cut(handle, size, list))
    }

    /// Bytes to ask the device for first; less than `size` if `maximum` leaves no room.
    fn growth(&self, size: u64) -> u64 {
        let held = self.ledger.stats.reserved.current;
        let Some(maximum) = self.maximum else { return size.max(held) };
        let left = maximum.saturating_sub(held).div_ceil(UNIT) * UNIT;
        if size <= left { size.max(left / 2) } else { 0 }
    }

    fn expand(&mut self, size: u64) -> Option<u32> {
        let mut attempt = self.growth(size);
        while attempt >= size {
            if let Some(handle) = self.take_segment(attempt) {
                return Some(handle);
            }
            if attempt == size {
                return None;
            }
            attempt = size.max(attempt / 2);
        }
        None
    }
}

impl<D: Device> Allocator for RmmPool<D> {
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom> {
        let rounded = round_up(size.0, UNIT);
        let list = self.list_of(lane);
        let Some(handle) = self.find(rounded, list) else {
            let left = self.maximum.map_or(u64::MAX, |max| max.saturating_sub(self.stats().reserved.current));
            return Err(self.ledger.oom(size, rounded, self.segments.available().min(left)));
        };
        let chunk = self.chunks.get(handle);
        Ok(self.ledger.hold(slot, size, lane, (chunk.addr, chunk.size, handle)))
    }

    fn free_requested(&mut self, slot: Slot) {
        self.ledger.free_requested(slot);
    }

    fn free_completed(&mut self, slot: Slot) {
        let Some(held) = self.ledger.free_completed(slot) else { return };
        let list = self.list_of(held.lane);
        self.lists[list as usize].present = true;
        self.insert_merging(held.handle, list);
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
    use gapless_trace::PoolId;

    const MIB: u64 = 1 << 20;

    fn pool(total: u64, settings: &str) -> RmmPool<SimDevice> {
        let lanes = [0, 7, 9].map(|stream| Lane { stream: StreamId(stream), pool: PoolId::DEFAULT });
        RmmPool::new(SimDevice::new(total), &lanes, &settings.parse().expect("settings")).expect("fits")
    }

    #[test]
    fn half_of_the_card_is_taken_when_the_pool_is_made_and_as_much_again_when_it_is_full() {
        let mut pool = pool(100 * MIB, "");
        assert_eq!(pool.stats().reserved.current, 50 * MIB);
        pool.alloc(0, Bytes(50 * MIB), 0).expect("room");
        pool.alloc(1, Bytes(1), 0).expect("room");
        assert_eq!(pool.stats().reserved.current, 100 * MIB);
        assert!(pool.alloc(2, Bytes(50 * MIB), 0).is_err());
        assert_eq!(pool.stats().ooms, 1);
    }

    #[test]
    fn growth_is_half_of_what_is_left_to_the_maximum_or_the_request() {
        let mut pool = pool(1 << 30, "initial:20MiB,maximum:100MiB");
        pool.alloc(0, Bytes(20 * MIB), 0).expect("room");
        pool.alloc(1, Bytes(1), 0).expect("room");
        assert_eq!(pool.stats().reserved.current, 60 * MIB, "half of 80");
        pool.alloc(2, Bytes(40 * MIB), 0).expect("room");
        assert_eq!(pool.stats().reserved.current, 100 * MIB, "the request, more than half of 40");
        let oom = pool.alloc(3, Bytes(40 * MIB), 0).expect_err("full");
        assert_eq!((oom.asked, oom.free), (Bytes(40 * MIB), Bytes(0)));
    }

    #[test]
    fn growth_backs_off_by_halves_while_the_device_refuses() {
        let mut pool = pool(64 * MIB, "initial:40MiB");
        pool.alloc(0, Bytes(40 * MIB), 0).expect("room");
        pool.alloc(1, Bytes(MIB), 0).expect("room");
        assert_eq!(pool.stats().reserved.current, 60 * MIB, "40 more is refused, 20 is not");
        pool.alloc(2, Bytes(20 * MIB), 0).expect_err("19 + 4 free, in two pieces");
        pool.alloc(2, Bytes(19 * MIB), 0).expect("room");
        pool.alloc(3, Bytes(3 * MIB), 0).expect("60 is refused, so are 30, 15, 7.5; 3.75 is not");
        assert_eq!(pool.stats().reserved.current, 60 * MIB + 60 * MIB / 16);
    }

    #[test]
    fn a_stream_uses_its_own_blocks_then_takes_those_of_others() {
        let mut pool = pool(64 * MIB, "initial:32MiB,maximum:32MiB");
        let a = pool.alloc(0, Bytes(MIB), 1).expect("taken from the default stream's list");
        assert_eq!(pool.stats().driver_ns, crate::cost::malloc(32 * MIB) + EVENT_WAIT_NS);
        pool.free(0);
        let b = pool.alloc(1, Bytes(MIB), 0).expect("room");
        assert_eq!(b.0, a.0 + MIB, "the default stream has the rest; what stream 7 gave back is not there");
        assert_eq!(pool.alloc(2, Bytes(MIB / 2), 1), Ok(a), "its own");
        assert_eq!(pool.alloc(3, Bytes(30 * MIB), 2).map(|c| c.0), Ok(b.0 + MIB));
        assert_eq!(
            pool.alloc(4, Bytes(MIB / 2), 2).map(|c| c.0),
            Ok(a.0 + MIB / 2),
            "the rest stayed with stream 7"
        );
    }

    #[test]
    fn lists_are_merged_when_no_single_one_has_a_block() {
        let mut pool = pool(64 * MIB, "initial:32MiB,maximum:32MiB");
        let a = pool.alloc(0, Bytes(16 * MIB), 1).expect("room");
        pool.alloc(1, Bytes(16 * MIB), 0).expect("room");
        pool.free(0);
        pool.free(1);
        assert_eq!(pool.alloc(2, Bytes(32 * MIB), 1), Ok(a), "neighbours in two lists become one block");
        assert_eq!(pool.stats().segments.current, 1);
        let before = pool.stats().driver_ns;
        pool.alloc(3, Bytes(MIB), 2).expect_err("full");
        let waits = |pool: &RmmPool<SimDevice>| (pool.stats().driver_ns - before) / EVENT_WAIT_NS;
        assert_eq!(
            waits(&pool),
            1,
            "stream 7 has the only other list, if an empty one; it is merged into 9's"
        );
        pool.alloc(3, Bytes(MIB), 2).expect_err("full");
        assert_eq!(waits(&pool), 1, "no other list is left");
    }

    #[test]
    fn what_cannot_be_had_is_refused_when_the_pool_is_made() {
        let new = |text: &str| {
            let settings = text.parse::<RmmPoolSettings>()?;
            RmmPool::new(SimDevice::new(MIB), &[], &settings).map(|_| ())
        };
        assert_eq!(new("initial:1MiB"), Ok(()));
        let message = |text: &str| new(text).expect_err("refused").to_string();
        assert!(message("initial:2MiB").contains("initial is 2.00 MiB, but the card has 1.00 MiB to give"));
        assert!(
            message("maximum:256B").contains("more than maximum, 256 B"),
            "the default is more than that"
        );
        assert!(message("initial:100B").contains("a multiple of 256"));
        assert!(message("size:1").contains("it has initial, maximum"));
    }
}
