//! Pages taken from the device: at the end of a heap, in holes that were left, or beforehand.

use super::{Pool, PoolKey};
use crate::device::{Device, DeviceError, PageHandle, Refusal, StreamHandle};
use crate::heap::{GRANULE, Page};
use std::ops::Range;

impl<D: Device> Pool<D> {
    /// New pages at the end of a heap.
    pub(super) fn grow(&mut self, heap: u32, bytes: u64) -> Result<(), DeviceError> {
        if self.options.limit.is_some_and(|limit| self.stats.reserved.current + bytes > limit) {
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
            if end > start {
                let _ = self.device.unmap(start, end - start);
            }
            for (page, size) in made {
                self.device.release(page, size);
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
        match self.refill(heap, size.div_ceil(GRANULE) * GRANULE) {
            Some(_) => Ok(()),
            None => self.grow(heap, plain),
        }
    }

    /// Puts new pages behind holes that were left when memory was given back, where one stretch of them is enough. Which pages.
    pub(super) fn refill(&mut self, heap: u32, bytes: u64) -> Option<Range<usize>> {
        let limited = self.options.limit.is_some_and(|limit| self.stats.reserved.current + 2 * bytes > limit);
        if self.stats.device_frees == 0 || limited {
            return None;
        }
        let pages = self.heap(heap).pages();
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
            return None;
        }
        for at in run.clone() {
            let Page { addr, size, .. } = self.heap(heap).pages()[at];
            let Ok(page) = self.device.create(size) else { return None };
            let mapped = self.device.map(addr, size, page);
            if mapped.is_ok() && self.device.grant(addr, size).is_ok() {
                self.heap_mut(heap).refill(at as u32, page);
                self.count_page_in(heap, size);
                self.log_pages(heap, addr, size, true);
                continue;
            }
            if mapped.is_ok() {
                let _ = self.device.unmap(addr, size);
            }
            self.device.release(page, size);
            return None;
        }
        self.stats.device_allocs += 1;
        Some(run)
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
