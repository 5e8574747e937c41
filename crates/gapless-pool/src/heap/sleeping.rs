//! A heap whose memory sleeps: its blocks keep their addresses, and nothing needs to be behind them.
//!
//! What was free between sleeping blocks is closed: it serves nobody. New pages may come meanwhile, in holes or at the
//! end, and are awake.

use super::{GRANULE_BITS, Heap, Page};
use crate::blocks::{Block, NONE, State};
use crate::device::PageHandle;
use crate::free_set::FreeSet;
use crate::ids::{Fence, PageId};

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

    /// Every page that is held, and every block in them, begins to sleep. Their memory is still there.
    pub(crate) fn fall_asleep(&mut self) {
        for page in self.pages.iter_mut().filter(|page| page.handle.is_some()) {
            page.is_asleep = true;
        }
        for id in self.block_ids() {
            let state = &mut self.blocks[id].state;
            *state = match *state {
                State::Live => State::Asleep,
                State::Free => State::Closed,
                other => other,
            };
        }
        self.free = FreeSet::default();
    }

    /// What sleeps in allocations, as address and size, neighbours as one.
    pub(crate) fn sleeping_blocks(&self) -> Vec<(u64, u64)> {
        let asleep = self.blocks().filter(|block| block.state == State::Asleep);
        joined(asleep.map(|block| (block.addr, block.size)))
    }

    /// Every page that sleeps, neighbours as one; `held`: those whose memory is there, or those without.
    pub(crate) fn sleeping_pages(&self, held: bool) -> Vec<(u64, u64)> {
        let asleep = self.pages.iter().filter(|page| page.is_asleep && page.handle.is_some() == held);
        joined(asleep.map(|page| (page.addr, page.size)))
    }

    /// A sleeping block is given back.
    pub(crate) fn release_asleep(&mut self, block: u32) {
        debug_assert_eq!(self.blocks[block].state, State::Asleep);
        self.for_pages_of(block, |page| page.busy -= 1);
        self.blocks[block].state = State::Closed;
    }

    /// The memory of the pages in a range of sleeping ones is gone: their handles, with their sizes.
    pub(crate) fn take_handles(&mut self, addr: u64, size: u64) -> Vec<(PageHandle, u64)> {
        let within = self.pages.iter_mut().filter(|page| page.addr >= addr && page.addr < addr + size);
        within.filter_map(|page| Some((page.handle.take()?, page.size))).collect()
    }

    /// There is memory behind the sleeping page at `addr` again.
    pub(crate) fn put_handle(&mut self, addr: u64, handle: PageHandle) {
        if let Some(page) = self.page_of(addr) {
            self.pages[page.index()].handle = Some(handle);
        }
    }

    /// Sleeping pages without memory that no allocation is in become holes. How many.
    pub(crate) fn bury(&mut self) -> usize {
        let is_dead = |page: &Page| page.is_asleep && page.handle.is_none() && page.busy == 0;
        let dead: Vec<usize> = (0..self.pages.len()).filter(|&at| is_dead(&self.pages[at])).collect();
        for &at in &dead {
            let hole = self.lone_block(at);
            self.blocks[hole].state = State::Hole;
            self.pages[at].is_asleep = false;
        }
        dead.len()
    }

    /// Makes one block of the closed ones that a page lies in: from its first byte to its last.
    fn lone_block(&mut self, at: usize) -> u32 {
        let Page { addr, size, first: mut block, .. } = self.pages[at];
        if self.blocks[block].addr < addr {
            let rest = self.blocks.cut_back(block, addr);
            self.blocks[rest].state = State::Closed;
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
            self.blocks[front].state = State::Closed;
            self.tell_pages(front);
            return front;
        }
        block
    }

    /// Cuts a stretch of sleeping pages without memory, which begins and ends with one, into pages of other sizes. The
    /// first page, and by how much the numbers of all pages behind the stretch change.
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
            new.push(Page {
                addr: from,
                size,
                handle: None,
                busy,
                windows: 0,
                freed,
                is_leaving: false,
                is_asleep: true,
                first: block,
            });
            from += size;
        }
        let by = new.len() as i32 - count as i32;
        self.pages.splice(first..first + count, new);
        self.page_at.truncate(((addr - self.start) >> GRANULE_BITS) as usize);
        for (id, page) in self.pages.iter().enumerate().skip(first) {
            self.page_at.extend(std::iter::repeat_n(PageId::new(id), (page.size >> GRANULE_BITS) as usize));
        }
        Some((PageId::new(first + count), by))
    }

    /// What slept is awake: every page has its memory. What was closed is free.
    pub(crate) fn wake_up(&mut self) {
        for page in &mut self.pages {
            page.is_asleep = false;
        }
        let mut closed = Vec::new();
        for id in self.block_ids() {
            match self.blocks[id].state {
                State::Asleep => self.blocks[id].state = State::Live,
                State::Closed => closed.push(id),
                _ => {}
            }
        }
        for block in closed {
            self.blocks[block].state = State::Live;
            self.count_live(block);
            self.release_behind(block, Fence::PAST);
        }
    }
}

/// Ranges in order of address, neighbours as one.
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
