//! RMM's `arena_memory_resource`: one piece of device memory in superblocks, which a global arena lends to an arena for
//! each stream.
//!
//! Up to 1 MiB, the lowest free block of the stream's arena that is large enough serves a request; if it has none, it
//! takes the first superblock of the global arena that has one, or 1 MiB off its front if that is wholly free and
//! leaves another 1 MiB. Larger ones are served by the global arena, in a superblock cut to their size. Free blocks
//! merge within their superblock, wholly free superblocks in the global arena. When a request finds nothing, all
//! streams are waited for, every arena returns all it has, and it is tried once more. `size` bytes are taken when the
//! arena is made, by default half of the card's free bytes, and never more. Waits for one stream (each large free has
//! one) are not counted. Left out: arenas for threads (for the per-thread default stream), and size classes, which RMM
//! leaves out too unless it is built with them.

use crate::allocator::{Allocator, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
use crate::device::Device;
use crate::models::chunks::{Chunks, NONE};
use crate::models::first_fit::{FirstFit, Free};
use crate::models::ledger::{Ledger, round_up};
use crate::models::recipe::Recipe;
use crate::models::rmm_pool::UNIT;
use crate::models::segments::Segments;
use crate::models::settings::{Keys, SettingsError, settings};
use gapless_trace::{Bytes, DeviceAddr, StreamId};
use std::collections::BTreeMap;
use std::str::FromStr;

/// The smallest superblock, and the largest request of a stream's arena.
const SUPERBLOCK: u64 = 1 << 20;
/// The arena that lends to the others.
const GLOBAL: u32 = 0;

const BUSY: u32 = 0;
const FREE: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RmmArenaSettings {
    /// Bytes that the arena takes when it is made; none: half of the card's free bytes.
    pub size: Option<u64>,
}

impl Recipe for RmmArenaSettings {
    const NAME: &'static str = "rmm-arena";
    const ABOUT: &'static str = "RMM's arenas in half of the card";
    const KEYS: Keys = &[("size", "10GiB")];

    fn build<D: Device + 'static>(
        &self,
        device: D,
        lanes: &[Lane],
    ) -> Result<Box<dyn Allocator>, SettingsError> {
        Ok(Box::new(RmmArena::new(device, lanes, self)?))
    }

    fn takes_a_share(&self) -> bool {
        self.size.is_none()
    }
}

impl FromStr for RmmArenaSettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<RmmArenaSettings, SettingsError> {
        let mut parsed = RmmArenaSettings::default();
        for setting in settings(Self::NAME, Self::KEYS, text)? {
            let bytes = setting
                .bytes("a size with its unit, at least 1 MiB, such as 10GiB", |bytes| bytes >= SUPERBLOCK)?;
            parsed.size = Some(bytes);
        }
        Ok(parsed)
    }
}

/// A superblock: chunks that follow each other and have it as their group.
#[derive(Clone, Copy, Debug)]
struct Superblock {
    arena: u32,
    /// The chunk at its start, the same for life.
    first: u32,
    size: u64,
    /// Bytes in use; it is empty at 0, and then one chunk.
    used: u64,
}

#[derive(Clone, Debug, Default)]
struct Arena {
    free: FirstFit,
    /// Superblocks by address. Kept for the arenas of streams only, which return them all at once.
    superblocks: BTreeMap<u64, u32>,
}

#[derive(Clone, Debug)]
pub struct RmmArena<D> {
    ledger: Ledger,
    segments: Segments<D>,
    chunks: Chunks,
    superblocks: Vec<Superblock>,
    unused: Vec<u32>,
    /// The global one, then one for each stream.
    arenas: Vec<Arena>,
    lane_arenas: Vec<u32>,
}

impl<D: Device> RmmArena<D> {
    /// # Errors
    /// When the card cannot give `size` bytes, or it is less than 1 MiB.
    pub fn new(device: D, lanes: &[Lane], settings: &RmmArenaSettings) -> Result<RmmArena<D>, SettingsError> {
        let mut streams: Vec<StreamId> = Vec::new();
        let mut lane_arenas = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let at = streams.iter().position(|&stream| stream == lane.stream).unwrap_or(streams.len());
            if at == streams.len() {
                streams.push(lane.stream);
            }
            lane_arenas.push(at as u32 + 1);
        }
        let mut heap = RmmArena {
            ledger: Ledger::default(),
            segments: Segments::new(device),
            chunks: Chunks::default(),
            superblocks: Vec::new(),
            unused: Vec::new(),
            arenas: vec![Arena::default(); streams.len().max(1) + 1],
            lane_arenas,
        };
        let available = heap.segments.available();
        let size = settings.size.unwrap_or(available / 2) / UNIT * UNIT;
        let refused = || {
            let (asked, available) = (Bytes(size.max(SUPERBLOCK)), Bytes(available));
            SettingsError::DoesNotFit { model: RmmArenaSettings::NAME, key: "size", asked, available }
        };
        if size < SUPERBLOCK {
            return Err(refused());
        }
        let addr = heap.segments.take(size, &mut heap.ledger.stats).ok_or_else(refused)?;
        let first = heap.chunks.segment(addr, size, FREE);
        heap.superblocks.push(Superblock { arena: GLOBAL, first, size, used: 0 });
        heap.insert_free(first);
        Ok(heap)
    }

    fn free_entry(&self, handle: u32) -> Free {
        let chunk = self.chunks.get(handle);
        Free { addr: chunk.addr, size: chunk.size, chunk: handle }
    }

    /// The free blocks of the arena that has the chunk.
    #[inline]
    fn index_of(&mut self, handle: u32) -> &mut FirstFit {
        let arena = self.superblocks[self.chunks.get(handle).group as usize].arena;
        &mut self.arenas[arena as usize].free
    }

    fn insert_free(&mut self, handle: u32) {
        let free = self.free_entry(handle);
        self.index_of(handle).insert(free);
    }

    /// Takes `size` bytes off the front of a free block.
    #[inline]
    fn cut(&mut self, free: Free, size: u64) -> u32 {
        let handle = free.chunk;
        if free.size > size {
            let rest = self.chunks.split(handle, size);
            let rest = self.free_entry(rest);
            self.index_of(handle).update(free.addr, rest);
        } else {
            self.index_of(handle).remove(free.addr);
        }
        let chunk = self.chunks.get_mut(handle);
        chunk.state = BUSY;
        self.superblocks[chunk.group as usize].used += size;
        handle
    }

    /// The lowest block of the global arena with `size` bytes. If its superblock was wholly free, it is cut to that
    /// size, at least 1 MiB.
    fn find_superblock(&mut self, size: u64) -> Option<Free> {
        let free = self.arenas[GLOBAL as usize].free.find(size)?;
        let group = self.chunks.get(free.chunk).group;
        let superblock = self.superblocks[group as usize];
        let head = size.max(SUPERBLOCK);
        if superblock.used > 0 || superblock.size < head.saturating_add(SUPERBLOCK) {
            return Some(free);
        }
        let tail = self.chunks.split(free.chunk, head);
        let rest = Superblock { arena: GLOBAL, first: tail, size: superblock.size - head, used: 0 };
        let rest = if let Some(group) = self.unused.pop() {
            self.superblocks[group as usize] = rest;
            group
        } else {
            self.superblocks.push(rest);
            (self.superblocks.len() - 1) as u32
        };
        self.chunks.get_mut(tail).group = rest;
        self.superblocks[group as usize].size = head;
        let free = Free { size: head, ..free };
        self.arenas[GLOBAL as usize].free.update(free.addr, free);
        self.insert_free(tail);
        Some(free)
    }

    /// Moves a superblock and its free blocks to another arena.
    fn move_to(&mut self, group: u32, arena: u32) {
        let Superblock { arena: from, first, .. } = self.superblocks[group as usize];
        self.superblocks[group as usize].arena = arena;
        let mut handle = first;
        while handle != NONE && self.chunks.get(handle).group == group {
            if self.chunks.get(handle).state == FREE {
                let free = self.free_entry(handle);
                self.arenas[from as usize].free.remove(free.addr);
                self.arenas[arena as usize].free.insert(free);
            }
            handle = self.chunks.get(handle).next;
        }
    }

    fn find(&mut self, size: u64, arena: u32) -> Option<u32> {
        if size > SUPERBLOCK {
            let free = self.find_superblock(size)?;
            return Some(self.cut(free, size));
        }
        if let Some(free) = self.arenas[arena as usize].free.find(size) {
            return Some(self.cut(free, size));
        }
        let free = self.find_superblock(size)?;
        let group = self.chunks.get(free.chunk).group;
        self.move_to(group, arena);
        let start = self.chunks.get(self.superblocks[group as usize].first).addr;
        self.arenas[arena as usize].superblocks.insert(start, group);
        Some(self.cut(free, size))
    }

    fn is_empty_and_global(&self, group: u32) -> bool {
        let superblock = self.superblocks[group as usize];
        superblock.arena == GLOBAL && superblock.used == 0
    }

    /// Merges a superblock of the global arena with its neighbours there, if all are empty.
    fn merge_superblock(&mut self, mut group: u32) {
        if !self.is_empty_and_global(group) {
            return;
        }
        // An empty superblock is one chunk, so that chunk's neighbours are the superblock's.
        let chunk = *self.chunks.get(self.superblocks[group as usize].first);
        for neighbour in [chunk.next, chunk.prev] {
            if neighbour == NONE {
                continue;
            }
            let other = self.chunks.get(neighbour).group;
            if !self.is_empty_and_global(other) {
                continue;
            }
            let (lower, upper) = if neighbour == chunk.next { (group, other) } else { (other, group) };
            let gone = self.superblocks[upper as usize];
            let gone_addr = self.chunks.get(gone.first).addr;
            self.arenas[GLOBAL as usize].free.remove(gone_addr);
            let kept = &mut self.superblocks[lower as usize];
            kept.size += gone.size;
            let first = kept.first;
            self.chunks.absorb_next(first);
            let whole = self.free_entry(first);
            self.arenas[GLOBAL as usize].free.update(whole.addr, whole);
            self.unused.push(upper);
            group = lower;
        }
    }

    /// Every arena returns its superblocks, in use or not.
    fn defragment(&mut self) {
        self.ledger.stats.syncs += 1;
        for arena in 1..self.arenas.len() {
            for group in std::mem::take(&mut self.arenas[arena].superblocks).into_values() {
                self.move_to(group, GLOBAL);
                self.merge_superblock(group);
            }
        }
    }

    #[cold]
    fn find_after_defragmenting(&mut self, size: u64, arena: u32) -> Option<u32> {
        self.defragment();
        let handle = self.find(size, arena)?;
        self.ledger.stats.retries += 1;
        Some(handle)
    }
}

impl<D: Device> Allocator for RmmArena<D> {
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom> {
        let rounded = round_up(size.0, UNIT);
        let arena = self.lane_arenas.get(lane as usize).copied().unwrap_or(1);
        let found = self.find(rounded, arena).or_else(|| self.find_after_defragmenting(rounded, arena));
        // It never asks the device again, so it has nothing beyond the bytes that it holds.
        let Some(handle) = found else { return Err(self.ledger.oom(size, rounded, 0)) };
        let chunk = self.chunks.get(handle);
        Ok(self.ledger.hold(slot, size, lane, (chunk.addr, chunk.size, handle)))
    }

    fn free_requested(&mut self, slot: Slot) {
        self.ledger.free_requested(slot);
    }

    fn free_completed(&mut self, slot: Slot) {
        let Some(held) = self.ledger.free_completed(slot) else { return };
        let handle = held.handle;
        let chunk = self.chunks.get_mut(handle);
        chunk.state = FREE;
        let (group, prev, next) = (chunk.group, chunk.prev, chunk.next);
        self.superblocks[group as usize].used -= held.size;
        let joins = |chunks: &Chunks, other: u32| {
            other != NONE && chunks.get(other).state == FREE && chunks.get(other).group == group
        };
        let (with_prev, with_next) = (joins(&self.chunks, prev), joins(&self.chunks, next));
        let next_addr = if with_next { self.chunks.get(next).addr } else { 0 };
        if with_next {
            self.chunks.absorb_next(handle);
        }
        if with_prev {
            self.chunks.absorb_next(prev);
            let whole = self.free_entry(prev);
            let index = self.index_of(prev);
            if with_next {
                index.remove(next_addr);
            }
            index.update(whole.addr, whole);
        } else {
            let whole = self.free_entry(handle);
            let index = self.index_of(handle);
            if with_next {
                index.update(next_addr, whole);
            } else {
                index.insert(whole);
            }
        }
        self.merge_superblock(group);
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

    fn arena(total: u64, settings: &str) -> RmmArena<SimDevice> {
        let lanes = [0, 7, 9].map(|stream| Lane { stream: StreamId(stream), pool: PoolId::DEFAULT });
        RmmArena::new(SimDevice::new(total), &lanes, &settings.parse().expect("settings")).expect("fits")
    }

    #[test]
    fn half_of_the_card_is_all_there_ever_is() {
        let mut heap = arena(64 * MIB, "");
        assert_eq!(heap.stats().reserved.current, 32 * MIB);
        heap.alloc(0, Bytes(32 * MIB), 0).expect("room");
        assert_eq!(heap.alloc(1, Bytes(1), 0).expect_err("full").free, Bytes(0));
        assert_eq!((heap.stats().ooms, heap.stats().syncs, heap.stats().retries), (1, 1, 0));
        heap.free(0);
        heap.empty_cache(None);
        assert_eq!(heap.stats().reserved.current, 32 * MIB);
    }

    #[test]
    fn a_stream_takes_superblocks_of_1_mib_and_keeps_them() {
        let mut heap = arena(64 * MIB, "size:16MiB");
        let a = heap.alloc(0, Bytes(256), 0).expect("room");
        let b = heap.alloc(1, Bytes(256), 1).expect("room");
        let c = heap.alloc(2, Bytes(256), 0).expect("room");
        assert_eq!((b.0 - a.0, c.0 - a.0), (MIB, 256));
        let d = heap.alloc(3, Bytes(MIB + 1), 0).expect("room");
        assert_eq!(d.0 - a.0, 2 * MIB, "more than 1 MiB is served by the global arena");
        let e = heap.alloc(4, Bytes(MIB), 0).expect("room");
        assert_eq!(e.0 - d.0, MIB + 256, "1 MiB by the stream's");
        heap.free(1);
        let f = heap.alloc(5, Bytes(256), 2).expect("room");
        assert!(f > e, "what stream 7 has free stays with it: {f}");
    }

    #[test]
    fn the_lowest_free_block_serves_whatever_its_size() {
        let mut heap = arena(64 * MIB, "size:16MiB");
        let a = heap.alloc(0, Bytes(4096), 0).expect("room");
        heap.alloc(1, Bytes(256), 0).expect("room");
        let c = heap.alloc(2, Bytes(512), 0).expect("room");
        heap.alloc(3, Bytes(256), 0).expect("room");
        heap.free(0);
        heap.free(2);
        assert_eq!(heap.alloc(4, Bytes(512), 0), Ok(a), "first fit, though {c} fits exactly");
    }

    #[test]
    fn a_request_that_finds_nothing_makes_all_arenas_return_their_superblocks() {
        let mut heap = arena(64 * MIB, "size:4MiB");
        for slot in 0..4 {
            heap.alloc(slot, Bytes(256), slot as u16 % 3).expect("room");
        }
        heap.alloc(4, Bytes(MIB), 0).expect("room");
        (0..5).for_each(|slot| heap.free(slot));
        heap.alloc(5, Bytes(4 * MIB), 1).expect("room, once all is returned and merged");
        assert_eq!((heap.stats().retries, heap.stats().syncs), (1, 1));
        heap.free(5);
        assert_eq!(heap.inventory().largest_hole, Bytes(4 * MIB));
    }

    #[test]
    fn a_remainder_below_1_mib_stays_in_its_superblock_and_serves_small_requests() {
        let mut heap = arena(64 * MIB, "size:4MiB");
        let a = heap.alloc(0, Bytes(4 * MIB - 512 * 1024), 0).expect("room");
        let b = heap
            .alloc(1, Bytes(256), 0)
            .expect("the superblock goes to the stream's arena, large block and all");
        assert_eq!(b.0 - a.0, 4 * MIB - 512 * 1024);
        heap.free(0);
        assert_eq!(heap.alloc(2, Bytes(256), 0), Ok(a), "freed into the stream's arena");
        heap.alloc(3, Bytes(2 * MIB), 0).expect("after a retry");
        assert_eq!(heap.stats().retries, 1);
    }
}
