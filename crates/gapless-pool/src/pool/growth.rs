//! Pages from the device: at the end of a heap, in holes, or in advance; and how the pool changes when memory is
//! scarce, close to its limit.
//!
//! Live blocks do not move, so when a request is about to fail, pages that are free in part cannot be made whole. The
//! pool starts earlier: it takes **finer pages**, of which fewer bytes lie in pages that are free in part, and it
//! **harvests at once** instead of growing a little beyond the peak. Both cost driver calls, which a program far below
//! its limit need not pay.

use super::{Pool, PoolKey};
use crate::device::{Device, DeviceError, PageHandle, Refusal, StreamHandle};
use crate::heap::{GRANULE, Page};
use crate::ids::{Fence, HeapId, PageId};
use crate::mutants::{self, Mutant};
use std::ops::Range;

/// Memory below the peak is taken in chunks of this part of the peak.
const CHUNK_PART: u64 = 64;
/// A page is at most this part of the room that is left. Pages of 32 MiB thus need 32 GiB of room.
const ROOM_PART: u64 = 1024;
/// A program that empties its cache again and again takes every page anew each time. Under a limit, pages may double in
/// size after each of the first few times.
const EMPTIED_MOST: u32 = 2;
/// If hardly anything was live each time, no block keeps a large page from going back or from being used whole. Then
/// all pages may double in size after each of the first few times, unless memory is scarce.
const BARE_MOST: u32 = 3;
/// "Hardly anything" is this part of the peak.
const BARE_PART: u64 = 16;
/// Under a limit that the program set, memory is scarce from half of the limit on. A card's memory is there whether it
/// is needed or not, so without a limit it is scarce only in the last eighth.
const LIMIT_PART: u64 = 2;
const CARD_PART: u64 = 8;

/// The number of times that the program emptied its cache; `None` if this may no longer make pages larger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emptied {
    /// Counts until one request forced all free memory back to the device.
    pub(super) times: Option<u32>,
    /// Counts times in a row with hardly anything live, until a request was about to fail.
    pub(super) bare: Option<u32>,
}

impl Emptied {
    pub(super) const NEVER: Emptied = Emptied { times: Some(0), bare: Some(0) };

    fn once_more(self, is_bare: bool) -> Emptied {
        let times = self.times.map(|times| (times + 1).min(EMPTIED_MOST));
        let bare = self.bare.map(|bare| if is_bare { (bare + 1).min(BARE_MOST) } else { 0 });
        Emptied { times, bare }
    }
}

impl<D: Device> Pool<D> {
    /// Takes new pages at the end of a heap.
    pub(super) fn grow(&mut self, heap: HeapId, bytes: u64) -> Result<(), DeviceError> {
        if !self.may_grow(bytes) {
            return Err(DeviceError::Refused(Refusal::Limit));
        }
        if self.heap(heap).room() < bytes {
            return Err(DeviceError::OutOfMemory);
        }
        let start = self.heap(heap).end();
        let mut made: Vec<(PageHandle, u64)> = Vec::new();
        let mut end = start;
        let mut failed = None;
        while end < start + bytes {
            let size = self.page_size(heap, bytes, start + bytes - end);
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
            // The caller never got these addresses, so no work uses them.
            if end == start || self.device.unmap(start, end - start).is_ok() {
                for (page, size) in made {
                    self.device.release(page, size);
                }
            } else {
                self.heap_mut(heap).lose(end - start);
            }
            return Err(error);
        }
        for (page, size) in made {
            self.heap_mut(heap).grow(page, size);
            self.count_page_in(heap, size);
        }
        self.log_pages(heap, start, bytes, true);
        self.stats.device_allocs += 1;
        Ok(())
    }

    /// Takes new pages for a request of `size` bytes, in holes if one stretch is enough, else at the end, which lacks
    /// `plain` bytes.
    pub(super) fn grow_for(&mut self, heap: HeapId, size: u64, plain: u64) -> Result<(), DeviceError> {
        let size = size.div_ceil(GRANULE) * GRANULE;
        if self.refill(heap, size, size).is_some() {
            return Ok(());
        }
        let more = self.ahead(heap, plain);
        match self.grow(heap, more) {
            // If the device has no more, it may still have what is missing.
            Err(_) if more > plain => self.grow(heap, plain),
            grown => grown,
        }
    }

    /// Takes new pages of `bytes` in all, wherever the heap has addresses, because a window will put them side by side.
    /// Returns their addresses.
    pub(super) fn grow_anywhere(&mut self, heap: HeapId, bytes: u64) -> Result<Vec<Range<u64>>, DeviceError> {
        if let Some(made) = self.refill(heap, bytes, bytes) {
            return Ok(vec![made]);
        }
        let end = self.heap(heap).end();
        if self.heap(heap).room() >= bytes {
            let made = end..end + bytes;
            return self.grow(heap, bytes).map(|()| vec![made]);
        }
        if !self.may_grow(bytes) {
            return Err(DeviceError::Refused(Refusal::Limit));
        }
        let (mut made, mut left) = (Vec::new(), bytes);
        while left > 0 {
            let more = self.refill(heap, GRANULE, left).ok_or(DeviceError::OutOfMemory)?;
            left = left.saturating_sub(more.end - more.start);
            made.push(more);
        }
        Ok(made)
    }

    fn may_grow(&self, bytes: u64) -> bool {
        self.options.limit.is_none_or(|limit| self.stats.reserved.current + bytes <= limit)
    }

    /// The bytes to take when a heap of large requests misses `bytes`. While less is held than the peak of active
    /// bytes, that is more than `bytes`: the peak will be needed again, and few large pages come faster than many small
    /// ones.
    fn ahead(&self, heap: HeapId, bytes: u64) -> u64 {
        if let Some(more) = self.region_growth(heap, bytes)
            && self.may_grow(more)
            && self.heap(heap).room() >= more
        {
            return more;
        }
        let more = bytes.next_multiple_of(self.chunk());
        let is_known = self.stats.reserved.current + more <= self.stats.active.peak;
        if heap.is_large() && is_known && self.may_grow(more) && self.heap(heap).room() >= more {
            more
        } else {
            bytes
        }
    }

    /// The unit in which memory below the peak is taken.
    fn chunk(&self) -> u64 {
        let part = self.stats.active.peak / (CHUNK_PART >> self.doublings());
        1 << part.clamp(GRANULE, self.options.largest_page << self.doublings()).ilog2()
    }

    /// Notes that the program emptied its cache.
    pub(super) fn note_emptied(&mut self) {
        let is_bare = self.stats.active.current <= self.stats.active.peak / BARE_PART;
        self.emptied = self.emptied.once_more(is_bare);
    }

    /// The number of times that all page sizes count as doubled.
    fn doublings(&self) -> u32 {
        if self.is_scarce() { 0 } else { self.emptied.bare.unwrap_or(0) }
    }

    /// Fills holes with new pages: `most` bytes of the smallest stretch that has as many, else all of the largest
    /// stretch with at least `least` bytes. Returns their addresses, or `None` if it did not.
    fn refill(&mut self, heap: HeapId, least: u64, most: u64) -> Option<Range<u64>> {
        let creeps = mutants::is(Mutant::AddressesCreep) && !self.may_grow(2 * most);
        if self.stats.device_frees == 0 || !self.may_grow(least) || creeps {
            return None;
        }
        let (first, whole, count) = self.heap(heap).stretch(least, most)?;
        let (addr, bytes) = (self.heap(heap).page(first).addr, whole.min(most));
        let mut sizes = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let size = self.page_size(heap, bytes, left);
            sizes.push(size);
            left -= size;
        }
        let made = sizes.len();
        sizes.extend(Some(whole - bytes).filter(|rest| *rest > 0));
        self.windows.renumber(heap, first.moved(count as i32), sizes.len() as i32 - count as i32);
        self.heap_mut(heap).reshape_holes(first, count, &sizes);
        self.stats.device_allocs += 1;
        let mut pages = first.index()..first.index() + made;
        let is_filled = pages.all(|page| self.fill_hole(heap, PageId::new(page)).is_ok());
        is_filled.then_some(addr..addr + bytes)
    }

    /// Fills a hole with a new page.
    fn fill_hole(&mut self, heap: HeapId, page: PageId) -> Result<(), DeviceError> {
        let Page { addr, size, .. } = *self.heap(heap).page(page);
        let handle = self.device.create(size)?;
        let mapped = self.device.map(addr, size, handle);
        if let Err(error) = mapped.and_then(|()| self.device.grant(addr, size)) {
            // The caller never got these addresses, so no work uses them.
            if mapped.is_err() || self.device.unmap(addr, size).is_ok() {
                self.device.release(handle, size);
            } else {
                self.heap_mut(heap).set_leaving(page, true);
            }
            return Err(error);
        }
        self.heap_mut(heap).refill(page, handle, Fence::PAST);
        self.count_page_in(heap, size);
        self.log_pages(heap, addr, size, true);
        Ok(())
    }

    /// The size of the next page if `left` of `wanted` bytes are still missing.
    fn page_size(&self, heap: HeapId, wanted: u64, left: u64) -> u64 {
        if let Some(size) = self.region_page(heap, left) {
            return size;
        }
        let held = self.stats.reserved.current / self.options.page_part;
        let mut part = held.max(wanted / self.options.request_part);
        if self.stats.reserved.current + left <= self.stats.active.peak {
            part = part.max(self.chunk());
        }
        let most = self.largest_page().min(part).min(left).max(GRANULE);
        1 << most.ilog2()
    }

    /// Grants access to all memory again, at home and in windows, after the device shared its memory with others.
    ///
    /// # Errors
    /// If the device refuses. What was granted until then stays granted.
    pub fn grant_again(&mut self) -> Result<(), DeviceError> {
        let pages = self.heaps().flat_map(crate::heap::Heap::pages);
        let homes = pages.filter(|page| page.handle.is_some()).map(|page| (page.addr, page.size));
        let windows = self.windows.iter().map(|window| (window.base(), window.mapped()));
        for (addr, size) in homes.chain(windows).collect::<Vec<_>>() {
            self.device.grant(addr, size)?;
        }
        Ok(())
    }

    /// Takes memory for large requests of `stream` from the device in advance, until `bytes` are held.
    ///
    /// # Errors
    /// If the device has less.
    pub fn hold(&mut self, bytes: u64, stream: StreamHandle) -> Result<(), DeviceError> {
        let lane = self.lane(stream, PoolKey(0, 0))?;
        let missing = bytes.saturating_sub(self.stats.reserved.current) / GRANULE * GRANULE;
        if missing == 0 { Ok(()) } else { self.grow(lane.large(), missing) }
    }

    // ---- scarce memory ----

    /// True if the pool comes close to its limit. Memory that other processes hold does not count, because a driver
    /// takes too long to report it.
    pub(super) fn is_scarce(&self) -> bool {
        match self.options.limit {
            Some(limit) => self.room_below(limit) < limit / LIMIT_PART,
            None => self.room_below(self.card) < self.card / CARD_PART,
        }
    }

    /// The largest page to take from the device now.
    pub(super) fn largest_page(&self) -> u64 {
        let largest = self.options.largest_page << self.doublings();
        let part = ROOM_PART >> self.emptied.times.unwrap_or(0).max(2 * self.doublings());
        match self.options.limit {
            Some(limit) => largest.min(self.room_below(limit) / part),
            None if self.is_scarce() => largest.min(self.room_below(self.card) / part),
            None => largest,
        }
    }

    fn room_below(&self, most: u64) -> u64 {
        most.saturating_sub(self.stats.reserved.current)
    }
}
