//! The set of windows: second ranges of addresses for free pages, side by side, kept for the next request of their
//! size. [`mapping`](super::mapping) maps and uses them.
//!
//! A window of a private pool is **kept**: graphs may remember its addresses, so it stays mapped for as long as the
//! pool is used.

use crate::free_set::{Entry, FreeSet};
use crate::ids::{HeapId, LaneId, PageId, WindowId};
use crate::ranges::Ranges;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// A second range of addresses for pages, side by side: `[base, base + mapped)`.
///
/// Invariants: `start + size == mapped`; `mapped` is the sum of the sizes of `pages`; `start` lies in the first page.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// The address of its first page, and the number of mapped bytes.
    base: u64,
    mapped: u64,
    /// Offset of allocations: the bytes of the first page before it belong to other blocks.
    start: u64,
    /// Usable bytes from there on.
    size: u64,
    lane: LaneId,
    /// True for a window of a private pool.
    is_kept: bool,
    /// Heap and page, in order of address.
    pages: Vec<(HeapId, PageId)>,
    /// The time of the last allocation in it, by the pool's clock.
    used: u64,
}

impl Window {
    /// A window over `pages`, which are mapped in `[base, base + mapped)`. Its first `start` bytes are others'.
    pub(super) fn new(
        lane: LaneId,
        is_kept: bool,
        base: u64,
        mapped: u64,
        start: u64,
        pages: Vec<(HeapId, PageId)>,
    ) -> Window {
        Window { base, mapped, start, size: mapped - start, lane, is_kept, pages, used: 0 }
    }

    pub(super) fn lane(&self) -> LaneId {
        self.lane
    }

    /// The address of its first page.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The number of mapped bytes.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Offset of allocations in its first page.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The address of an allocation in it.
    pub(super) fn addr(&self) -> u64 {
        self.base + self.start
    }

    /// The usable bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Heap and page, in order of address, from `base` on.
    pub(super) fn pages(&self) -> &[(HeapId, PageId)] {
        &self.pages
    }
}

/// All windows of a pool. A window is idle if no allocation uses it.
///
/// Invariants:
/// * `unused == {id: all[id] == None}`;
/// * `by_use` has the idle windows that are not kept;
/// * `mapped[lane]` is the sum of `all[id].mapped` over the lane's windows;
/// * an entry `(size, id)` of `idle[lane]` has `all[id].size == size` and `all[id].lane == lane`.
#[derive(Debug, Default)]
pub(super) struct Windows {
    all: Vec<Option<Window>>,
    unused: Vec<WindowId>,
    /// Idle windows by size, for each lane.
    idle: FxHashMap<LaneId, FreeSet>,
    /// Those that are not kept, by the time of their last allocation.
    by_use: BTreeSet<(u64, WindowId)>,
    mapped: FxHashMap<LaneId, u64>,
    /// Address ranges for windows.
    pub(super) ranges: Ranges,
}

impl Windows {
    pub(super) fn get(&self, id: WindowId) -> &Window {
        self.all[id.index()].as_ref().expect("a window that an allocation or the idle set names")
    }

    /// The number of idle windows that are not kept.
    pub(super) fn idle_count(&self) -> usize {
        self.by_use.len()
    }

    /// Bytes mapped in a lane's windows.
    pub(super) fn mapped_of(&self, lane: LaneId) -> u64 {
        self.mapped.get(&lane).copied().unwrap_or(0)
    }

    /// Adds a window, which is idle.
    pub(super) fn add(&mut self, window: Window) -> WindowId {
        *self.mapped.entry(window.lane).or_default() += window.mapped;
        let id = if let Some(id) = self.unused.pop() {
            self.all[id.index()] = Some(window);
            id
        } else {
            self.all.push(Some(window));
            WindowId((self.all.len() - 1) as u32)
        };
        self.rest(id);
        id
    }

    /// Removes a window that is not idle.
    pub(super) fn remove(&mut self, id: WindowId) -> Option<Window> {
        let window = self.all[id.index()].take()?;
        self.unused.push(id);
        *self.mapped.entry(window.lane).or_default() -= window.mapped;
        Some(window)
    }

    /// Makes a window idle.
    pub(super) fn rest(&mut self, id: WindowId) {
        let &Window { size, lane, is_kept, used, .. } = self.get(id);
        self.idle.entry(lane).or_default().insert(Entry { size, tie: u64::from(id.0), block: id.0 });
        if !is_kept {
            self.by_use.insert((used, id));
        }
    }

    /// Takes a window out of the idle ones.
    pub(super) fn wake(&mut self, id: WindowId) {
        let &Window { size, lane, used, .. } = self.get(id);
        self.idle.entry(lane).or_default().remove(size, u64::from(id.0));
        self.by_use.remove(&(used, id));
    }

    /// [`Windows::wake`] for an allocation, at time `now`.
    pub(super) fn wake_at(&mut self, id: WindowId, now: u64) {
        self.wake(id);
        if let Some(window) = &mut self.all[id.index()] {
            window.used = now;
        }
    }

    /// The idle window whose last use is the longest ago, of those that are not kept.
    pub(super) fn oldest(&self) -> Option<WindowId> {
        self.by_use.first().map(|&(_, id)| id)
    }

    /// A lane's idle windows.
    pub(super) fn idle_of(&self, lane: LaneId) -> Vec<WindowId> {
        self.idle.get(&lane).into_iter().flat_map(FreeSet::iter).map(|entry| WindowId(entry.block)).collect()
    }

    /// A lane's idle windows with room for `size` bytes, the smallest first.
    pub(super) fn idle_from(&self, lane: LaneId, size: u64) -> impl Iterator<Item = WindowId> + '_ {
        let idle = self.idle.get(&lane).into_iter();
        idle.flat_map(move |idle| idle.iter_from(size)).map(|entry| WindowId(entry.block))
    }

    /// The lanes that ever had an idle window, in order.
    pub(super) fn lanes(&self) -> Vec<LaneId> {
        let mut lanes: Vec<LaneId> = self.idle.keys().copied().collect();
        lanes.sort_unstable();
        lanes
    }

    /// Adds `by` to the page numbers of a heap from number `from` on.
    pub(super) fn renumber(&mut self, heap: HeapId, from: PageId, by: i32) {
        for window in self.all.iter_mut().flatten() {
            for (_, page) in window.pages.iter_mut().filter(|(of, page)| *of == heap && *page >= from) {
                *page = page.moved(by);
            }
        }
    }

    /// Every window.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Window> {
        self.all.iter().flatten()
    }

    /// The window for which `is_it` is true. Looks at all windows.
    pub(super) fn named(&self, is_it: impl Fn(&Window) -> bool) -> Option<WindowId> {
        let at = self.all.iter().position(|window| window.as_ref().is_some_and(&is_it));
        at.map(|at| WindowId(at as u32))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let empty = self.all.iter().filter(|window| window.is_none()).count();
        let is_empty = |id: &WindowId| self.all.get(id.index()).is_some_and(Option::is_none);
        if empty != self.unused.len() || !self.unused.iter().all(is_empty) {
            return Err(format!("{empty} windows are gone, {} can be used again", self.unused.len()));
        }
        if let Some(window) = self.iter().find(|window| window.start + window.size != window.mapped) {
            return Err(format!("the window at {:#x} does not end where its pages do", window.base));
        }
        let mut count = 0;
        for (&lane, entry) in self.idle.iter().flat_map(|(lane, set)| set.iter().map(move |e| (lane, e))) {
            let window = self.all.get(entry.block as usize).and_then(Option::as_ref);
            let is_by_use = |w: &&Window| self.by_use.contains(&(w.used, WindowId(entry.block)));
            count += usize::from(window.filter(|window| !window.is_kept).is_some_and(|w| is_by_use(&w)));
            if window.is_none_or(|window| (window.lane, window.size) != (lane, entry.size)) {
                return Err(format!("window {} is idle in {lane:?} and is not its own", entry.block));
            }
        }
        if count != self.by_use.len() {
            return Err(format!("{count} windows are idle, {} by use", self.by_use.len()));
        }
        let mut mapped: FxHashMap<LaneId, u64> = FxHashMap::default();
        for window in self.iter() {
            *mapped.entry(window.lane).or_default() += window.mapped;
        }
        match self.mapped.iter().find(|(lane, bytes)| mapped.get(lane).copied().unwrap_or(0) != **bytes) {
            Some((lane, bytes)) => Err(format!("{lane:?} does not have {bytes} bytes in windows")),
            None => Ok(()),
        }
    }
}
