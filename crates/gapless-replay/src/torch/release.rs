//! Giving memory back to the device: collection of old blocks, room for one large request, and the whole cache.

use super::blocks::{Block, State};
use super::{NoteKind, Torch};
use crate::cost;
use crate::device::Device;
use crate::free_set::Entry;
use gapless_trace::PoolId;

impl<D: Device> Torch<D> {
    /// Frees old unsplit blocks of the large half of the default pool once more than the threshold's share of the cap
    /// is held.
    pub(super) fn collect(&mut self) {
        // In a recording the cap is not known, but the freed blocks are: collect as long as the recording did.
        let recorded = self.device.expects_free();
        let target = match (recorded, self.cap) {
            (Some(expected), _) if !expected => return,
            (Some(_), _) => u64::MAX,
            (None, Some(cap)) => {
                let threshold = (self.settings.base.garbage_collection_threshold * cap as f64) as u64;
                if self.stats.reserved.current <= threshold {
                    return;
                }
                self.stats.reserved.current - threshold
            }
            (None, None) => return,
        };
        let searches = self.pools[0].searches[0];
        let shelves = self.pools[0].shelves[0].clone();
        let free = |torch: &Self| -> Vec<u32> {
            shelves.iter().flat_map(|&s| torch.shelves[s as usize].free.iter().map(|e| e.block)).collect()
        };
        let age = |torch: &Self, id: u32| searches - torch.blocks[id].free_since;
        let unsplit: Vec<u32> = free(self).into_iter().filter(|&id| !self.blocks[id].is_split()).collect();
        let mut total_age: f64 = unsplit.iter().map(|&id| age(self, id) as f64).sum();
        let mut count = unsplit.len();
        let (mut reclaimed, mut freed) = (0, true);
        while reclaimed < target && freed && count > 0 && self.device.expects_free() != Some(false) {
            let limit = total_age / count as f64;
            freed = false;
            for id in free(self) {
                let block = self.blocks[id];
                let old = age(self, id) as f64;
                if !block.is_split() && !block.expandable && old >= limit {
                    freed = true;
                    reclaimed += block.size;
                    total_age -= old;
                    count -= 1;
                    self.release_segment(id);
                }
            }
        }
    }

    /// With a largest size that is split: frees the block, or blocks, that are too large to have been used for `size`.
    pub(super) fn release_available(&mut self, shelf: u16, size: u64) -> bool {
        let max_split = self.settings.max_split();
        if max_split == u64::MAX {
            return false;
        }
        // Blocks of that size are whole segments, unless a request that named its address has cut one.
        let whole = |torch: &Self, e: &Entry| {
            let block = &torch.blocks[e.block];
            !block.expandable && !block.is_split()
        };
        let wanted = size.max(max_split);
        let free = &self.shelves[shelf as usize].free;
        if let Some(entry) = free.at_least(wanted).filter(|e| whole(self, e)) {
            self.release_segment(entry.block);
            return true;
        }
        // No single one is large enough: several, from the largest down.
        let mut released = 0;
        let mut next: Option<Entry> = match free.at_least(wanted) {
            Some(entry) => free.before(entry),
            None => free.below(wanted),
        };
        while let Some(entry) = next.filter(|e| released < wanted && e.size >= max_split) {
            next = self.shelves[shelf as usize].free.before(entry);
            if whole(self, &entry) {
                released += entry.size;
                self.release_segment(entry.block);
            }
        }
        released >= wanted
    }

    /// Gives cached memory back: of one private pool, or of all.
    pub(super) fn release_cached(&mut self, pool: Option<PoolId>) {
        match pool.filter(|id| id.is_private()) {
            Some(id) => {
                if let Some(at) = self.pools.iter().position(|p| p.id == id && p.freeable) {
                    self.synchronize(Some(at as u16));
                    self.release_private(at);
                }
            }
            None => {
                if self.capturing != Some(true) {
                    self.synchronize(None);
                    self.release_half(0, false);
                    self.release_half(0, true);
                }
                for at in 1..self.pools.len() {
                    if self.pools[at].freeable {
                        self.release_private(at);
                    }
                }
            }
        }
    }

    /// Gives back the cached memory of a private pool that no program uses; the pool ends with its last memory.
    fn release_private(&mut self, pool: usize) {
        self.release_half(pool, true);
        self.release_half(pool, false);
        if self.pools[pool].device_count == 0 {
            self.pools[pool].freeable = false;
        }
    }

    /// Frees every unsplit segment of one half of a pool, and unmaps the free pages of its expandable ranges.
    fn release_half(&mut self, pool: usize, small: bool) {
        for shelf in self.pools[pool].shelves[usize::from(small)].clone() {
            let free: Vec<u32> = self.shelves[shelf as usize].free.iter().map(|e| e.block).collect();
            for &id in &free {
                let block = self.blocks[id];
                if !block.expandable && !block.is_split() {
                    self.release_segment(id);
                }
            }
        }
        // Expandable memory comes after all the segments, of all streams.
        for shelf in self.pools[pool].shelves[usize::from(small)].clone() {
            let free: Vec<u32> = self.shelves[shelf as usize]
                .free
                .iter()
                .map(|e| e.block)
                .filter(|&id| self.blocks[id].expandable)
                .collect();
            for id in free {
                self.unmap(id);
                if !self.blocks[id].is_split() {
                    self.take_unmapped(id);
                    let Block { addr, size, .. } = self.blocks[id];
                    self.ranges.remove(&addr);
                    self.device.unreserve(addr, size);
                    self.blocks.discard(id);
                }
            }
        }
    }

    /// Gives an unsplit free segment back.
    fn release_segment(&mut self, id: u32) {
        self.take(id);
        let Block { addr, size, shelf, .. } = self.blocks[id];
        self.device.free(addr, size);
        self.stats.segments.sub(1);
        self.gave(shelf, size);
        self.stats.device_frees += 1;
        self.stats.driver_ns += cost::free(size);
        if size >= self.settings.max_split() {
            self.stats.oversize_segments.sub(1);
        }
        let pool = self.shelves[shelf as usize].pool;
        self.pools[pool as usize].device_count -= 1;
        self.note(NoteKind::SegmentFree, addr, size, shelf);
        self.blocks.discard(id);
    }

    /// Unmaps the whole granules inside a free block; the rest at its ends stays free.
    fn unmap(&mut self, id: u32) {
        let Block { addr, size, shelf, place, .. } = self.blocks[id];
        let granule = self.granule(shelf);
        // Granules count from the beginning of the range.
        let base = self.ranges.range(..=addr).next_back().copied().unwrap_or(addr);
        let from = base + (addr - base).div_ceil(granule) * granule;
        let to = base + (addr + size - base) / granule * granule;
        if from >= to {
            return;
        }
        self.take(id);
        self.device.unmap(from, to - from);
        if from > addr {
            let front = self.blocks.add(addr, from - addr, shelf, true, place);
            let prev = self.blocks[id].prev;
            self.blocks.link(prev, front, id);
            self.put(front);
        }
        if to < addr + size {
            let back = self.blocks.add(to, addr + size - to, shelf, true, place);
            let next = self.blocks[id].next;
            self.blocks.link(id, back, next);
            self.put(back);
        }
        self.blocks[id].addr = from;
        self.blocks[id].size = to - from;
        self.blocks[id].state = State::Unmapped;
        let Block { prev, next, .. } = self.blocks[id];
        self.merge(id, prev);
        self.merge(id, next);
        self.put_unmapped(id);
        self.gave(shelf, to - from);
        self.stats.device_frees += 1;
        self.stats.driver_ns += cost::unmap((to - from) / granule);
        let pool = self.shelves[shelf as usize].pool;
        self.pools[pool as usize].device_count -= 1;
        self.note(NoteKind::SegmentUnmap, from, to - from, shelf);
    }
}
