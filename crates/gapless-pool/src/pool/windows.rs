//! Windows: a second range of addresses for free pages, side by side, kept for the next request of its size.

use super::{Piece, Place, Pool, RANGE, TRIES, Window, lane_of};
use crate::device::{Device, DeviceError};
use crate::free_set::{Entry, FreeSet};
use rustc_hash::FxHashMap;

impl<D: Device> Pool<D> {
    pub(super) fn window(&self, id: u32) -> &Window {
        self.windows[id as usize].as_ref().expect("a window that an allocation or the idle set names")
    }

    /// The home of what an allocation of `size` bytes would take through a window: heap, page, address and size of each part.
    fn parts(&self, window: &Window, size: u64) -> Vec<(u32, u32, u64, u64)> {
        let mut parts = Vec::with_capacity(window.pages.len());
        let (mut left, mut from) = (size, window.start);
        for &(heap, id) in &window.pages {
            if left == 0 {
                break;
            }
            let page = self.heap(heap).pages()[id as usize];
            let bytes = left.min(page.size - from);
            parts.push((heap, id, page.addr + from, bytes));
            left -= bytes;
            from = 0;
        }
        parts
    }

    /// A cached window in which the first `size` bytes are free.
    pub(super) fn reuse_window(&mut self, lane: u32, size: u64) -> Option<Place> {
        let idle = self.idle.get(&lane)?;
        let mut around: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let mut fits = |entry: &Entry| {
            self.parts(self.window(entry.block), size).into_iter().all(|(heap, id, addr, bytes)| {
                let home = self.heap(heap);
                let page = &home.pages()[id as usize];
                // Part of a page that others hold some of: look closer.
                page.is_free()
                    || (bytes < page.size && page.handle.is_some() && {
                        let blocks = around.entry(heap).or_insert_with(|| home.free_blocks(0));
                        home.is_free(blocks, addr, bytes)
                    })
            })
        };
        let found = idle.iter_from(size).take(TRIES).find(&mut fits)?;
        let place = self.occupy(found.block, size).ok()?;
        self.stats.window_hits += 1;
        Some(place)
    }

    /// Maps the pages of `pieces` side by side and puts an allocation of `size` bytes there.
    pub(super) fn make_window(
        &mut self,
        lane: u32,
        pieces: &[Piece],
        size: u64,
    ) -> Result<Place, DeviceError> {
        let mapped: u64 = pieces.iter().map(|p| p.page_size).sum();
        let start = pieces.first().map_or(0, |p| p.from);
        let base = self.window_addr(mapped)?;
        let mut end = base;
        let mut failed = None;
        for piece in pieces {
            let handle = self.heap(piece.heap).pages()[piece.page as usize].handle;
            let done =
                handle.ok_or(DeviceError::OutOfMemory).and_then(|h| self.device.map(end, piece.page_size, h));
            if let Err(error) = done {
                failed = Some(error);
                break;
            }
            end += piece.page_size;
        }
        if failed.is_none() {
            failed = self.device.grant(base, mapped).err();
        }
        if let Some(error) = failed {
            let clean = end == base || self.device.unmap(base, end - base).is_ok();
            if clean {
                self.unused_addrs.push((base, mapped));
            }
            return Err(error);
        }
        let pages = pieces.iter().map(|p| (p.heap, p.page)).collect();
        let window = Window { base, mapped, start, size: mapped - start, lane, pages, used: self.clock };
        let total = window.size;
        let id = if let Some(id) = self.unused_windows.pop() {
            self.windows[id as usize] = Some(window);
            id
        } else {
            self.windows.push(Some(window));
            (self.windows.len() - 1) as u32
        };
        for piece in pieces {
            self.heap_mut(piece.heap).page_mut(piece.page).windows += 1;
        }
        self.stats.windows_made += 1;
        self.stats.harvested += pieces.len() as u64;
        self.idle.entry(lane).or_default().insert(Entry { size: total, tie: u64::from(id), block: id });
        self.idle_count += 1;
        self.occupy(id, size)
    }

    /// Marks, at home, what an allocation of `size` bytes uses through an idle window.
    fn occupy(&mut self, id: u32, size: u64) -> Result<Place, DeviceError> {
        let window = self.windows[id as usize].as_mut().expect("an idle window");
        window.used = self.clock;
        let (lane, total) = (window.lane, window.size);
        let mut wanted = self.parts(self.window(id), size);
        wanted.sort_unstable_by_key(|&(heap, _, addr, _)| (heap, addr));
        self.idle.entry(lane).or_default().remove(total, u64::from(id));
        self.idle_count -= 1;
        let mut parts = Vec::with_capacity(wanted.len());
        let mut around: (u32, Vec<u32>) = (u32::MAX, Vec::new());
        let mut failed = None;
        for (heap, _, addr, bytes) in wanted {
            if around.0 != heap {
                around = (heap, self.heap(heap).free_blocks(0));
            }
            match self.heap_mut(heap).carve(&around.1, addr, bytes) {
                Some(block) => parts.push((heap, block)),
                None => {
                    failed = Some(DeviceError::OutOfMemory);
                    break;
                }
            }
        }
        let failed = failed.or_else(|| self.borrow(lane, &parts).err());
        if let Some(error) = failed {
            for (heap, block) in parts {
                self.heap_mut(heap).release(block);
            }
            self.rest(id);
            return Err(error);
        }
        Ok(Place::Window { window: id, parts })
    }

    /// Makes the borrower wait, on the device, for the present work of the streams that lend.
    pub(super) fn borrow(&mut self, lane: u32, parts: &[(u32, u32)]) -> Result<(), DeviceError> {
        let mut asked: Vec<u32> = Vec::new();
        for owner in parts.iter().map(|(heap, _)| lane_of(*heap)) {
            if owner == lane {
                continue;
            }
            self.stats.lent += 1;
            if !asked.contains(&owner) {
                asked.push(owner);
                let event = self.device.fence()?;
                let waited = self.device.wait(event);
                self.device.discard(event);
                waited?;
            }
        }
        Ok(())
    }

    /// An allocation's window is idle again.
    pub(super) fn rest(&mut self, id: u32) {
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
    pub(super) fn retire(&mut self) {
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
    pub(super) fn drop_window(&mut self, id: u32) {
        let Some(window) = self.windows[id as usize].take() else { return };
        self.unused_windows.push(id);
        for (heap, page) in &window.pages {
            self.heap_mut(*heap).page_mut(*page).windows -= 1;
        }
        if self.device.unmap(window.base, window.mapped).is_ok() {
            self.unused_addrs.push((window.base, window.mapped));
        }
    }

    /// Makes the streams that lent pages wait, on the device, for the borrower's present work.
    pub(super) fn hand_back(&mut self, lane: u32, parts: &[(u32, u32)]) {
        let _ = (lane, parts);
        let Ok(event) = self.device.fence() else { return };
        let _ = self.device.wait(event);
        self.device.discard(event);
    }
}
