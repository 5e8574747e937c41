//! Windows: a second range of addresses for free pages, side by side, kept for the next request of its size.

use super::{Piece, Place, Pool, TRIES, lane_of};
use crate::device::{Device, DeviceError};
use crate::free_set::{Entry, FreeSet};
use crate::heap::GRANULE;
use crate::ranges::Ranges;
use rustc_hash::FxHashMap;

/// A second range of addresses for pages, side by side.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Where its first page is mapped, and how many bytes are.
    pub(super) base: u64,
    mapped: u64,
    /// Where allocations begin: past what others hold of the first page.
    pub(super) start: u64,
    /// What can be used from there.
    size: u64,
    lane: u32,
    /// Heap and page, in order of address.
    pages: Vec<(u32, u32)>,
    used: u64,
}

impl Window {
    /// Heap and page, in order of address, from `base` on.
    pub(super) fn pages(&self) -> &[(u32, u32)] {
        &self.pages
    }
}

/// All windows of a pool.
///
/// Invariants: `unused` names exactly the empty places of `all`; `count` is the number of windows in the sets of
/// `idle`; each of those is there, under its own lane and size.
#[derive(Debug, Default)]
pub(super) struct Windows {
    all: Vec<Option<Window>>,
    unused: Vec<u32>,
    /// Windows that no allocation uses, by size, for each lane.
    idle: FxHashMap<u32, FreeSet>,
    count: usize,
    /// Addresses that windows can have.
    pub(super) ranges: Ranges,
}

impl Windows {
    pub(super) fn get(&self, id: u32) -> &Window {
        self.all[id as usize].as_ref().expect("a window that an allocation or the idle set names")
    }

    /// A new window, which is idle.
    fn add(&mut self, window: Window) -> u32 {
        let id = if let Some(id) = self.unused.pop() {
            self.all[id as usize] = Some(window);
            id
        } else {
            self.all.push(Some(window));
            (self.all.len() - 1) as u32
        };
        self.rest(id);
        id
    }

    /// A window that is not idle is no more.
    fn remove(&mut self, id: u32) -> Option<Window> {
        let window = self.all[id as usize].take()?;
        self.unused.push(id);
        Some(window)
    }

    /// No allocation uses a window any more.
    pub(super) fn rest(&mut self, id: u32) {
        let &Window { size, lane, .. } = self.get(id);
        self.idle.entry(lane).or_default().insert(Entry { size, tie: u64::from(id), block: id });
        self.count += 1;
    }

    /// A window is not idle any more.
    fn wake(&mut self, id: u32) {
        let &Window { size, lane, .. } = self.get(id);
        self.idle.entry(lane).or_default().remove(size, u64::from(id));
        self.count -= 1;
    }

    /// The idle window that was not used for longest.
    fn oldest(&self) -> Option<u32> {
        let idle = self.idle.values().flat_map(FreeSet::iter).map(|entry| entry.block);
        idle.min_by_key(|&id| (self.get(id).used, id))
    }

    fn idle_of(&self, lane: u32) -> Vec<u32> {
        self.idle.get(&lane).into_iter().flat_map(FreeSet::iter).map(|entry| entry.block).collect()
    }

    /// Where each window is mapped, and how many bytes.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.all.iter().flatten().map(|window| (window.base, window.mapped))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let empty = self.all.iter().filter(|window| window.is_none()).count();
        let is_empty = |id: &u32| self.all.get(*id as usize).is_some_and(Option::is_none);
        if empty != self.unused.len() || !self.unused.iter().all(is_empty) {
            return Err(format!("{empty} windows are gone, {} can be used again", self.unused.len()));
        }
        let mut count = 0;
        for (&lane, entry) in self.idle.iter().flat_map(|(lane, set)| set.iter().map(move |e| (lane, e))) {
            count += 1;
            let window = self.all.get(entry.block as usize).and_then(Option::as_ref);
            if window.is_none_or(|window| (window.lane, window.size) != (lane, entry.size)) {
                return Err(format!("window {} is idle in lane {lane} and is not its own", entry.block));
            }
        }
        if count == self.count {
            Ok(())
        } else {
            Err(format!("{count} windows are idle, {} counted", self.count))
        }
    }
}

impl<D: Device> Pool<D> {
    /// The home of what an allocation of `size` bytes would take through a window: heap, page, address and size of each
    /// part.
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
        let idle = self.windows.idle.get(&lane)?;
        let done = self.fences.done();
        let mut around: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let mut fits = |entry: &Entry| {
            self.parts(self.windows.get(entry.block), size).into_iter().all(|(heap, id, addr, bytes)| {
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
                self.windows.ranges.give(base, mapped);
            } else {
                self.keep_for_good(pieces.iter().map(|piece| (piece.heap, piece.page)));
            }
            return Err(error);
        }
        let pages = pieces.iter().map(|p| (p.heap, p.page)).collect();
        let window = Window { base, mapped, start, size: mapped - start, lane, pages, used: self.clock };
        let id = self.windows.add(window);
        for piece in pieces {
            self.heap_mut(piece.heap).page_mut(piece.page).windows += 1;
        }
        self.stats.windows_made += 1;
        self.stats.harvested += pieces.len() as u64;
        self.occupy(id, size)
    }

    /// Marks, at home, what an allocation of `size` bytes uses through an idle window.
    fn occupy(&mut self, id: u32, size: u64) -> Result<Place, DeviceError> {
        self.windows.wake(id);
        if let Some(window) = &mut self.windows.all[id as usize] {
            window.used = self.clock;
        }
        let window = self.windows.get(id);
        let lane = window.lane;
        let mut wanted = self.parts(window, size);
        wanted.sort_unstable_by_key(|&(heap, _, addr, _)| (heap, addr));
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
            self.windows.rest(id);
            return Err(error);
        }
        self.stats.lent += parts.iter().filter(|(heap, _)| lane_of(*heap) != lane).count() as u64;
        Ok(Place::Window { window: id, parts })
    }

    fn window_addr(&mut self, size: u64) -> Result<u64, DeviceError> {
        let piece = self.card().div_ceil(GRANULE) * GRANULE;
        self.windows.ranges.take(&mut self.device, size, piece)
    }

    /// Lets go of windows beyond the number that is kept, the least recently used first.
    pub(super) fn retire(&mut self) {
        while self.windows.count > self.options.windows {
            let Some(oldest) = self.windows.oldest() else { return };
            self.drop_idle_window(oldest);
        }
    }

    fn drop_idle_window(&mut self, id: u32) {
        self.windows.wake(id);
        self.drop_window(id);
    }

    /// Lets go of a window that is in no set: its addresses leave.
    pub(super) fn drop_window(&mut self, id: u32) {
        let Some(window) = self.windows.remove(id) else { return };
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
        for id in self.windows.idle_of(lane) {
            self.drop_idle_window(id);
        }
    }

    /// Lets go of all windows that no allocation uses.
    pub(super) fn drop_all_idle_windows(&mut self) {
        let mut lanes: Vec<u32> = self.windows.idle.keys().copied().collect();
        lanes.sort_unstable();
        for lane in lanes {
            self.drop_idle_windows_of(lane);
        }
    }

    /// The pages of a heap from number `from` on have numbers that are larger by `by`.
    pub(super) fn renumber_pages(&mut self, heap: u32, from: u32, by: i32) {
        for window in self.windows.all.iter_mut().flatten() {
            for (_, page) in window.pages.iter_mut().filter(|(of, page)| *of == heap && *page >= from) {
                *page = page.wrapping_add_signed(by);
            }
        }
    }
}
