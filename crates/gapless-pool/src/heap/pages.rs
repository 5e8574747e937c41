//! The pages of a heap. They come at its end or into its holes, and leave holes when they go.

use super::{FRAGMENT, GRANULE_BITS, Heap, Page};
use crate::blocks::{Block, NONE, Seen, State};
use crate::device::PageHandle;
use crate::free_set::Entry;
use crate::ids::{Fence, PageId};

impl Heap {
    /// Counts one more window that maps the page.
    pub(crate) fn map_again(&mut self, page: PageId) {
        self.pages[page.index()].windows += 1;
    }

    /// Counts one window less. Returns the page.
    pub(crate) fn unmap_again(&mut self, page: PageId) -> &Page {
        let page = &mut self.pages[page.index()];
        page.windows -= 1;
        page
    }

    /// Notes if something is still mapped at a hole's addresses.
    pub(crate) fn set_leaving(&mut self, page: PageId, is_leaving: bool) {
        let was = self.pages[page.index()].is_hole();
        self.pages[page.index()].is_leaving = is_leaving;
        self.note_hole(page.index(), was);
    }

    /// Updates the list of holes after a page changed; `was` is true if the page was a hole before.
    pub(super) fn note_hole(&mut self, page: usize, was: bool) {
        let Page { addr, size, .. } = self.pages[page];
        match (was, self.pages[page].is_hole()) {
            (false, true) => self.holes.add(addr, size),
            (true, false) => self.holes.remove(addr, size),
            _ => {}
        }
    }

    /// Adds a page that is mapped at `end` to the range, as free memory.
    pub fn grow(&mut self, handle: PageHandle, size: u64) {
        self.grow_behind(handle, size, Fence::PAST);
    }

    /// Work that the pool does not know of may use all pages, so none of them is settled before this fence.
    pub(crate) fn used_until(&mut self, fence: Fence) {
        for page in &mut self.pages {
            page.freed = page.freed.max(fence);
        }
        self.list_anew();
    }

    /// [`Heap::grow`] with a page that was used before: no work uses it after fence `freed`.
    pub(crate) fn grow_behind(&mut self, handle: PageHandle, size: u64, freed: Fence) {
        let page = Page { handle: Some(handle), freed, ..Page::empty(self.end, size, NONE) };
        let id = PageId::new(self.pages.len());
        self.pages.push(page);
        self.page_at.extend(std::iter::repeat_n(id, (size >> GRANULE_BITS) as usize));
        self.end += size;
        self.held += size;
        self.whole += size;
        if self.tail() > 0 {
            let Entry { size: old, tie, .. } = self.entry(self.last);
            if self.is_large && old < FRAGMENT {
                self.spoil_pages(self.last);
            }
            self.hide(self.last);
            self.blocks[self.last].size += size;
            self.picture.bytes += size;
            self.requeue(self.last, (old, tie), NONE, self.last);
        } else {
            let block = self.blocks.add(page.addr, size);
            (self.blocks[block].state, self.blocks[block].seen) = (State::Live, Seen::Away);
            self.blocks.link(self.last, block, NONE);
            self.last = block;
            self.show(block, Seen::Joined);
            self.put(block);
        }
        self.pages[id.index()].first = self.last;
    }

    /// Gives up a wholly free page: its addresses become a hole. The caller unmaps and releases the page.
    pub fn give_up(&mut self, page: PageId) -> Option<PageHandle> {
        let Page { addr, size, handle, freed, .. } = self.pages[page.index()];
        let block = self.cut_out(addr, size)?;
        self.count_free(block, freed);
        self.show(block, Seen::Away);
        self.blocks[block].state = State::Hole;
        self.pages[page.index()].handle = None;
        self.held -= size;
        self.whole -= size;
        self.note_hole(page.index(), false);
        handle
    }

    /// Gives up addresses at the end for good, because the device does not unmap what is mapped there.
    pub(crate) fn lose(&mut self, size: u64) {
        let block = self.hole(self.end, size);
        self.blocks.link(self.last, block, NONE);
        self.last = block;
        let id = PageId::new(self.pages.len());
        self.pages.push(Page { is_leaving: true, ..Page::empty(self.end, size, block) });
        self.page_at.extend(std::iter::repeat_n(id, (size >> GRANULE_BITS) as usize));
        self.end += size;
    }

    /// The block of a hole, linked to nothing.
    fn hole(&mut self, addr: u64, size: u64) -> u32 {
        let block = self.blocks.add(addr, size);
        self.blocks[block].state = State::Hole;
        self.blocks[block].seen = Seen::Away;
        block
    }

    /// Gives up the addresses of holes at the end, which growth then uses again.
    pub fn draw_in(&mut self) {
        while self.last != NONE
            && self.blocks[self.last].state == State::Hole
            && self.pages.last().is_some_and(|page| !page.is_leaving)
        {
            let Block { addr, prev, .. } = self.blocks[self.last];
            self.blocks.discard(self.last);
            self.last = prev;
            if prev != NONE {
                self.blocks[prev].next = NONE;
            }
            // A hole is one page.
            if let Some(page) = self.pages.pop() {
                self.forget_page(&page);
                if page.is_hole() {
                    self.holes.remove(page.addr, page.size);
                }
            }
            self.page_at.truncate(((addr - self.start) >> GRANULE_BITS) as usize);
            self.end = addr;
        }
    }

    /// The page that begins at `addr`.
    pub(crate) fn page_of(&self, addr: u64) -> Option<PageId> {
        let granule = (addr.checked_sub(self.start)? >> GRANULE_BITS) as usize;
        let page = *self.page_at.get(granule)?;
        (self.pages[page.index()].addr == addr).then_some(page)
    }

    /// Fills a hole with a page that is mapped at its addresses; no work uses the page after fence `freed`.
    pub fn refill(&mut self, page: PageId, handle: PageHandle, freed: Fence) {
        let Page { addr, size, first: block, .. } = self.pages[page.index()];
        if self.blocks[block].state == State::Hole
            && (self.blocks[block].addr, self.blocks[block].size) == (addr, size)
        {
            let filled = &mut self.pages[page.index()];
            let was = filled.is_hole();
            (filled.handle, filled.freed) = (Some(handle), Fence::PAST);
            self.held += size;
            self.whole += size;
            self.note_hole(page.index(), was);
            self.blocks[block].state = State::Live;
            self.show(block, Seen::Joined);
            self.count_live(block);
            self.release_behind(block, freed);
        }
    }

    /// Replaces `count` neighbouring holes by holes of other sizes with the same sum. The numbers of all pages behind
    /// them change by the difference; the caller corrects whatever refers to those pages.
    pub(crate) fn reshape_holes(&mut self, first: PageId, count: usize, sizes: &[u64]) {
        let from = first.index();
        let old = &self.pages[from..from + count];
        debug_assert!(old.iter().all(|page| page.is_hole() && page.windows == 0));
        debug_assert_eq!(old.iter().map(|page| page.size).sum::<u64>(), sizes.iter().sum::<u64>());
        let freed = old.iter().map(|page| page.freed).max().unwrap_or_default();
        let blocks: Vec<u32> = old.iter().map(|page| page.first).collect();
        let (prev, next) = (self.blocks[blocks[0]].prev, self.blocks[blocks[count - 1]].next);
        let mut addr = old[0].addr;
        for at in from..from + count {
            let page = self.pages[at];
            self.forget_page(&page);
        }
        self.renumber(from, count, sizes.len());
        for block in blocks {
            self.blocks.discard(block);
        }
        let mut last = prev;
        let mut new = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let block = self.hole(addr, size);
            self.blocks.link(last, block, next);
            last = block;
            new.push(Page { freed, ..Page::empty(addr, size, block) });
            addr += size;
        }
        if next == NONE {
            self.last = last;
        }
        self.pages.splice(from..from + count, new);
        self.page_at.truncate(((self.pages[from].addr - self.start) >> GRANULE_BITS) as usize);
        for (id, page) in self.pages.iter().enumerate().skip(from) {
            self.page_at.extend(std::iter::repeat_n(PageId::new(id), (page.size >> GRANULE_BITS) as usize));
        }
    }

    /// A stretch of neighbouring holes with at least `least` bytes: the shortest with `most` bytes or more, else the
    /// longest; of equals the one at the lowest address. Returns its first page, its bytes and its number of pages.
    pub(crate) fn stretch(&self, least: u64, most: u64) -> Option<(PageId, u64, usize)> {
        let (addr, size) = self.holes.at_least(most).or_else(|| self.holes.longest(least))?;
        let first = self.page_of(addr)?;
        Some((first, size, self.pages_between(addr, addr + size).len()))
    }
}
