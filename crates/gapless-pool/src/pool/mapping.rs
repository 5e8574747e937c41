//! Free pages mapped a second time, side by side, in a window: made for a request, found again by a later one of its
//! size, and let go of.

use super::pieces::Piece;
use super::windows::Window;
use super::{Place, Pool, TRIES};
use crate::device::{Device, DeviceError};
use crate::heap::GRANULE;
use crate::ids::{Fence, HeapId, LaneId, PageId, WindowId};
use rustc_hash::FxHashMap;

/// What an allocation in a window takes of one page: `bytes` at `addr`, its home.
#[derive(Clone, Copy, Debug)]
struct Part {
    heap: HeapId,
    page: PageId,
    addr: u64,
    bytes: u64,
}

impl<D: Device> Pool<D> {
    /// The home of what an allocation of `size` bytes would take through a window.
    fn parts(&self, window: &Window, size: u64) -> Vec<Part> {
        let mut parts = Vec::with_capacity(window.pages().len());
        let (mut left, mut from) = (size, window.start());
        for &(heap, id) in window.pages() {
            if left == 0 {
                break;
            }
            let page = self.heap(heap).page(id);
            let bytes = left.min(page.size - from);
            parts.push(Part { heap, page: id, addr: page.addr + from, bytes });
            left -= bytes;
            from = 0;
        }
        parts
    }

    /// A cached window in which the first `size` bytes are free.
    pub(super) fn reuse_window(&mut self, lane: LaneId, size: u64) -> Option<Place> {
        let done = self.fences.done();
        let mut around: FxHashMap<HeapId, Vec<u32>> = FxHashMap::default();
        let mut fits = |window: &WindowId| {
            self.parts(self.windows.get(*window), size).into_iter().all(|Part { heap, page, addr, bytes }| {
                let home = self.heap(heap);
                let page = home.page(page);
                if heap.lane() != lane && page.freed > done {
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
        let found = self.windows.idle_from(lane, size).take(TRIES).find(&mut fits)?;
        let place = self.occupy(found, size).ok()?;
        self.stats.window_hits += 1;
        Some(place)
    }

    /// Maps the pages of `pieces` side by side and puts an allocation of `size` bytes there.
    pub(super) fn make_window(
        &mut self,
        lane: LaneId,
        pieces: &[Piece],
        size: u64,
    ) -> Result<Place, DeviceError> {
        let mapped: u64 = pieces.iter().map(|p| p.page_size).sum();
        let start = pieces.first().map_or(0, |p| p.from);
        let base = self.window_addr(mapped)?;
        let mut end = base;
        let mut failed = None;
        for piece in pieces {
            let handle = self.heap(piece.heap).page(piece.page).handle;
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
                self.windows.ranges.give(base, mapped);
            } else {
                self.keep_for_good(pieces.iter().map(|piece| (piece.heap, piece.page)));
            }
            return Err(error);
        }
        let pages = pieces.iter().map(|p| (p.heap, p.page)).collect();
        let id = self.windows.add(Window::new(lane, base, mapped, start, pages));
        for piece in pieces {
            self.heap_mut(piece.heap).page_mut(piece.page).windows += 1;
        }
        self.stats.windows_made += 1;
        self.stats.harvested += pieces.len() as u64;
        self.occupy(id, size)
    }

    /// Marks, at home, what an allocation of `size` bytes uses through an idle window.
    fn occupy(&mut self, id: WindowId, size: u64) -> Result<Place, DeviceError> {
        self.windows.wake_at(id, self.clock);
        let window = self.windows.get(id);
        let lane = window.lane();
        let mut wanted = self.parts(window, size);
        wanted.sort_unstable_by_key(|part| (part.heap, part.addr));
        let mut parts = Vec::with_capacity(wanted.len());
        let mut around: Option<(HeapId, Vec<u32>)> = None;
        let mut failed = None;
        for Part { heap, addr, bytes, .. } in wanted {
            if around.as_ref().is_none_or(|(of, _)| *of != heap) {
                around = Some((heap, self.heap(heap).free_blocks(0)));
            }
            let blocks = around.as_ref().map_or(&[][..], |(_, blocks)| blocks);
            match self.heap_mut(heap).carve(blocks, addr, bytes) {
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
                self.heap_mut(heap).release_behind(block, Fence::PAST);
            }
            self.windows.rest(id);
            return Err(error);
        }
        self.stats.lent += parts.iter().filter(|(heap, _)| heap.lane() != lane).count() as u64;
        Ok(Place::Window { window: id, parts })
    }

    fn window_addr(&mut self, size: u64) -> Result<u64, DeviceError> {
        let piece = self.card().div_ceil(GRANULE) * GRANULE;
        self.windows.ranges.take(&mut self.device, size, piece)
    }

    /// Lets go of windows beyond the number that is kept, the least recently used first.
    pub(super) fn retire(&mut self) {
        while self.windows.idle_count() > self.options.windows {
            let Some(oldest) = self.windows.oldest() else { return };
            self.drop_idle_window(oldest);
        }
    }

    fn drop_idle_window(&mut self, id: WindowId) {
        self.windows.wake(id);
        self.drop_window(id);
    }

    /// Lets go of a window that is in no set: its addresses leave.
    pub(super) fn drop_window(&mut self, id: WindowId) {
        let Some(window) = self.windows.remove(id) else { return };
        let mut freed = Fence::PAST;
        for (heap, page) in window.pages() {
            let page = self.heap_mut(*heap).page_mut(*page);
            page.windows -= 1;
            freed = freed.max(page.freed);
        }
        self.window_leaves(window.base(), window.mapped(), freed);
    }

    /// Pages that the device has mapped somewhere and does not take away again: they are never given back.
    pub(super) fn keep_for_good(&mut self, pages: impl Iterator<Item = (HeapId, PageId)>) {
        for (heap, page) in pages {
            self.heap_mut(heap).page_mut(page).windows += 1;
        }
    }

    /// Lets go of a lane's idle windows.
    pub(super) fn drop_idle_windows_of(&mut self, lane: LaneId) {
        for id in self.windows.idle_of(lane) {
            self.drop_idle_window(id);
        }
    }

    /// Lets go of all windows that no allocation uses.
    pub(super) fn drop_all_idle_windows(&mut self) {
        for lane in self.windows.lanes() {
            self.drop_idle_windows_of(lane);
        }
    }
}
