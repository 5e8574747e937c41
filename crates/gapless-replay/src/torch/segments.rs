//! Taking memory from the device: whole segments, or pages mapped into expandable ranges.

use super::blocks::{Block, NONE, State};
use super::{NoteKind, Torch};
use crate::cost;
use crate::device::Device;

/// The unit in which the small half of a pool maps memory.
const SMALL_GRANULE: u64 = 2 << 20;

impl<D: Device> Torch<D> {
    /// Memory for `rounded` bytes, as a block in no set; `segment` counts against the cap.
    pub(super) fn new_segment(&mut self, shelf: u16, rounded: u64, segment: u64, retry: bool) -> Option<u32> {
        if retry {
            self.stats.retries += 1;
        }
        if self.cap.is_some_and(|cap| self.stats.reserved.current.saturating_add(segment) > cap) {
            return None;
        }
        let pool = self.shelves[shelf as usize].pool;
        let id = if self.expandable(shelf) {
            self.expand(shelf, rounded)?
        } else {
            let addr = self.device.malloc(segment)?;
            self.stats.segments.add(1);
            self.took(shelf, segment);
            self.stats.device_allocs += 1;
            self.stats.driver_ns += cost::malloc(segment);
            if segment >= self.settings.max_split() {
                self.stats.oversize_segments.add(1);
            }
            self.note(NoteKind::SegmentAlloc, addr, segment, shelf);
            self.blocks.add_segment(addr, segment, shelf, false)
        };
        self.pools[pool as usize].device_count += 1;
        Some(id)
    }

    /// The unit in which `shelf` maps memory.
    pub(super) fn granule(&self, shelf: u16) -> u64 {
        if self.shelves[shelf as usize].small { SMALL_GRANULE } else { self.settings.large_segment }
    }

    /// Grows an expandable range until a block of `size` is there.
    fn expand(&mut self, shelf: u16, size: u64) -> Option<u32> {
        let mut id = self.find_range(shelf, size)?;
        if self.blocks[id].state == State::Unmapped {
            let part = self.blocks[id].size.min(size);
            if !self.map(id, part) {
                return None;
            }
        }
        while self.blocks[id].size < size {
            let next = self.blocks[id].next;
            let part = (size - self.blocks[id].size).min(self.blocks[next].size);
            if !self.map(next, part) {
                return None;
            }
            id = next;
        }
        self.take(id);
        Some(id)
    }

    /// The first stretch of free and unmapped addresses that is long enough; else a new range. `None` if even a new one
    /// is too short, and the release gives such a range back.
    fn find_range(&mut self, shelf: u16, size: u64) -> Option<u32> {
        let open = |id: u32| id != NONE && matches!(self.blocks[id].state, State::Free | State::Unmapped);
        for &unmapped in self.shelves[shelf as usize].unmapped.values() {
            // Free memory right before it counts too.
            let before = self.blocks[unmapped].prev;
            let first = if open(before) { before } else { unmapped };
            let (mut id, mut bytes) = (first, 0);
            while bytes < size && open(id) {
                bytes += self.blocks[id].size;
                id = self.blocks[id].next;
            }
            if bytes >= size {
                return Some(first);
            }
        }
        let length = self.range_length(shelf);
        if length < size && self.version.returns_short_ranges() {
            return None;
        }
        let addr = self.device.reserve(length);
        self.ranges.insert(addr);
        let id = self.blocks.add_segment(addr, length, shelf, true);
        self.put_unmapped(id);
        Some(id)
    }

    /// The number of addresses of a new range of `shelf`.
    fn range_length(&self, shelf: u16) -> u64 {
        let stream = self.shelves[shelf as usize].stream;
        let class = self.classes.get(&stream).map_or("", String::as_str);
        self.settings.reserves.length(self.device.total(), class, self.granule(shelf))
    }

    /// Maps the first `size` bytes of an unmapped block, in whole granules, and joins it with free neighbours.
    fn map(&mut self, id: u32, size: u64) -> bool {
        let Block { addr, size: whole, shelf, next, place, .. } = self.blocks[id];
        let granule = self.granule(shelf);
        let length = size.div_ceil(granule) * granule;
        if !self.device.map(addr, length) {
            return false;
        }
        self.take_unmapped(id);
        self.blocks[id].state = State::Free;
        if length < whole {
            let rest = self.blocks.add(addr + length, whole - length, shelf, true, place);
            self.blocks[id].size = length;
            self.blocks.link(id, rest, next);
            self.put_unmapped(rest);
        }
        let Block { prev, next, .. } = self.blocks[id];
        self.merge(id, prev);
        self.merge(id, next);
        self.put(id);
        self.took(shelf, length);
        self.stats.device_allocs += 1;
        self.stats.driver_ns += cost::map(length / granule);
        self.note(NoteKind::SegmentMap, addr, length, shelf);
        true
    }

    /// Puts a mapped stretch from before the first request into a range: that of the stretch before it if their
    /// addresses allow, or one of its own.
    pub(super) fn install_range(&mut self, id: u32) {
        let Block { addr, size, shelf, .. } = self.blocks[id];
        let granule = self.granule(shelf);
        let tail = self.shelves[shelf as usize].unmapped.values().copied().find(|&t| {
            let Block { addr: from, size: length, .. } = self.blocks[t];
            from <= addr && addr + size <= from + length && (addr - from).is_multiple_of(granule)
        });
        let end = if let Some(tail) = tail {
            let Block { addr: from, size: length, prev, place, .. } = self.blocks[tail];
            self.blocks[id].place = place;
            self.take_unmapped(tail);
            if addr > from {
                self.blocks[tail].size = addr - from;
                self.blocks.link(tail, id, NONE);
                self.put_unmapped(tail);
            } else {
                self.blocks.discard(tail);
                self.blocks.link(prev, id, NONE);
            }
            from + length
        } else {
            self.ranges.insert(addr);
            // Longer than the setting says if the recording shows so: several ranges may lie side by side.
            addr + self.range_length(shelf).max(size.div_ceil(granule) * granule)
        };
        if end > addr + size {
            let place = self.blocks[id].place;
            let rest = self.blocks.add(addr + size, end - addr - size, shelf, true, place);
            self.blocks.link(id, rest, NONE);
            self.put_unmapped(rest);
        }
    }
}
