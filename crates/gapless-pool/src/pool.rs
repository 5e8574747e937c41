//! The allocator of one device: heaps by lane and size class, and what happens when none of their blocks fits.
//!
//! Requests are served best fit from their lane's heap. When nothing fits, enough memory is usually free all the same, in pieces. Pages that are
//! wholly free are then **harvested**: mapped a second time, side by side, at the addresses of a *window*, while at home their addresses count
//! as taken. Nothing is unmapped or copied, and nothing waits. A window stays mapped after its allocation is freed, so the next request of
//! its size needs no driver call at all if its pages are free then; in a loop of equal steps that is soon always so. New memory is
//! taken from the device only for what is really missing.
//!
//! Streams: a lane's memory is used in the order of its stream. A page lent to another lane is handed over behind an event on the device,
//! and handed back when an event says that the borrower's work is done.

use crate::blocks::State;
use crate::device::{Device, DeviceError, EventHandle, StreamHandle};
use crate::free_set::{Entry, FreeSet};
use crate::heap::{GRANULE, Heap};
use crate::options::Options;
use crate::stats::Stats;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// The unit of block sizes.
pub const UNIT: u64 = 512;
/// Requests up to this size have heaps of their own: they would pin the pages of large ones.
pub const SMALL: u64 = 1 << 20;
/// Addresses of a heap and of windows: reserved in one piece, they cost nothing.
const RANGE: u64 = 512 << 30;
/// A larger request is refused without asking the device.
const LARGEST: u64 = 1 << 50;
/// Cached windows that are looked at for one request.
const TRIES: usize = 24;

/// Which private pool; 0 is the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey(pub u64, pub u64);

impl PoolKey {
    #[must_use]
    pub fn is_private(self) -> bool {
        self != PoolKey(0, 0)
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// There is no memory for it: what was asked for, and what the device said last.
    OutOfMemory { size: u64, device: DeviceError },
}

/// Why a free was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// Nothing was allocated at this address.
    Unknown { addr: u64 },
    /// It was given back already and waits for other streams.
    Twice { addr: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    stream: StreamHandle,
    pool: PoolKey,
    /// Heaps of small and of large requests.
    small: u32,
    large: u32,
}

/// Where an allocation lies.
#[derive(Clone, Debug)]
enum Place {
    /// In a block of its lane's heap.
    Home { heap: u32, block: u32 },
    /// In a window, over blocks of one or more heaps.
    Window { window: u32, parts: Vec<(u32, u32)> },
}

#[derive(Clone, Debug)]
struct Allocation {
    addr: u64,
    size: u64,
    requested: u64,
    lane: u32,
    place: Place,
    /// Other streams that use it.
    uses: Vec<StreamHandle>,
    /// Events that must pass before it can be used again; only after it was given back.
    waits: u32,
}

/// A second range of addresses for pages, side by side.
#[derive(Clone, Debug)]
struct Window {
    addr: u64,
    size: u64,
    lane: u32,
    /// Heap and page, in order of address.
    pages: Vec<(u32, u32)>,
    used: u64,
}

/// The allocator.
#[derive(Debug)]
pub struct Pool<D> {
    device: D,
    options: Options,
    lanes: Vec<Lane>,
    heaps: Vec<Heap>,
    allocations: Vec<Allocation>,
    unused: Vec<u32>,
    by_addr: FxHashMap<u64, u32>,
    windows: Vec<Option<Window>>,
    unused_windows: Vec<u32>,
    /// Windows that no allocation uses, by size, for each lane.
    idle: FxHashMap<u32, FreeSet>,
    idle_count: usize,
    /// Windows that nobody will use again, each with the event after which their addresses can go.
    retiring: VecDeque<(u32, EventHandle)>,
    window_range: (u64, u64),
    /// Addresses of windows that are gone, to be used again.
    unused_addrs: Vec<(u64, u64)>,
    /// Events in the order of each stream, and the allocation that waits for it.
    pending: Vec<(StreamHandle, VecDeque<(EventHandle, u32)>)>,
    pending_count: usize,
    /// Private pools that nobody uses.
    released: Vec<PoolKey>,
    quiet: bool,
    clock: u64,
    stats: Stats,
}

impl<D: Device> Pool<D> {
    pub fn new(device: D, options: Options) -> Pool<D> {
        Pool {
            device,
            options,
            lanes: Vec::new(),
            heaps: Vec::new(),
            allocations: Vec::new(),
            unused: Vec::new(),
            by_addr: FxHashMap::default(),
            windows: Vec::new(),
            unused_windows: Vec::new(),
            idle: FxHashMap::default(),
            idle_count: 0,
            retiring: VecDeque::new(),
            window_range: (0, 0),
            unused_addrs: Vec::new(),
            pending: Vec::new(),
            pending_count: 0,
            released: Vec::new(),
            quiet: false,
            clock: 0,
            stats: Stats::default(),
        }
    }

    pub fn device(&self) -> &D {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.options.limit = limit;
    }

    /// Every heap, for inspection.
    pub fn heaps(&self) -> &[Heap] {
        &self.heaps
    }

    /// Live and pending allocations as address, size and whether the caller still holds it.
    pub fn allocations(&self) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        self.by_addr.values().map(|&id| {
            let a = &self.allocations[id as usize];
            (a.addr, a.size, a.waits == 0)
        })
    }

    /// The block size of what was allocated at `addr`.
    pub fn size_of(&self, addr: u64) -> Option<u64> {
        self.by_addr.get(&addr).map(|&id| self.allocations[id as usize].size)
    }

    /// The most that may be held.
    pub fn limit(&self) -> Option<u64> {
        self.options.limit
    }

    /// Whether another stream uses what was allocated at `addr`.
    pub fn is_used_elsewhere(&self, addr: u64) -> bool {
        self.by_addr.get(&addr).is_some_and(|&id| !self.allocations[id as usize].uses.is_empty())
    }

    /// The allocation that `addr` lies in: its beginning, and its size. By looking at all of them.
    pub fn containing(&self, addr: u64) -> Option<(u64, u64)> {
        if let Some(size) = self.size_of(addr) {
            return Some((addr, size));
        }
        self.allocations()
            .find(|(start, size, _)| (*start..start + size).contains(&addr))
            .map(|(s, n, _)| (s, n))
    }

    /// While quiet, no event is looked at: captures forbid it.
    pub fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet;
    }

    /// Peaks start again from what is there now.
    pub fn reset_peaks(&mut self) {
        let s = &mut self.stats;
        for gauge in [
            &mut s.allocations,
            &mut s.allocated,
            &mut s.requested,
            &mut s.active_blocks,
            &mut s.active,
            &mut s.reserved,
        ] {
            gauge.peak = gauge.current;
        }
    }

    // ---- requests ----

    /// Memory for `size` bytes, to be used on `stream`.
    ///
    /// # Errors
    /// When there is none, after everything was tried.
    pub fn alloc(&mut self, size: u64, stream: StreamHandle, pool: PoolKey) -> Result<u64, AllocError> {
        if size > LARGEST {
            self.stats.ooms += 1;
            return Err(AllocError::OutOfMemory { size, device: DeviceError::OutOfMemory });
        }
        if self.pending_count > 0 && !self.quiet {
            self.poll();
        }
        let rounded = size.div_ceil(UNIT).max(1) * UNIT;
        let lane = match self.lane(stream, pool) {
            Ok(lane) => lane,
            Err(device) => return Err(AllocError::OutOfMemory { size, device }),
        };
        let heap =
            if rounded <= SMALL { self.lanes[lane as usize].small } else { self.lanes[lane as usize].large };
        if let Some(block) = self.heaps[heap as usize].take(rounded) {
            return Ok(self.hand_out(lane, size, rounded, Place::Home { heap, block }));
        }
        match self.miss(lane, heap, rounded) {
            Ok(place) => Ok(self.hand_out(lane, size, rounded, place)),
            Err(device) => {
                self.stats.ooms += 1;
                Err(AllocError::OutOfMemory { size, device })
            }
        }
    }

    /// Another stream uses what is at `addr`: its block is free only when that stream's present work is done.
    pub fn record_stream(&mut self, addr: u64, stream: StreamHandle) -> Result<(), FreeError> {
        let id = *self.by_addr.get(&addr).ok_or(FreeError::Unknown { addr })?;
        let own = self.lanes[self.allocations[id as usize].lane as usize].stream;
        let uses = &mut self.allocations[id as usize].uses;
        if stream != own && !uses.contains(&stream) {
            uses.push(stream);
        }
        Ok(())
    }

    /// Gives back what was allocated at `addr`.
    ///
    /// # Errors
    /// When there is nothing, or it was given back before. Nothing changes then.
    pub fn free(&mut self, addr: u64) -> Result<(), FreeError> {
        let id = *self.by_addr.get(&addr).ok_or(FreeError::Unknown { addr })?;
        let allocation = &mut self.allocations[id as usize];
        if allocation.waits > 0 {
            return Err(FreeError::Twice { addr });
        }
        self.stats.allocations.sub(1);
        self.stats.allocated.sub(allocation.size);
        if allocation.uses.is_empty() {
            self.complete(id);
            return Ok(());
        }
        for stream in std::mem::take(&mut allocation.uses) {
            self.wait_for(stream, id);
        }
        if self.allocations[id as usize].waits == 0 {
            // No event could be recorded: the streams are gone, and with them their work.
            self.complete(id);
        }
        Ok(())
    }

    #[inline]
    fn hand_out(&mut self, lane: u32, requested: u64, size: u64, place: Place) -> u64 {
        let addr = match &place {
            Place::Home { heap, block } => self.heaps[*heap as usize].block(*block).addr,
            Place::Window { window, .. } => self.window(*window).addr,
        };
        let allocation = Allocation { addr, size, requested, lane, place, uses: Vec::new(), waits: 0 };
        let id = if let Some(id) = self.unused.pop() {
            self.allocations[id as usize] = allocation;
            id
        } else {
            self.allocations.push(allocation);
            (self.allocations.len() - 1) as u32
        };
        self.by_addr.insert(addr, id);
        self.stats.allocations.add(1);
        self.stats.allocated.add(size);
        self.stats.requested.add(requested);
        self.stats.active_blocks.add(1);
        self.stats.active.add(size);
        addr
    }

    /// The memory of an allocation can be used again.
    #[inline]
    fn complete(&mut self, id: u32) {
        let Allocation { addr, size, requested, lane, .. } = self.allocations[id as usize];
        let place =
            std::mem::replace(&mut self.allocations[id as usize].place, Place::Home { heap: 0, block: 0 });
        self.by_addr.remove(&addr);
        self.unused.push(id);
        self.stats.requested.sub(requested);
        self.stats.active_blocks.sub(1);
        self.stats.active.sub(size);
        match place {
            Place::Home { heap, block } => self.heaps[heap as usize].release(block),
            Place::Window { window, parts } => {
                let lent = parts.iter().any(|(heap, _)| lane_of(*heap) != lane);
                if lent {
                    // The owners' streams must not run ahead of this one's work.
                    self.hand_back(lane, &parts);
                }
                for (heap, block) in parts {
                    self.heaps[heap as usize].release(block);
                }
                self.rest(window);
            }
        }
    }

    /// Makes the streams that lent pages wait, on the device, for the borrower's present work.
    fn hand_back(&mut self, lane: u32, parts: &[(u32, u32)]) {
        let stream = self.lanes[lane as usize].stream;
        let Ok(event) = self.device.record(stream) else { return };
        let mut told: Vec<u32> = Vec::new();
        for owner in parts.iter().map(|(heap, _)| lane_of(*heap)) {
            if owner != lane && !told.contains(&owner) {
                told.push(owner);
                let _ = self.device.wait_on_stream(self.lanes[owner as usize].stream, event);
            }
        }
        self.device.discard(event);
    }

    fn lane(&mut self, stream: StreamHandle, pool: PoolKey) -> Result<u32, DeviceError> {
        if let Some(at) = self.lanes.iter().position(|l| l.stream == stream && l.pool == pool) {
            return Ok(at as u32);
        }
        let addr = self.device.reserve(2 * RANGE)?;
        let small = self.heaps.len() as u32;
        self.heaps.push(Heap::new(addr, RANGE));
        self.heaps.push(Heap::new(addr + RANGE, RANGE));
        self.lanes.push(Lane { stream, pool, small, large: small + 1 });
        Ok((self.lanes.len() - 1) as u32)
    }

    // ---- when nothing fits ----

    #[cold]
    fn miss(&mut self, lane: u32, heap: u32, size: u64) -> Result<Place, DeviceError> {
        self.clock += 1;
        self.retire();
        if size <= SMALL {
            if self.refill(heap, GRANULE) {
                return self.at_home(heap, size);
            }
            let missing = size - self.heaps[heap as usize].tail().min(size - 1);
            return match self.grow(heap, missing.div_ceil(GRANULE) * GRANULE) {
                Ok(()) => self.at_home(heap, size),
                // The last resort: memory of the large heap, whatever page that pins.
                Err(error) => self.last_resort(lane, heap, size, error),
            };
        }
        if let Some(place) = self.reuse_window(lane, size) {
            return Ok(place);
        }
        let tail = self.heaps[heap as usize].tail();
        let plain = (size - tail.min(size - 1)).div_ceil(GRANULE) * GRANULE;
        let allowed = self.allowed(size);
        if self.stats.reserved.current + plain <= allowed
            && (self.refill(heap, size.div_ceil(GRANULE) * GRANULE) || self.grow(heap, plain).is_ok())
        {
            return self.at_home(heap, size);
        }
        self.harvest(lane, heap, size, plain).or_else(|error| self.last_resort(lane, heap, size, error))
    }

    /// What may be held without harvesting first, once `size` more bytes are live.
    fn allowed(&self, size: u64) -> u64 {
        let peak = self.stats.active.peak.max(self.stats.active.current + size);
        peak + peak / 1000 * self.options.slack
    }

    fn at_home(&mut self, heap: u32, size: u64) -> Result<Place, DeviceError> {
        let block = self.heaps[heap as usize].take(size).ok_or(DeviceError::OutOfMemory)?;
        Ok(Place::Home { heap, block })
    }

    /// Serves from free pages, and from as few new ones as possible.
    fn harvest(&mut self, lane: u32, heap: u32, size: u64, plain: u64) -> Result<Place, DeviceError> {
        let mut pages = self.free_pages(lane, heap, false);
        let mut have: u64 = pages.iter().map(|p| p.size).sum();
        if have < size {
            let lent = self.free_pages(lane, heap, true);
            have += lent.iter().map(|p| p.size).sum::<u64>();
            pages.extend(lent);
        }
        let missing = size.saturating_sub(have).div_ceil(GRANULE) * GRANULE;
        // A window over hundreds of pages to spare next to nothing is a bad bargain.
        if plain.saturating_sub(missing) <= self.stats.reserved.current / 1000 {
            self.grow(heap, plain)?;
            return self.at_home(heap, size);
        }
        if missing > 0 {
            let first = self.heaps[heap as usize].pages().len() as u32;
            self.grow(heap, missing)?;
            if let Ok(place) = self.at_home(heap, size) {
                return Ok(place);
            }
            let new = self.heaps[heap as usize].pages().iter().enumerate().skip(first as usize);
            let new: Vec<FreePage> =
                new.map(|(i, p)| FreePage { heap, page: i as u32, size: p.size, block: u64::MAX }).collect();
            pages.splice(0..0, new);
        }
        let chosen = choose(&pages, size);
        self.make_window(lane, &chosen, size)
    }

    /// Wholly free pages of the lane's heaps, or of other lanes' that may lend theirs.
    fn free_pages(&self, lane: u32, heap: u32, lent: bool) -> Vec<FreePage> {
        let own = self.lanes[lane as usize];
        let mut found = Vec::new();
        for (at, other) in self.lanes.iter().enumerate() {
            let is_own = at as u32 == lane;
            if is_own == lent || (!is_own && (own.pool.is_private() || other.pool.is_private())) {
                continue;
            }
            let large = &self.heaps[other.large as usize];
            for block in large.free_blocks() {
                let block = large.block(block);
                let first = large.pages().partition_point(|p| p.addr < block.addr);
                for (i, page) in large.pages().iter().enumerate().skip(first) {
                    if page.addr + page.size > block.addr + block.size {
                        break;
                    }
                    if page.is_free() {
                        let (page_id, size) = (i as u32, page.size);
                        found.push(FreePage { heap: other.large, page: page_id, size, block: block.size });
                    }
                }
            }
        }
        debug_assert!(found.iter().all(|p| lent || p.heap == heap));
        // Large pages first, for few mappings; among equals those of the smallest free blocks, which serve fewest requests.
        found.sort_by_key(|p| (std::cmp::Reverse(p.size), p.block, p.heap, p.page));
        found
    }

    /// New pages at the end of a heap.
    fn grow(&mut self, heap: u32, bytes: u64) -> Result<(), DeviceError> {
        if self.options.limit.is_some_and(|limit| self.stats.reserved.current + bytes > limit) {
            return Err(DeviceError::OutOfMemory);
        }
        if self.heaps[heap as usize].room() < bytes {
            return Err(DeviceError::OutOfMemory);
        }
        let start = self.heaps[heap as usize].end();
        let mut made: Vec<(crate::device::PageHandle, u64)> = Vec::new();
        let mut end = start;
        let mut failed = None;
        while end < start + bytes {
            let size = self.page_size(bytes, start + bytes - end);
            let mapped = self.device.create(size).and_then(|page| {
                self.device.map(end, size, page).inspect_err(|_| self.device.release(page, size))?;
                Ok(page)
            });
            match mapped {
                Ok(page) => {
                    made.push((page, size));
                    end += size;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if failed.is_none() {
            failed = self.device.grant(start, bytes).err();
        }
        if let Some(error) = failed {
            if end > start {
                let _ = self.device.unmap(start, end - start);
            }
            for (page, size) in made {
                self.device.release(page, size);
            }
            return Err(error);
        }
        for (page, size) in made {
            self.heaps[heap as usize].grow(page, size);
            self.stats.reserved.add(size);
        }
        self.stats.device_allocs += 1;
        Ok(())
    }

    /// Puts new pages behind holes that were left when memory was given back, where one stretch of them is enough.
    fn refill(&mut self, heap: u32, bytes: u64) -> bool {
        let limited = self.options.limit.is_some_and(|limit| self.stats.reserved.current + 2 * bytes > limit);
        if self.stats.device_frees == 0 || limited {
            return false;
        }
        let pages = self.heaps[heap as usize].pages();
        let mut run = 0..0;
        let mut found = 0;
        for (i, page) in pages.iter().enumerate() {
            if page.handle.is_some() {
                found = 0;
                continue;
            }
            if found == 0 {
                run.start = i;
            }
            found += page.size;
            run.end = i + 1;
            if found >= bytes {
                break;
            }
        }
        if found < bytes {
            return false;
        }
        for at in run {
            let crate::heap::Page { addr, size, .. } = self.heaps[heap as usize].pages()[at];
            let Ok(page) = self.device.create(size) else { return false };
            let mapped = self.device.map(addr, size, page);
            if mapped.is_ok() && self.device.grant(addr, size).is_ok() {
                self.heaps[heap as usize].refill(at as u32, page);
                self.stats.reserved.add(size);
                continue;
            }
            if mapped.is_ok() {
                let _ = self.device.unmap(addr, size);
            }
            self.device.release(page, size);
            return false;
        }
        self.stats.device_allocs += 1;
        true
    }

    /// The size of the next page when of `wanted` bytes `left` are still missing.
    fn page_size(&self, wanted: u64, left: u64) -> u64 {
        let part =
            (self.stats.reserved.current / self.options.page_part).max(wanted / self.options.request_part);
        let most = self.options.largest_page.min(part).min(left).max(GRANULE);
        1 << most.ilog2()
    }

    // ---- windows ----

    fn window(&self, id: u32) -> &Window {
        self.windows[id as usize].as_ref().expect("a window that an allocation or the idle set names")
    }

    /// A cached window whose first pages, as many as `size` needs, are free.
    fn reuse_window(&mut self, lane: u32, size: u64) -> Option<Place> {
        let idle = self.idle.get(&lane)?;
        let fits = |entry: &Entry| {
            let window = self.window(entry.block);
            let mut left = size;
            for &(heap, page) in &window.pages {
                let page = &self.heaps[heap as usize].pages()[page as usize];
                if !page.is_free() {
                    return false;
                }
                left = left.saturating_sub(page.size);
                if left == 0 {
                    break;
                }
            }
            true
        };
        let found = idle.iter_from(size).take(TRIES).find(fits)?;
        let place = self.occupy(found.block, size).ok()?;
        self.stats.window_hits += 1;
        Some(place)
    }

    /// Maps `pages` side by side and puts an allocation of `size` bytes there.
    fn make_window(&mut self, lane: u32, pages: &[FreePage], size: u64) -> Result<Place, DeviceError> {
        let total: u64 = pages.iter().map(|p| p.size).sum();
        if total < size {
            return Err(DeviceError::OutOfMemory);
        }
        let addr = self.window_addr(total)?;
        let mut end = addr;
        let mut failed = None;
        for page in pages {
            let handle = self.heaps[page.heap as usize].pages()[page.page as usize].handle;
            let mapped =
                handle.ok_or(DeviceError::OutOfMemory).and_then(|h| self.device.map(end, page.size, h));
            if let Err(error) = mapped {
                failed = Some(error);
                break;
            }
            end += page.size;
        }
        if failed.is_none() {
            failed = self.device.grant(addr, total).err();
        }
        if let Some(error) = failed {
            if end > addr {
                let _ = self.device.unmap(addr, end - addr);
            }
            return Err(error);
        }
        let list = pages.iter().map(|p| (p.heap, p.page)).collect();
        let window = Window { addr, size: total, lane, pages: list, used: self.clock };
        let id = if let Some(id) = self.unused_windows.pop() {
            self.windows[id as usize] = Some(window);
            id
        } else {
            self.windows.push(Some(window));
            (self.windows.len() - 1) as u32
        };
        for page in pages {
            self.heaps[page.heap as usize].page_mut(page.page).windows += 1;
        }
        self.stats.windows_made += 1;
        self.stats.harvested += pages.len() as u64;
        self.idle.entry(lane).or_default().insert(Entry { size: total, tie: u64::from(id), block: id });
        self.idle_count += 1;
        self.occupy(id, size)
    }

    /// Marks, at home, the pages that an allocation of `size` bytes uses through an idle window.
    fn occupy(&mut self, id: u32, size: u64) -> Result<Place, DeviceError> {
        let window = self.windows[id as usize].as_mut().expect("an idle window");
        window.used = self.clock;
        let (lane, total) = (window.lane, window.size);
        let mut wanted: Vec<(u32, u64, u64)> = Vec::new();
        let mut left = size;
        for &(heap, page) in &window.pages {
            if left == 0 {
                break;
            }
            let page = &self.heaps[heap as usize].pages()[page as usize];
            wanted.push((heap, page.addr, left.min(page.size)));
            left -= left.min(page.size);
        }
        wanted.sort_unstable();
        self.idle.entry(lane).or_default().remove(total, u64::from(id));
        self.idle_count -= 1;
        let mut parts = Vec::with_capacity(wanted.len());
        let mut around: (u32, Vec<u32>) = (u32::MAX, Vec::new());
        for (heap, addr, bytes) in wanted {
            if around.0 != heap {
                around = (heap, self.heaps[heap as usize].free_blocks());
            }
            match self.heaps[heap as usize].carve(&around.1, addr, bytes) {
                Some(block) => parts.push((heap, block)),
                None => {
                    for (heap, block) in parts {
                        self.heaps[heap as usize].release(block);
                    }
                    self.rest(id);
                    return Err(DeviceError::OutOfMemory);
                }
            }
        }
        if let Err(error) = self.borrow(lane, &parts) {
            for (heap, block) in parts {
                self.heaps[heap as usize].release(block);
            }
            self.rest(id);
            return Err(error);
        }
        Ok(Place::Window { window: id, parts })
    }

    /// Makes the borrower wait, on the device, for the present work of the streams that lend.
    fn borrow(&mut self, lane: u32, parts: &[(u32, u32)]) -> Result<(), DeviceError> {
        let mut asked: Vec<u32> = Vec::new();
        for owner in parts.iter().map(|(heap, _)| lane_of(*heap)) {
            if owner == lane {
                continue;
            }
            self.stats.lent += 1;
            if !asked.contains(&owner) {
                asked.push(owner);
                let stream = self.lanes[owner as usize].stream;
                let event = self.device.record(stream)?;
                let waited = self.device.wait_on_stream(self.lanes[lane as usize].stream, event);
                self.device.discard(event);
                waited?;
            }
        }
        Ok(())
    }

    /// An allocation's window is idle again.
    fn rest(&mut self, id: u32) {
        let Window { size, lane, .. } = *self.window(id);
        self.idle.entry(lane).or_default().insert(Entry { size, tie: u64::from(id), block: id });
        self.idle_count += 1;
    }

    fn window_addr(&mut self, size: u64) -> Result<u64, DeviceError> {
        let fits = |(_, room): &(u64, u64)| *room >= size && *room <= size + size / 4;
        if let Some(at) = self.unused_addrs.iter().position(fits) {
            return Ok(self.unused_addrs.swap_remove(at).0);
        }
        if self.window_range.1 < size {
            let range = RANGE.max(size);
            self.window_range = (self.device.reserve(range)?, range);
        }
        let addr = self.window_range.0;
        self.window_range.0 += size;
        self.window_range.1 -= size;
        Ok(addr)
    }

    /// Lets go of windows beyond the number that is kept, the least recently used first: their addresses once the work that may use them
    /// is done, without waiting for it.
    fn retire(&mut self) {
        if self.quiet {
            return;
        }
        while let Some(&(id, event)) = self.retiring.front() {
            if !matches!(self.device.is_done(event), Ok(true)) {
                break;
            }
            self.retiring.pop_front();
            self.device.discard(event);
            self.drop_window(id);
        }
        while self.idle_count > self.options.windows {
            let all = self.idle.values().flat_map(FreeSet::iter).map(|entry| entry.block);
            let Some(oldest) = all.min_by_key(|&id| (self.window(id).used, id)) else { return };
            let Window { size, lane, .. } = *self.window(oldest);
            let Ok(event) = self.device.record(self.lanes[lane as usize].stream) else { return };
            self.idle.entry(lane).or_default().remove(size, u64::from(oldest));
            self.idle_count -= 1;
            self.retiring.push_back((oldest, event));
        }
    }

    /// Unmaps a window that is in no set.
    fn drop_window(&mut self, id: u32) {
        let Some(window) = self.windows[id as usize].take() else { return };
        self.unused_windows.push(id);
        for (heap, page) in &window.pages {
            self.heaps[*heap as usize].page_mut(*page).windows -= 1;
        }
        if self.device.unmap(window.addr, window.size).is_ok() {
            self.unused_addrs.push((window.addr, window.size));
        }
    }

    // ---- memory given back, and taken beforehand ----

    /// Gives every wholly free page back to the device, of the default pool and of private pools that nobody uses: after waiting for the
    /// streams' present work. Returns the bytes.
    pub fn trim(&mut self) -> u64 {
        self.wait_for_pending();
        for at in 0..self.lanes.len() {
            if let Ok(event) = self.device.record(self.lanes[at].stream) {
                let _ = self.device.wait(event);
                self.device.discard(event);
            }
        }
        while let Some((id, event)) = self.retiring.pop_front() {
            self.device.discard(event);
            self.drop_window(id);
        }
        let idle: Vec<u32> = self.idle.values().flat_map(FreeSet::iter).map(|entry| entry.block).collect();
        self.idle.clear();
        self.idle_count = 0;
        for id in idle {
            self.drop_window(id);
        }
        let before = self.stats.reserved.current;
        for at in 0..self.heaps.len() {
            let pool = self.lanes[lane_of(at as u32) as usize].pool;
            if pool.is_private() && !self.released.contains(&pool) {
                continue;
            }
            for page in 0..self.heaps[at].pages().len() as u32 {
                let crate::heap::Page { addr, size, windows, .. } = self.heaps[at].pages()[page as usize];
                if windows == 0
                    && self.heaps[at].pages()[page as usize].is_free()
                    && let Some(handle) = self.heaps[at].give_up(page)
                {
                    let _ = self.device.unmap(addr, size);
                    self.device.release(handle, size);
                    self.stats.reserved.sub(size);
                    self.stats.device_frees += 1;
                }
            }
        }
        before - self.stats.reserved.current
    }

    /// A private pool is used: what is in it stays.
    pub fn use_pool(&mut self, pool: PoolKey) {
        self.released.retain(|p| *p != pool);
    }

    /// Nobody uses a private pool any more: what is free in it may be given back.
    pub fn release_pool(&mut self, pool: PoolKey) {
        if pool.is_private() && !self.released.contains(&pool) {
            self.released.push(pool);
        }
    }

    /// Takes memory for large requests of `stream` from the device beforehand, until `bytes` are held.
    ///
    /// # Errors
    /// When the device has less.
    pub fn hold(&mut self, bytes: u64, stream: StreamHandle) -> Result<(), DeviceError> {
        let lane = self.lane(stream, PoolKey(0, 0))?;
        let missing = bytes.saturating_sub(self.stats.reserved.current) / GRANULE * GRANULE;
        if missing == 0 { Ok(()) } else { self.grow(self.lanes[lane as usize].large, missing) }
    }

    // ---- frees that wait ----

    fn wait_for(&mut self, stream: StreamHandle, id: u32) {
        let Ok(event) = self.device.record(stream) else { return };
        self.allocations[id as usize].waits += 1;
        self.pending_count += 1;
        if let Some((_, queue)) = self.pending.iter_mut().find(|(s, _)| *s == stream) {
            queue.push_back((event, id));
        } else {
            self.pending.push((stream, VecDeque::from([(event, id)])));
        }
    }

    /// Completes what no stream uses any more. Requests do it too.
    pub fn poll(&mut self) {
        for at in 0..self.pending.len() {
            while let Some(&(event, id)) = self.pending[at].1.front() {
                if !matches!(self.device.is_done(event), Ok(true)) {
                    break;
                }
                self.pending[at].1.pop_front();
                self.passed(event, id);
            }
        }
    }

    fn passed(&mut self, event: EventHandle, id: u32) {
        self.device.discard(event);
        self.pending_count -= 1;
        let allocation = &mut self.allocations[id as usize];
        allocation.waits -= 1;
        if allocation.waits == 0 {
            self.complete(id);
        }
    }

    /// Waits on the host for every pending free.
    fn wait_for_pending(&mut self) {
        for at in 0..self.pending.len() {
            while let Some((event, id)) = self.pending[at].1.pop_front() {
                let _ = self.device.wait(event);
                self.passed(event, id);
            }
        }
    }

    // ---- the end of memory ----

    /// Everything that is left before a request fails.
    fn last_resort(
        &mut self,
        lane: u32,
        heap: u32,
        size: u64,
        error: DeviceError,
    ) -> Result<Place, DeviceError> {
        if self.pending_count > 0 && !self.quiet {
            self.stats.retries += 1;
            self.wait_for_pending();
        }
        if let Some(block) = self.heaps[heap as usize].take(size) {
            return Ok(Place::Home { heap, block });
        }
        let large = self.lanes[lane as usize].large;
        if size <= SMALL
            && let Some(block) = self.heaps[large as usize].take(size)
        {
            return Ok(Place::Home { heap: large, block });
        }
        let mut pages = self.free_pages(lane, large, false);
        pages.extend(self.free_pages(lane, large, true));
        let have: u64 = pages.iter().map(|p| p.size).sum();
        if have >= size {
            let chosen = choose(&pages, size);
            return self.make_window(lane, &chosen, size);
        }
        Err(error)
    }

    /// Checks every invariant; what is wrong, in words.
    ///
    /// # Errors
    /// When one does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut held = 0;
        let mut live = 0;
        for heap in &self.heaps {
            heap.check()?;
            held += heap.pages().iter().filter(|p| p.handle.is_some()).map(|p| p.size).sum::<u64>();
            live += heap.blocks().filter(|b| b.state == State::Live).map(|b| b.size).sum::<u64>();
        }
        if held != self.stats.reserved.current {
            return Err(format!("{held} bytes in pages, {} counted", self.stats.reserved.current));
        }
        let (mut sum, mut callers) = (0, 0);
        for (&addr, &id) in &self.by_addr {
            let a = &self.allocations[id as usize];
            if a.addr != addr {
                return Err(format!("the allocation at {addr:#x} says {:#x}", a.addr));
            }
            sum += a.size;
            callers += u64::from(a.waits == 0);
            let blocks: u64 = match &a.place {
                Place::Home { heap, block } => self.heaps[*heap as usize].block(*block).size,
                Place::Window { parts, .. } => {
                    parts.iter().map(|(h, b)| self.heaps[*h as usize].block(*b).size).sum()
                }
            };
            if blocks != a.size {
                return Err(format!("the allocation of {} at {addr:#x} has blocks of {blocks}", a.size));
            }
        }
        if sum != self.stats.active.current || live != sum {
            return Err(format!(
                "{sum} active in allocations, {live} in blocks, {} counted",
                self.stats.active.current
            ));
        }
        if callers != self.stats.allocations.current {
            return Err(format!("{callers} allocations, {} counted", self.stats.allocations.current));
        }
        Ok(())
    }
}

/// Heaps come in pairs, one a lane.
fn lane_of(heap: u32) -> u32 {
    heap / 2
}

/// A wholly free page, and the size of the free block around it.
#[derive(Clone, Copy, Debug)]
struct FreePage {
    heap: u32,
    page: u32,
    size: u64,
    block: u64,
}

/// Pages for `size` bytes: in the order given while they are not too large, and one more for what is left.
fn choose(pages: &[FreePage], size: u64) -> Vec<FreePage> {
    let mut chosen = Vec::new();
    let mut taken = vec![false; pages.len()];
    let mut left = size;
    for (i, page) in pages.iter().enumerate() {
        if left == 0 {
            break;
        }
        if page.size <= left {
            left -= page.size;
            taken[i] = true;
            chosen.push(*page);
        }
    }
    if left > 0 {
        // The smallest that is large enough; its rest stays free at home.
        let last = (0..pages.len()).rev().filter(|&i| !taken[i]).min_by_key(|&i| pages[i].size);
        chosen.extend(last.map(|i| pages[i]));
    }
    chosen
}
