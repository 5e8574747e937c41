//! A heap whose memory sleeps: its blocks keep their addresses, and no memory needs to be behind them.
//!
//! Free blocks between sleeping ones are closed and serve no request. New pages may come meanwhile, in holes or at the
//! end, and are awake.

use super::{GRANULE_BITS, Heap, Page, SMALL};
use crate::blocks::{Block, NONE, Seen, State};
use crate::device::PageHandle;
use crate::free_set::FreeSet;
use crate::ids::{Fence, PageId};
use crate::stretches::Stretches;

impl Heap {
    /// The numbers of all blocks, by address.
    fn block_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut at = self.last;
        while at != NONE {
            ids.push(at);
            at = self.blocks[at].prev;
        }
        ids.reverse();
        ids
    }

    /// Puts every held page and the blocks in it to sleep. Their memory stays for now.
    pub(crate) fn fall_asleep(&mut self) {
        for page in self.pages.iter_mut().filter(|page| page.handle.is_some()) {
            page.is_asleep = true;
        }
        for id in self.block_ids() {
            let block = &mut self.blocks[id];
            block.state = match block.state {
                State::Live => State::Asleep,
                State::Free => State::Closed,
                other => other,
            };
            block.seen = Seen::Away;
        }
        self.free = FreeSet::default();
        self.count_anew();
    }

    /// Counts all figures anew, because too much changed to adjust them.
    fn count_anew(&mut self) {
        self.picture = self.drawn();
        self.free_bytes = self.free.iter().map(|entry| entry.size).sum();
        self.held = self.pages.iter().filter(|page| page.handle.is_some()).map(|page| page.size).sum();
        self.whole = self.pages.iter().filter(|page| page.is_free()).map(|page| page.size).sum();
        self.holes = Stretches::default();
        for page in self.pages.iter().filter(|page| page.is_hole()) {
            self.holes.add(page.addr, page.size);
        }
        self.list_anew();
    }

    /// Blocks of sleeping allocations, as address and size; neighbours are joined.
    pub(crate) fn sleeping_blocks(&self) -> Vec<(u64, u64)> {
        let asleep = self.blocks().filter(|block| block.state == State::Asleep);
        joined(asleep.map(|block| (block.addr, block.size)))
    }

    /// Sleeping pages, as address and size, with memory if `held` and without otherwise; neighbours are joined.
    pub(crate) fn sleeping_pages(&self, held: bool) -> Vec<(u64, u64)> {
        let asleep = self.pages.iter().filter(|page| page.is_asleep && page.handle.is_some() == held);
        joined(asleep.map(|page| (page.addr, page.size)))
    }

    /// Frees a sleeping block.
    pub(crate) fn release_asleep(&mut self, block: u32) {
        debug_assert_eq!(self.blocks[block].state, State::Asleep);
        self.for_pages_of(block, |page| page.busy -= 1);
        self.blocks[block].state = State::Closed;
    }

    /// Takes the handles, with their sizes, of the sleeping pages in a range, whose memory is gone.
    pub(crate) fn take_handles(&mut self, addr: u64, size: u64) -> Vec<(PageHandle, u64)> {
        let within = self.pages.iter_mut().filter(|page| page.addr >= addr && page.addr < addr + size);
        let taken: Vec<(PageHandle, u64)> =
            within.filter_map(|page| Some((page.handle.take()?, page.size))).collect();
        self.held -= taken.iter().map(|(_, size)| size).sum::<u64>();
        taken
    }

    /// Puts memory behind the sleeping page at `addr` again.
    pub(crate) fn put_handle(&mut self, addr: u64, handle: PageHandle) {
        if let Some(page) = self.page_of(addr) {
            let page = &mut self.pages[page.index()];
            page.handle = Some(handle);
            self.held += page.size;
        }
    }

    /// Makes holes of sleeping pages that have neither memory nor an allocation. Returns their number.
    pub(crate) fn bury(&mut self) -> usize {
        let is_dead = |page: &Page| page.is_asleep && page.handle.is_none() && page.busy == 0;
        let dead: Vec<usize> = (0..self.pages.len()).filter(|&at| is_dead(&self.pages[at])).collect();
        for &at in &dead {
            let hole = self.lone_block(at);
            self.blocks[hole].state = State::Hole;
            let was = self.pages[at].is_hole();
            self.pages[at].is_asleep = false;
            self.note_hole(at, was);
        }
        dead.len()
    }

    /// Joins and cuts the closed blocks under a page into one block that covers exactly this page.
    fn lone_block(&mut self, at: usize) -> u32 {
        let Page { addr, size, first: mut block, .. } = self.pages[at];
        if self.blocks[block].addr < addr {
            let rest = self.blocks.cut_back(block, addr);
            (self.blocks[rest].state, self.blocks[rest].seen) = (State::Closed, Seen::Away);
            if self.last == block {
                self.last = rest;
            }
            self.tell_pages(rest);
            block = rest;
        }
        while self.blocks[block].addr + self.blocks[block].size < addr + size {
            let next = self.blocks[block].next;
            let Block { addr: from, size: bytes, .. } = self.blocks[next];
            self.tell(from, bytes, block);
            if self.last == next {
                self.last = block;
            }
            self.blocks.join(block, next);
        }
        if self.blocks[block].size > size {
            let front = self.blocks.cut_front(block, size);
            (self.blocks[front].state, self.blocks[front].seen) = (State::Closed, Seen::Away);
            self.tell_pages(front);
            return front;
        }
        block
    }

    /// Cuts a stretch of sleeping pages without memory into pages of other sizes. The stretch begins and ends with such
    /// a page. Returns the first page behind the stretch, and the change of the numbers of all pages from there on.
    pub(crate) fn recut(&mut self, addr: u64, sizes: &[u64]) -> Option<(PageId, i32)> {
        let end = addr + sizes.iter().sum::<u64>();
        let first = self.page_of(addr)?.index();
        let old = &self.pages[first..first + self.pages[first..].iter().take_while(|p| p.addr < end).count()];
        debug_assert!(old.iter().all(|page| page.is_asleep && page.handle.is_none()));
        let (count, freed) = (old.len(), old.iter().map(|page| page.freed).max().unwrap_or_default());
        let mut block = old[0].first;
        let mut from = addr;
        let mut new = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let is_before = |block: &Block| block.addr + block.size <= from;
            while is_before(&self.blocks[block]) {
                block = self.blocks[block].next;
            }
            let (mut busy, mut touching) = (0, block);
            while touching != NONE && self.blocks[touching].addr < from + size {
                busy += u32::from(self.blocks[touching].state == State::Asleep);
                touching = self.blocks[touching].next;
            }
            new.push(Page { busy, freed, is_asleep: true, ..Page::empty(from, size, block) });
            from += size;
        }
        let by = new.len() as i32 - count as i32;
        self.pages.splice(first..first + count, new);
        self.page_at.truncate(((addr - self.start) >> GRANULE_BITS) as usize);
        for (id, page) in self.pages.iter().enumerate().skip(first) {
            self.page_at.extend(std::iter::repeat_n(PageId::new(id), (page.size >> GRANULE_BITS) as usize));
        }
        self.list_anew();
        Some((PageId::new(first + count), by))
    }

    /// Wakes the heap once every page has its memory. Closed blocks become free.
    pub(crate) fn wake_up(&mut self) {
        for page in &mut self.pages {
            page.is_asleep = false;
        }
        let mut closed = Vec::new();
        for id in self.block_ids() {
            let is_guest = self.is_large && self.blocks[id].size <= SMALL;
            let block = &mut self.blocks[id];
            match block.state {
                State::Asleep if is_guest => block.seen = Seen::Alone,
                State::Asleep => block.seen = Seen::Joined,
                State::Closed => {
                    block.seen = Seen::Joined;
                    closed.push(id);
                }
                _ => continue,
            }
            block.state = State::Live;
        }
        self.count_anew();
        for block in closed {
            self.count_live(block);
            self.release_behind(block, Fence::PAST);
        }
    }
}

/// Ranges in order of address; neighbours are joined.
fn joined(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (addr, size) in ranges {
        match all.last_mut() {
            Some((from, bytes)) if *from + *bytes == addr => *bytes += size,
            _ => all.push((addr, size)),
        }
    }
    all
}
