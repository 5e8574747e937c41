//! What happens when no free block fits: as little new memory as possible, and everything else before a request fails.

use super::{FreePage, Place, Pool, SMALL};
use crate::device::{Device, DeviceError};
use crate::heap::GRANULE;

impl<D: Device> Pool<D> {
    #[cold]
    pub(super) fn miss(&mut self, lane: u32, heap: u32, size: u64) -> Result<Place, DeviceError> {
        self.clock += 1;
        self.retire();
        if size <= SMALL {
            if self.refill(heap, GRANULE) {
                return self.at_home(heap, size);
            }
            let missing = size - self.heaps[heap as usize].tail().min(size - 1);
            return match self.grow(heap, missing.div_ceil(GRANULE) * GRANULE) {
                Ok(()) => self.at_home(heap, size),
                // The last resort: memory of the large heap, whatever page that pins.
                Err(error) => self.last_resort(lane, heap, size, error),
            };
        }
        if let Some(place) = self.reuse_window(lane, size) {
            return Ok(place);
        }
        let tail = self.heaps[heap as usize].tail();
        let plain = (size - tail.min(size - 1)).div_ceil(GRANULE) * GRANULE;
        let allowed = self.allowed(size);
        if self.stats.reserved.current + plain <= allowed
            && (self.refill(heap, size.div_ceil(GRANULE) * GRANULE) || self.grow(heap, plain).is_ok())
        {
            return self.at_home(heap, size);
        }
        self.harvest(lane, heap, size, plain).or_else(|error| self.last_resort(lane, heap, size, error))
    }

    /// What may be held without harvesting first, once `size` more bytes are live.
    fn allowed(&self, size: u64) -> u64 {
        let peak = self.stats.active.peak.max(self.stats.active.current + size);
        peak + peak / 1000 * self.options.slack
    }

    fn at_home(&mut self, heap: u32, size: u64) -> Result<Place, DeviceError> {
        let block = self.heaps[heap as usize].take(size).ok_or(DeviceError::OutOfMemory)?;
        Ok(Place::Home { heap, block })
    }

    /// Serves from free pages, and from as few new ones as possible.
    fn harvest(&mut self, lane: u32, heap: u32, size: u64, plain: u64) -> Result<Place, DeviceError> {
        let mut pages = self.free_pages(lane, heap, false);
        let mut have: u64 = pages.iter().map(|p| p.size).sum();
        if have < size {
            let lent = self.free_pages(lane, heap, true);
            have += lent.iter().map(|p| p.size).sum::<u64>();
            pages.extend(lent);
        }
        let missing = size.saturating_sub(have).div_ceil(GRANULE) * GRANULE;
        // A window over hundreds of pages to spare next to nothing is a bad bargain.
        if plain.saturating_sub(missing) <= self.stats.reserved.current / 1000 {
            self.grow(heap, plain)?;
            return self.at_home(heap, size);
        }
        if missing > 0 {
            let first = self.heaps[heap as usize].pages().len() as u32;
            self.grow(heap, missing)?;
            if let Ok(place) = self.at_home(heap, size) {
                return Ok(place);
            }
            let new = self.heaps[heap as usize].pages().iter().enumerate().skip(first as usize);
            let new: Vec<FreePage> =
                new.map(|(i, p)| FreePage { heap, page: i as u32, size: p.size, block: u64::MAX }).collect();
            pages.splice(0..0, new);
        }
        let chosen = choose(&pages, size);
        self.make_window(lane, &chosen, size)
    }

    /// Wholly free pages of the lane's heaps, or of other lanes' that may lend theirs.
    fn free_pages(&self, lane: u32, heap: u32, lent: bool) -> Vec<FreePage> {
        let own = self.lanes[lane as usize];
        let mut found = Vec::new();
        for (at, other) in self.lanes.iter().enumerate() {
            let is_own = at as u32 == lane;
            if is_own == lent || (!is_own && (own.pool.is_private() || other.pool.is_private())) {
                continue;
            }
            let large = &self.heaps[other.large as usize];
            for block in large.free_blocks() {
                let block = large.block(block);
                let first = large.pages().partition_point(|p| p.addr < block.addr);
                for (i, page) in large.pages().iter().enumerate().skip(first) {
                    if page.addr + page.size > block.addr + block.size {
                        break;
                    }
                    if page.is_free() {
                        let (page_id, size) = (i as u32, page.size);
                        found.push(FreePage { heap: other.large, page: page_id, size, block: block.size });
                    }
                }
            }
        }
        debug_assert!(found.iter().all(|p| lent || p.heap == heap));
        // Large pages first, for few mappings; among equals those of the smallest free blocks, which serve fewest requests.
        found.sort_by_key(|p| (std::cmp::Reverse(p.size), p.block, p.heap, p.page));
        found
    }

    /// Everything that is left before a request fails.
    fn last_resort(
        &mut self,
        lane: u32,
        heap: u32,
        size: u64,
        error: DeviceError,
    ) -> Result<Place, DeviceError> {
        if self.pending_count + self.later.len() > 0 && !self.quiet {
            self.stats.retries += 1;
            self.wait_for_pending();
        }
        if let Some(block) = self.heaps[heap as usize].take(size) {
            return Ok(Place::Home { heap, block });
        }
        let large = self.lanes[lane as usize].large;
        if size <= SMALL
            && let Some(block) = self.heaps[large as usize].take(size)
        {
            return Ok(Place::Home { heap: large, block });
        }
        let mut pages = self.free_pages(lane, large, false);
        pages.extend(self.free_pages(lane, large, true));
        let have: u64 = pages.iter().map(|p| p.size).sum();
        if have >= size {
            let chosen = choose(&pages, size);
            return self.make_window(lane, &chosen, size);
        }
        Err(error)
    }
}

/// Pages for `size` bytes: in the order given while they are not too large, and one more for what is left.
fn choose(pages: &[FreePage], size: u64) -> Vec<FreePage> {
    let mut chosen = Vec::new();
    let mut taken = vec![false; pages.len()];
    let mut left = size;
    for (i, page) in pages.iter().enumerate() {
        if left == 0 {
            break;
        }
        if page.size <= left {
            left -= page.size;
            taken[i] = true;
            chosen.push(*page);
        }
    }
    if left > 0 {
        // The smallest that is large enough; its rest stays free at home.
        let last = (0..pages.len()).rev().filter(|&i| !taken[i]).min_by_key(|&i| pages[i].size);
        chosen.extend(last.map(|i| pages[i]));
    }
    chosen
}
