//! Windows: a second range of addresses for free pages, side by side, kept for the next request of its size.

use super::{Piece, Place, Pool, TRIES, Window, lane_of};
use crate::device::{Device, DeviceError};
use crate::free_set::{Entry, FreeSet};
use crate::heap::GRANULE;
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
        let done = self.fences.done();
        let mut around: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let mut fits = |entry: &Entry| {
            self.parts(self.window(entry.block), size).into_iter().all(|(heap, id, addr, bytes)| {
                let home = self.heap(heap);
                let page = &home.pages()[id as usize];
                if lane_of(heap) != lane && page.freed > done {
                    return false;
                }
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
            // Nobody saw these addresses.
            if end == base || self.device.unmap(base, end - base).is_ok() {
                self.window_ranges.give(base, mapped);
            } else {
                self.keep_for_good(pieces.iter().map(|piece| (piece.heap, piece.page)));
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
        if let Some(error) = failed {
            for (heap, block) in parts {
                // Nothing used it.
                self.heap_mut(heap).release_behind(block, 0);
            }
            self.rest(id);
            return Err(error);
        }
        self.stats.lent += parts.iter().filter(|(heap, _)| lane_of(*heap) != lane).count() as u64;
        Ok(Place::Window { window: id, parts })
    }

    /// An allocation's window is idle again.
    pub(super) fn rest(&mut self, id: u32) {
        let Window { size, lane, .. } = *self.window(id);
        self.idle.entry(lane).or_default().insert(Entry { size, tie: u64::from(id), block: id });
        self.idle_count += 1;
    }

    fn window_addr(&mut self, size: u64) -> Result<u64, DeviceError> {
        let piece = self.card().div_ceil(GRANULE) * GRANULE;
        self.window_ranges.take(&mut self.device, size, piece)
    }

    /// Lets go of windows beyond the number that is kept, the least recently used first.
    pub(super) fn retire(&mut self) {
        while self.idle_count > self.options.windows {
            let all = self.idle.values().flat_map(FreeSet::iter).map(|entry| entry.block);
            let Some(oldest) = all.min_by_key(|&id| (self.window(id).used, id)) else { return };
            let Window { size, lane, .. } = *self.window(oldest);
            self.idle.entry(lane).or_default().remove(size, u64::from(oldest));
            self.idle_count -= 1;
            self.drop_window(oldest);
        }
    }

    /// Lets go of a window that is in no set: its addresses leave.
    pub(super) fn drop_window(&mut self, id: u32) {
        let Some(window) = self.windows[id as usize].take() else { return };
        self.unused_windows.push(id);
        let mut freed = 0;
        for (heap, page) in &window.pages {
            let page = self.heap_mut(*heap).page_mut(*page);
            page.windows -= 1;
            freed = freed.max(page.freed);
        }
        self.window_leaves(window.base, window.mapped, freed);
    }

    /// Pages that the device has mapped somewhere and does not take away again: they are never given back.
    pub(super) fn keep_for_good(&mut self, pages: impl Iterator<Item = (u32, u32)>) {
        for (heap, page) in pages {
            self.heap_mut(heap).page_mut(page).windows += 1;
        }
    }

    /// Lets go of a lane's idle windows.
    pub(super) fn drop_idle_windows_of(&mut self, lane: u32) {
        let Some(idle) = self.idle.remove(&lane) else { return };
        for entry in idle.iter() {
            self.idle_count -= 1;
            self.drop_window(entry.block);
        }
    }

    /// Lets go of all windows that no allocation uses.
    pub(super) fn drop_all_idle_windows(&mut self) {
        let mut lanes: Vec<u32> = self.idle.keys().copied().collect();
        lanes.sort_unstable();
        for lane in lanes {
            self.drop_idle_windows_of(lane);
        }
    }

    /// The pages of a heap from number `from` on have numbers that are larger by `by`.
    pub(super) fn renumber_pages(&mut self, heap: u32, from: u32, by: i32) {
        for window in self.windows.iter_mut().flatten() {
            for (_, page) in window.pages.iter_mut().filter(|(of, page)| *of == heap && *page >= from) {
                *page = page.wrapping_add_signed(by);
            }
        }
    }
}
