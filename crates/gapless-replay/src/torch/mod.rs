//! PyTorch's CUDA caching allocator, to the byte: given the device's addresses, every block lands where the real one
//! puts it.
//!
//! The flow of a request, the order of fallbacks and the statistics are those of the shipped library; `cargo xtask
//! test-torch` drives that library with random operations and compares every address and number. GPU time is not
//! modelled: the caller says when a block that another stream used becomes free.

mod blocks;
pub mod conf;
mod exact;
mod frees;
pub mod pools;
mod release;
mod requests;
pub mod reserve;
mod segments;
pub mod version;
pub mod view;

use self::blocks::{Block, Blocks, NONE, State};
pub use self::conf::{ConfError, TorchSettings};
pub use self::exact::Exact;
use self::pools::PoolReserved;
use self::version::Ties;
pub use self::version::{TorchVersion, beyond_the_model, settings_variable};
use crate::allocator::{Allocator, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
use crate::device::Device;
use crate::free_set::{Entry, FreeSet};
use crate::script::InitialSegment;
use gapless_trace::torch_rules;
use gapless_trace::{Bytes, DeviceAddr, PoolId};
use std::collections::{BTreeMap, BTreeSet};

/// The free blocks of one stream in one half of a pool.
#[derive(Clone, Debug)]
struct Shelf {
    stream: u64,
    pool: u16,
    small: bool,
    free: FreeSet,
    /// Addresses without memory, in address order.
    unmapped: BTreeMap<u64, u32>,
}

/// The default pool, or a private one of a graph or the user.
#[derive(Clone, Debug)]
struct Pool {
    id: PoolId,
    /// Its shelves by stream handle, the large half and the small one.
    shelves: [Vec<u16>; 2],
    /// Searches of each half while collection was possible.
    searches: [u64; 2],
    /// Successful calls for memory less calls that gave some back.
    device_count: i64,
    /// True if no program uses it any more: its cached memory may be given back.
    freeable: bool,
    /// Reserved bytes of private pools; the default pool's stays empty.
    reserved: PoolReserved,
}

/// An action of the allocator beyond handing out and taking back: for comparisons with the real one's own trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    pub kind: NoteKind,
    pub addr: u64,
    pub size: u64,
    pub stream: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteKind {
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
}

/// The allocator.
#[derive(Clone, Debug)]
pub struct Torch<D> {
    settings: TorchSettings,
    version: TorchVersion,
    device: D,
    /// The most it may hold; `None` if no fraction is set.
    cap: Option<u64>,
    blocks: Blocks,
    shelves: Vec<Shelf>,
    pools: Vec<Pool>,
    /// The large and the small shelf of each lane.
    lanes: Vec<[u16; 2]>,
    slots: Vec<u32>,
    /// First addresses of expandable ranges.
    ranges: BTreeSet<u64>,
    pending: Vec<Slot>,
    /// True if the next calls hold back; `None`: as their pool suggests.
    capturing: Option<bool>,
    /// Classes of streams, for the length of their expandable ranges.
    classes: BTreeMap<u64, String>,
    stats: Stats,
    /// Kept only on demand.
    notes: Option<Vec<Note>>,
}

impl<D: Device> Torch<D> {
    /// `lanes` are the streams and pools that requests will name.
    pub fn new(settings: TorchSettings, version: TorchVersion, device: D, lanes: &[Lane]) -> Torch<D> {
        let mut torch = Torch {
            cap: None,
            settings,
            version,
            device,
            blocks: Blocks::default(),
            shelves: Vec::new(),
            pools: Vec::new(),
            lanes: Vec::with_capacity(lanes.len()),
            slots: Vec::new(),
            ranges: BTreeSet::new(),
            pending: Vec::new(),
            capturing: None,
            classes: BTreeMap::new(),
            stats: Stats::default(),
            notes: None,
        };
        torch.pool(PoolId::DEFAULT);
        for lane in lanes {
            torch.add_lane(*lane);
        }
        if let Some(fraction) = torch.settings.fraction {
            torch.set_fraction(fraction);
        }
        torch
    }

    fn pool(&mut self, id: PoolId) -> u16 {
        if let Some(at) = self.pools.iter().position(|p| p.id == id) {
            return at as u16;
        }
        let shelves = [Vec::new(), Vec::new()];
        let reserved = PoolReserved::default();
        self.pools.push(Pool { id, shelves, searches: [0; 2], device_count: 0, freeable: false, reserved });
        (self.pools.len() - 1) as u16
    }

    fn shelf(&mut self, lane: Lane, small: bool) -> u16 {
        let pool = self.pool(lane.pool);
        let stream = lane.stream.0;
        let half = &self.pools[pool as usize].shelves[usize::from(small)];
        let place = half.binary_search_by_key(&stream, |&s| self.shelves[s as usize].stream);
        match place {
            Ok(at) => half[at],
            Err(at) => {
                let id = self.shelves.len() as u16;
                let (free, unmapped) = (FreeSet::default(), BTreeMap::new());
                self.shelves.push(Shelf { stream, pool, small, free, unmapped });
                self.pools[pool as usize].shelves[usize::from(small)].insert(at, id);
                id
            }
        }
    }

    /// One more stream and pool that requests may name.
    pub fn add_lane(&mut self, lane: Lane) -> LaneIndex {
        let halves = [self.shelf(lane, false), self.shelf(lane, true)];
        self.lanes.push(halves);
        (self.lanes.len() - 1) as LaneIndex
    }

    /// `torch.cuda.set_per_process_memory_fraction`.
    pub fn set_fraction(&mut self, fraction: f64) {
        // Since 2.10 all of the card is no cap; before, it is one of that size, and turns collection on.
        let caps = fraction < 1.0 || !self.version.has_fraction_setting();
        let share = fraction * self.device.total() as f64;
        let whole = if self.version.rounds_the_cap() { share.round() } else { share };
        self.cap = caps.then_some(whole as u64);
    }

    /// Holds at most `cap` bytes, as a fraction of the card would make it.
    pub fn set_cap(&mut self, cap: Option<u64>) {
        self.cap = cap;
    }

    /// Sets whether the next calls come during a capture: a failing request then does not wait for streams and leaves
    /// the caches alone, and so does `empty_cache`. From 2.13 on the calling thread's stream decides that; before, any
    /// active routing to a private pool has the same effect. A recording holds no captures; for `None` the pool of a
    /// request decides ([`TorchVersion::holds_back_in`]).
    pub fn set_capturing(&mut self, capturing: Option<bool>) {
        self.capturing = capturing;
    }

    fn holds_back(&self, shelf: u16) -> bool {
        self.capturing.unwrap_or_else(|| {
            let pool = self.shelves[shelf as usize].pool;
            self.version.holds_back_in(self.pools[pool as usize].id)
        })
    }

    /// Gives a stream a class, for `expandable_segments_reserve_by_class`; an empty name takes it away.
    pub fn set_reserve_class(&mut self, stream: u64, class: &str) {
        self.classes.insert(stream, class.to_owned());
    }

    /// A private pool is used again, or for the first time.
    pub fn use_pool(&mut self, pool: PoolId) {
        let at = self.pool(pool);
        self.pools[at as usize].freeable = false;
    }

    /// True for a private pool that no program uses and that still holds memory.
    #[must_use]
    pub fn is_freeable(&self, pool: PoolId) -> bool {
        self.pools.iter().any(|p| p.id == pool && p.freeable)
    }

    /// Sets the order in which a wait for all streams completes pending blocks: by `rank`. The real one's is that of a
    /// hash table.
    pub fn order_pending(&mut self, rank: impl Fn(&Torch<D>, Slot) -> usize) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_by_key(|&slot| rank(self, slot));
        self.pending = pending;
    }

    /// The identity of the block object behind `slot`: it stays with the object through splits and merges.
    #[must_use]
    pub fn object(&self, slot: Slot) -> Option<u64> {
        let id = *self.slots.get(slot as usize)?;
        (id != NONE).then(|| self.blocks[id].order)
    }

    pub fn keep_notes(&mut self) {
        self.notes = Some(Vec::new());
    }

    pub fn take_notes(&mut self) -> Vec<Note> {
        self.notes.replace(Vec::new()).unwrap_or_default()
    }

    pub fn device(&self) -> &D {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    pub fn reset_peaks(&mut self) {
        let s = &mut self.stats;
        for gauge in [
            &mut s.allocations,
            &mut s.allocated,
            &mut s.requested,
            &mut s.active_blocks,
            &mut s.active,
            &mut s.segments,
            &mut s.reserved,
            &mut s.inactive_split_blocks,
            &mut s.inactive_split,
            &mut s.oversize_allocations,
            &mut s.oversize_segments,
        ] {
            gauge.peak = gauge.current;
        }
        self.pools.iter_mut().for_each(|pool| pool.reserved.reset_peaks());
    }

    /// Counters start again from zero, as `reset_accumulated_memory_stats` has it.
    pub fn reset_counts(&mut self) {
        let s = &mut self.stats;
        for counter in [&mut s.retries, &mut s.ooms, &mut s.syncs, &mut s.device_allocs, &mut s.device_frees]
        {
            *counter = 0;
        }
        self.pools.iter_mut().for_each(|pool| pool.reserved.reset_totals());
    }

    /// The block of `slot`: address and size.
    #[must_use]
    pub fn block(&self, slot: Slot) -> Option<(u64, u64)> {
        let id = *self.slots.get(slot as usize)?;
        (id != NONE).then(|| (self.blocks[id].addr, self.blocks[id].size))
    }

    fn note(&mut self, kind: NoteKind, addr: u64, size: u64, shelf: u16) {
        if let Some(notes) = &mut self.notes {
            let stream = self.shelves[shelf as usize].stream;
            notes.push(Note { kind, addr, size, stream });
        }
    }

    /// Takes over a segment that was there before the first request. Expandable stretches of one lane come in address
    /// order.
    pub fn install(&mut self, segment: &InitialSegment) {
        let shelf = self.shelf(segment.lane, segment.small);
        let (addr, size) = (segment.addr.0, segment.size.0);
        let whole = self.blocks.add_segment(addr, size, shelf, segment.expandable);
        if segment.expandable {
            self.install_range(whole);
        } else {
            self.stats.segments.add(1);
        }
        self.took(shelf, size);
        let mut rest = whole;
        let mut gaps = Vec::new();
        for block in &segment.blocks {
            if block.addr.0 > self.blocks[rest].addr {
                gaps.push(self.cut_front(rest, block.addr.0 - self.blocks[rest].addr));
            }
            let mut id = rest;
            if block.size.0 < self.blocks[rest].size {
                id = self.cut_front(rest, block.size.0);
            } else {
                rest = NONE;
            }
            self.hand_out(id, block.slot, block.requested.0);
            if block.pending {
                self.free_requested(block.slot);
            }
        }
        gaps.extend(Some(rest).filter(|&id| id != NONE));
        for id in gaps {
            self.put(id);
            let gap = &self.blocks[id];
            if gap.is_split() && !gap.expandable {
                self.stats.inactive_split_blocks.add(1);
                self.stats.inactive_split.add(gap.size);
            }
        }
    }

    /// Cuts the first `size` bytes off a block that is in no set.
    fn cut_front(&mut self, rest: u32, size: u64) -> u32 {
        let whole = self.blocks[rest];
        let front = self.blocks.add(whole.addr, size, whole.shelf, whole.expandable, whole.place);
        self.blocks[rest].addr += size;
        self.blocks[rest].size -= size;
        self.blocks.link(whole.prev, front, rest);
        front
    }

    // ---- the sets ----

    #[inline]
    fn entry(&self, id: u32) -> Entry {
        let block = &self.blocks[id];
        let tie = match self.version.ties() {
            Ties::Address => block.addr,
            Ties::Creation => block.order,
            Ties::Segment => self.blocks.in_segments(id),
        };
        Entry { size: block.size, tie, block: id }
    }

    /// Puts a block into its shelf's free set.
    #[inline]
    fn put(&mut self, id: u32) {
        let entry = self.entry(id);
        let shelf = &mut self.shelves[self.blocks[id].shelf as usize];
        self.blocks[id].state = State::Free;
        self.blocks[id].free_since = self.pools[shelf.pool as usize].searches[usize::from(shelf.small)];
        shelf.free.insert(entry);
    }

    /// Takes a block out of its shelf's free set.
    #[inline]
    fn take(&mut self, id: u32) {
        let entry = self.entry(id);
        self.shelves[self.blocks[id].shelf as usize].free.remove(entry.size, entry.tie);
    }

    fn put_unmapped(&mut self, id: u32) {
        let block = &mut self.blocks[id];
        block.state = State::Unmapped;
        let (addr, shelf) = (block.addr, block.shelf);
        self.shelves[shelf as usize].unmapped.insert(addr, id);
    }

    fn take_unmapped(&mut self, id: u32) {
        let Block { addr, shelf, .. } = self.blocks[id];
        self.shelves[shelf as usize].unmapped.remove(&addr);
    }

    /// True if requests of this shelf may use expandable memory.
    #[inline]
    fn expandable(&self, shelf: u16) -> bool {
        self.settings.base.expandable_segments
            && (self.version.has_expandable_pools() || self.shelves[shelf as usize].pool == 0)
    }

    /// Collection looks at ages only under a cap.
    #[inline]
    fn collects(&self) -> bool {
        self.settings.base.garbage_collection_threshold > 0.0
            && (self.cap.is_some() || self.device.expects_free().is_some())
    }
}

impl<D: Device> Allocator for Torch<D> {
    #[inline]
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom> {
        let rounded = torch_rules::round_size(size, &self.settings.base);
        let shelf = self.lanes[lane as usize][usize::from(torch_rules::is_small(rounded))];
        let found = match self.search(shelf, rounded.0) {
            Some(id) => id,
            None => self.miss(shelf, rounded.0, size)?,
        };
        Ok(self.place(found, slot, size.0, rounded.0))
    }

    fn free_requested(&mut self, slot: Slot) {
        if let Some(id) = self.live_block(slot) {
            self.caller_gave_back(id);
            self.blocks[id].state = State::Pending;
            self.pending.push(slot);
            // Completed ones stay in the list until it is worth a sweep.
            if self.pending.len() > 64 && self.pending.len() as u64 > 2 * self.stats.active_blocks.current {
                let pending = std::mem::take(&mut self.pending);
                self.pending = pending.into_iter().filter(|&s| self.pending_block(s).is_some()).collect();
            }
        }
    }

    fn free_completed(&mut self, slot: Slot) {
        // A wait for all streams may have come first.
        if let Some(id) = self.pending_block(slot) {
            self.complete(id);
        }
    }

    #[inline]
    fn free(&mut self, slot: Slot) {
        if let Some(id) = self.live_block(slot) {
            self.caller_gave_back(id);
            self.complete(id);
        }
    }

    fn empty_cache(&mut self, pool: Option<PoolId>) {
        self.release_cached(pool);
    }

    fn release_pool(&mut self, pool: PoolId) {
        if let Some(pool) = self.pools.iter_mut().find(|p| p.id == pool && p.id.is_private()) {
            pool.freeable = true;
        }
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn inventory(&self) -> Inventory {
        let mut blocks = Vec::new();
        let mut mapped: Vec<&Block> = self.blocks.iter().filter(|b| b.state != State::Unmapped).collect();
        mapped.sort_unstable_by_key(|b| b.addr);
        // A block without a mapped neighbour before it begins a segment.
        let mut spans: Vec<(DeviceAddr, Bytes)> = Vec::new();
        for block in mapped {
            let begins = block.prev == NONE || self.blocks[block.prev].state == State::Unmapped;
            match spans.last_mut() {
                Some(span) if !begins => span.1 += Bytes(block.size),
                _ => spans.push((DeviceAddr(block.addr), Bytes(block.size))),
            }
            if block.state != State::Free {
                blocks.push((block.slot, DeviceAddr(block.addr), Bytes(block.size)));
            }
        }
        Inventory::of(spans, blocks)
    }
}
