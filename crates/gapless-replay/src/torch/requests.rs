//! The way of a request: the best free block, else new memory, else what a full card leaves to try.

use super::blocks::{NONE, State};
use super::{Shelf, Torch};
use crate::allocator::{Oom, Slot};
use crate::device::Device;
use crate::free_set::Entry;
use gapless_trace::torch_rules;
use gapless_trace::{Bytes, DeviceAddr};

impl<D: Device> Torch<D> {
    /// The best free block for `size`, taken out of the set.
    #[inline]
    pub(super) fn search(&mut self, shelf: u16, size: u64) -> Option<u32> {
        if self.collects() {
            let Shelf { pool, small, .. } = self.shelves[shelf as usize];
            self.pools[pool as usize].searches[usize::from(small)] += 1;
        }
        let free = &self.shelves[shelf as usize].free;
        let mut found = free.at_least(size)?;
        if self.blocks[found.block].expandable {
            if self.expandable(shelf) {
                found = self.shortest_reach(shelf, found);
            } else {
                // Expandable memory from before the setting was turned off stays as it is.
                found = free.after(found)?;
                while self.blocks[found.block].expandable {
                    found = free.after(found)?;
                }
            }
        }
        let max_split = self.settings.max_split();
        if size < max_split {
            if found.size >= max_split {
                return None;
            }
        } else if found.size >= size.saturating_add(self.settings.max_non_split_rounding) {
            return None;
        }
        self.shelves[shelf as usize].free.remove(found.size, found.tie);
        Some(found.block)
    }

    /// An expandable block counts as large as it could grow. Goes on from `found` as long as the next block could grow
    /// less.
    fn shortest_reach(&self, shelf: u16, mut found: Entry) -> Entry {
        let reach = |entry: Entry| {
            let next = self.blocks[entry.block].next;
            let more = if next != NONE && self.blocks[next].state == State::Unmapped {
                self.blocks[next].size
            } else {
                0
            };
            entry.size + more
        };
        let free = &self.shelves[shelf as usize].free;
        while self.blocks[found.block].expandable {
            match free.after(found) {
                Some(next) if reach(next) < reach(found) => found = next,
                _ => break,
            }
        }
        found
    }

    /// Everything that is tried when no free block fits.
    #[cold]
    pub(super) fn miss(&mut self, shelf: u16, rounded: u64, requested: Bytes) -> Result<u32, Oom> {
        let segment = self.settings.segment_size(rounded);
        if self.collects() {
            self.collect();
        }
        if let Some(id) = self.new_segment(shelf, rounded, segment, false) {
            return Ok(id);
        }
        if self.release_available(shelf, rounded)
            && let Some(id) = self.new_segment(shelf, rounded, segment, false)
        {
            return Ok(id);
        }
        if !self.holds_back(shelf) {
            self.release_cached(None);
            if let Some(id) = self.new_segment(shelf, rounded, segment, true) {
                return Ok(id);
            }
        }
        self.stats.ooms += 1;
        let mut free = self.device.available();
        if let Some(cap) = self.cap {
            free = free.min(cap.saturating_sub(self.stats.reserved.current));
        }
        Err(Oom { requested, asked: Bytes(segment), free: Bytes(free) })
    }

    /// Hands out the front of `id`, which is in no set.
    #[inline]
    pub(super) fn place(&mut self, mut id: u32, slot: Slot, requested: u64, rounded: u64) -> DeviceAddr {
        let whole = self.blocks[id];
        let expandable = self.settings.base.expandable_segments;
        let splits = torch_rules::splits(Bytes(whole.size), Bytes(rounded), expandable, &self.settings.base);
        id = self.cut(id, rounded, splits);
        self.hand_out(id, slot, requested)
    }

    /// Takes `size` bytes at the front of a free block that is in no set, or all of it if it is not split.
    #[inline]
    pub(super) fn cut(&mut self, mut id: u32, size: u64, splits: bool) -> u32 {
        let whole = self.blocks[id];
        let was_split = whole.is_split();
        if splits {
            let rest = id;
            id = self.cut_front(rest, size);
            self.put(rest);
            if !whole.expandable {
                if was_split {
                    self.stats.inactive_split.sub(size);
                } else {
                    self.stats.inactive_split_blocks.add(1);
                    self.stats.inactive_split.add(whole.size - size);
                }
            }
        } else if was_split && !whole.expandable {
            self.stats.inactive_split_blocks.sub(1);
            self.stats.inactive_split.sub(whole.size);
        }
        id
    }

    /// Counts a block as a caller's; one without a slot (`NONE`) is given back by the allocator itself.
    #[inline]
    pub(super) fn hand_out(&mut self, id: u32, slot: Slot, requested: u64) -> DeviceAddr {
        let block = &mut self.blocks[id];
        block.state = State::Live;
        block.slot = slot;
        block.requested = requested;
        let (addr, size) = (block.addr, block.size);
        self.stats.allocations.add(1);
        self.stats.allocated.add(size);
        self.stats.active_blocks.add(1);
        self.stats.active.add(size);
        self.stats.requested.add(requested);
        if size >= self.settings.max_split() {
            self.stats.oversize_allocations.add(1);
        }
        if slot != NONE {
            if self.slots.len() <= slot as usize {
                self.slots.resize(slot as usize + 1, NONE);
            }
            self.slots[slot as usize] = id;
        }
        DeviceAddr(addr)
    }
}
