//! Pages taken from the device: at the end of a heap, in holes that were left, or beforehand.

use super::{Pool, PoolKey};
use crate::device::{Device, DeviceError, PageHandle, Refusal, StreamHandle};
use crate::heap::{GRANULE, Page};
use crate::mutants::{self, Mutant};

impl<D: Device> Pool<D> {
    /// New pages at the end of a heap.
    pub(super) fn grow(&mut self, heap: u32, bytes: u64) -> Result<(), DeviceError> {
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
            // Nobody saw these addresses.
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

    /// New pages for a request of `size` bytes, in holes where a stretch is enough; else at the end, which misses `plain` bytes.
    pub(super) fn grow_for(&mut self, heap: u32, size: u64, plain: u64) -> Result<(), DeviceError> {
        if self.refill(heap, size.div_ceil(GRANULE) * GRANULE) {
            return Ok(());
        }
        self.grow(heap, plain)
    }

    /// New pages of `bytes` in all, wherever the heap has addresses for them: a window will put them side by side.
    pub(super) fn grow_anywhere(&mut self, heap: u32, bytes: u64) -> Result<(), DeviceError> {
        if self.refill(heap, bytes) {
            return Ok(());
        }
        if self.heap(heap).room() >= bytes {
            return self.grow(heap, bytes);
        }
        if !self.may_grow(bytes) {
            return Err(DeviceError::Refused(Refusal::Limit));
        }
        let holes: Vec<u64> =
            self.heap(heap).pages().iter().filter(|page| is_hole(page)).map(|page| page.addr).collect();
        let mut left = bytes;
        for addr in holes {
            if left == 0 {
                break;
            }
            let Some(page) = self.heap(heap).page_of(addr) else { continue };
            left -= self.fill_hole(heap, page, left)?;
        }
        self.stats.device_allocs += 1;
        if left == 0 { Ok(()) } else { Err(DeviceError::OutOfMemory) }
    }

    fn may_grow(&self, bytes: u64) -> bool {
        self.options.limit.is_none_or(|limit| self.stats.reserved.current + bytes <= limit)
    }

    /// Puts new pages behind holes that were left when memory was given back, where one stretch of them is enough: the smallest. Whether it did.
    fn refill(&mut self, heap: u32, bytes: u64) -> bool {
        let creeps = mutants::is(Mutant::AddressesCreep) && !self.may_grow(2 * bytes);
        if self.stats.device_frees == 0 || !self.may_grow(bytes) || creeps {
            return false;
        }
        let mut best: Option<(u64, u64)> = None;
        let (mut start, mut found) = (0, 0);
        for page in self.heap(heap).pages() {
            if is_hole(page) {
                if found == 0 {
                    start = page.addr;
                }
                found += page.size;
                continue;
            }
            if found >= bytes {
                best = Some(best.map_or((found, start), |best| best.min((found, start))));
            }
            found = 0;
        }
        if found >= bytes {
            best = Some(best.map_or((found, start), |best| best.min((found, start))));
        }
        let Some((_, mut addr)) = best else { return false };
        let mut left = bytes;
        while left > 0 {
            let filled = self.heap(heap).page_of(addr).map(|page| self.fill_hole(heap, page, left));
            let Some(Ok(size)) = filled else { return false };
            left -= size;
            addr += size;
        }
        self.stats.device_allocs += 1;
        true
    }

    /// Puts a new page behind a hole, or behind the first `most` bytes of it. The bytes.
    fn fill_hole(&mut self, heap: u32, page: u32, most: u64) -> Result<u64, DeviceError> {
        let Page { addr, size: whole, .. } = self.heap(heap).pages()[page as usize];
        let size = whole.min(most);
        let handle = self.device.create(size)?;
        let mapped = self.device.map(addr, size, handle);
        let granted = mapped.and_then(|()| self.device.grant(addr, size));
        if let Err(error) = granted {
            if mapped.is_err() || self.device.unmap(addr, size).is_ok() {
                self.device.release(handle, size);
            } else {
                self.heap_mut(heap).page_mut(page).is_leaving = true;
            }
            return Err(error);
        }
        if size < whole {
            self.heap_mut(heap).cut_hole(page, size);
            self.renumber_pages(heap, page);
        }
        self.heap_mut(heap).refill(page, handle, 0);
        self.count_page_in(heap, size);
        self.log_pages(heap, addr, size, true);
        Ok(size)
    }

    /// The size of the next page when of `wanted` bytes `left` are still missing.
    fn page_size(&self, wanted: u64, left: u64) -> u64 {
        let part =
            (self.stats.reserved.current / self.options.page_part).max(wanted / self.options.request_part);
        let most = self.options.largest_page.min(part).min(left).max(GRANULE);
        1 << most.ilog2()
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
}

/// Whether a page can be put behind these addresses.
fn is_hole(page: &Page) -> bool {
    page.handle.is_none() && !page.is_leaving
}
