//! Windows: free pages that are mapped a second time, side by side. A window is made for a request, found again by a
//! later one of its size, and dropped at last.
//!
//! # Windows of private pools
//! A graph remembers the addresses with which it was captured, and writes to them at each replay. A window of its pool
//! is as safe as a block that is handed out again at its own address: free memory of the pool's lane is free in the
//! order of its stream, and a window only adds a second name for the same bytes. So:
//!
//! * A window of a private pool has pages of its own lane alone.
//! * It stays mapped while the pool is used, and its pages stay in the pool ([`Pool::is_trimmed`]). When the program
//!   releases the pool, window and pages go behind a fence that covers the last replay ([`Pool::release_pool`]).
//! * While an allocation uses it, its pages are taken at home, as for every window.
//! * A state of the pool that is brought back finds its windows where they were ([`Pool::restore`]).
//! * Windows cannot be dropped, so their number is bounded ([`MOST_MAPPED`]). Beyond that the pool only grows.
//! * A pool that may sleep has none, because other pages will lie behind its addresses when it wakes.

use super::pieces::Piece;
use super::windows::Window;
use super::{Place, Pool, PoolKey, TRIES};
use crate::device::{Device, DeviceError};
use crate::heap::GRANULE;
use crate::ids::{Fence, HeapId, LaneId, PageId, WindowId};
use crate::mutants::{self, Mutant};

/// The windows of a lane of a private pool map at most this multiple of what its heap holds.
const MOST_MAPPED: u64 = 8;

/// The part of a page that an allocation in a window takes: `bytes` at `addr`, its home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) heap: HeapId,
    page: PageId,
    pub(super) addr: u64,
    pub(super) bytes: u64,
}

impl<D: Device> Pool<D> {
    /// The memory at home that an allocation of `size` bytes would take through a window.
    pub(super) fn parts(&self, window: &Window, size: u64) -> Vec<Part> {
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

    /// True if the lanes of a pool may have windows. A released private pool gets no more of them, because its free
    /// memory may go at any time.
    pub(super) fn has_windows(&self, pool: PoolKey) -> bool {
        let may_sleep = self.stays_home.contains(&pool) || self.sleepers.is_region(pool) || self.sleeps(pool);
        !pool.is_private() || (self.options.private_windows && !may_sleep && !self.released.contains(&pool))
    }

    /// True if a lane may have one more window, for `size` bytes.
    pub(super) fn may_map_again(&self, lane: LaneId, size: u64) -> bool {
        let pool = self.lanes[lane].pool;
        if !pool.is_private() {
            return true;
        }
        let held = self.heap(lane.large()).held();
        self.has_windows(pool) && self.windows.mapped_of(lane) + size <= MOST_MAPPED * held
    }

    /// A cached window in which the first `size` bytes are free.
    pub(super) fn reuse_window(&mut self, lane: LaneId, size: u64) -> Option<Place> {
        if !self.has_windows(self.lanes[lane].pool) {
            return None;
        }
        let fits = |window: &WindowId| {
            self.parts(self.windows.get(*window), size).into_iter().all(|Part { heap, page, addr, bytes }| {
                let home = self.heap(heap);
                let page = home.page(page);
                if heap.lane() != lane && page.freed > self.fences.done(heap.lane()) {
                    return false;
                }
                // The window needs only part of this page, and that part may be free although the page is not.
                page.is_free() || (bytes < page.size && page.handle.is_some() && home.is_free(addr, bytes))
            })
        };
        let found = self.windows.idle_from(lane, size).take(TRIES).find(fits)?;
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
            // The caller never got these addresses, so no work uses them.
            if end == base || self.device.unmap(base, end - base).is_ok() {
                self.windows.ranges.give(base, mapped);
            } else {
                self.keep_for_good(pieces.iter().map(|piece| (piece.heap, piece.page)));
            }
            return Err(error);
        }
        let pages = pieces.iter().map(|p| (p.heap, p.page)).collect();
        let is_kept = self.lanes[lane].pool.is_private();
        let id = self.windows.add(Window::new(lane, is_kept, base, mapped, start, pages));
        for piece in pieces {
            self.heap_mut(piece.heap).map_again(piece.page);
        }
        self.stats.windows_made += 1;
        self.stats.private_windows += u64::from(is_kept);
        self.stats.harvested += pieces.len() as u64;
        self.occupy(id, size)
    }

    /// Marks, at home, what an allocation of `size` bytes uses through an idle window.
    fn occupy(&mut self, id: WindowId, size: u64) -> Result<Place, DeviceError> {
        self.windows.wake_at(id, self.clock);
        let window = self.windows.get(id);
        let lane = window.lane();
        let mut wanted = self.parts(window, size);
        if self.lanes[lane].pool.is_private() && mutants::is(Mutant::WindowsLeaveHomesFree) {
            wanted.clear();
        }
        wanted.sort_unstable_by_key(|part| (part.heap, part.addr));
        let mut parts = Vec::with_capacity(wanted.len());
        let mut failed = None;
        for Part { heap, addr, bytes, .. } in wanted {
            match self.heap_mut(heap).take_part(addr, bytes) {
                Some(block) => parts.push((heap, block)),
                None => {
                    failed = Some(DeviceError::OutOfMemory);
                    break;
                }
            }
        }
        if let Some(error) = failed {
            for (heap, block) in parts {
                // No work used it.
                self.heap_mut(heap).release_behind(block, Fence::PAST);
            }
            self.windows.rest(id);
            return Err(error);
        }
        self.stats.lent += parts.iter().filter(|(heap, _)| heap.lane() != lane).count() as u64;
        Ok(Place::Window { window: id, parts })
    }

    fn window_addr(&mut self, size: u64) -> Result<u64, DeviceError> {
        // If the process has few addresses left, the program and memory of other processes need some too.
        let room = self.device.address_room() / 8;
        let piece = self.card().min(room).div_ceil(GRANULE) * GRANULE;
        self.windows.ranges.take(&mut self.device, size, piece)
    }

    /// Drops idle windows beyond the number that is kept, the least recently used first.
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

    /// Drops a window that is in no set: its addresses leave.
    pub(super) fn drop_window(&mut self, id: WindowId) {
        let Some(window) = self.windows.remove(id) else { return };
        let (lane, mut freed, mut pages) =
            (window.lane(), Fence::PAST, Vec::with_capacity(window.pages().len()));
        for (heap, page) in window.pages() {
            let page = self.heap_mut(*heap).unmap_again(*page);
            pages.extend(page.handle);
            // Lent pages were settled before their bytes became free.
            if heap.lane() == lane {
                freed = freed.max(page.freed);
            }
        }
        self.window_leaves(lane, (window.base(), window.mapped()), freed, pages);
    }

    /// Marks pages that the device has mapped somewhere and does not unmap: they are never given back.
    pub(super) fn keep_for_good(&mut self, pages: impl Iterator<Item = (HeapId, PageId)>) {
        for (heap, page) in pages {
            self.heap_mut(heap).map_again(page);
        }
    }

    /// Drops a lane's idle windows.
    pub(super) fn drop_idle_windows_of(&mut self, lane: LaneId) {
        for id in self.windows.idle_of(lane) {
            self.drop_idle_window(id);
        }
    }

    /// Drops all idle windows, except those of private pools in use.
    pub(super) fn drop_all_idle_windows(&mut self) {
        for lane in self.windows.lanes() {
            if self.is_trimmed(lane.large()) || mutants::is(Mutant::DropKeptWindows) {
                self.drop_idle_windows_of(lane);
            }
        }
    }
}
