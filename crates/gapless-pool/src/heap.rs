//! One lane's memory of one size class: a growing range of addresses with pages behind it, cut into blocks.
//!
//! Pages stay where they were first mapped, their home; blocks are placed best fit with splitting and merging. A page
//! knows how many live blocks touch it, so whether it is wholly free is one comparison. That is all there is on the hot
//! path; what happens when nothing fits is the pool's business. A page also knows the block at its first byte, so that
//! what lies at an address is found by a short walk.

mod sleeping;

use crate::blocks::{Block, Blocks, NONE, State};
use crate::device::PageHandle;
use crate::free_set::{Entry, FreeSet};
use crate::ids::{Fence, PageId};

/// The unit of pages and of reserved addresses.
pub const GRANULE: u64 = 2 << 20;
const GRANULE_BITS: u32 = 21;

/// A physical page at its home.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub addr: u64,
    pub size: u64,
    /// `None`: given back to the device, a hole.
    pub handle: Option<PageHandle>,
    /// Live blocks that touch it.
    pub busy: u32,
    /// Windows that have it mapped as well.
    pub windows: u32,
    /// The fence after which no work uses what was freed of it: see [`Fences`](crate::pool).
    pub freed: Fence,
    /// A hole whose addresses are still mapped, since queued work may use them.
    pub is_leaving: bool,
    /// It sleeps, or is about to: its blocks keep their addresses. With a handle, its memory is still held.
    pub is_asleep: bool,
    /// The block that its first byte is in.
    first: u32,
}

impl Page {
    /// Whether a page can be put behind its addresses.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        self.handle.is_none() && !self.is_leaving && !self.is_asleep
    }

    /// Whether all of it is free memory.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.busy == 0 && self.handle.is_some() && !self.is_asleep
    }
}

/// Invariants: blocks tile `[start, end)`; so do pages; `page_at[g]` is the page behind granule `g`; `page.first`
/// contains `page.addr`.
#[derive(Clone, Debug)]
pub struct Heap {
    start: u64,
    end: u64,
    /// Where the reserved addresses end.
    limit: u64,
    blocks: Blocks,
    free: FreeSet,
    /// The block that ends at `end`.
    last: u32,
    pages: Vec<Page>,
    page_at: Vec<PageId>,
    /// The fence that covers what is freed now.
    fence: Fence,
    /// Whether something was, since there is this fence.
    has_freed: bool,
}

impl Heap {
    /// A heap over reserved addresses, with nothing behind them yet.
    #[must_use]
    pub fn new(start: u64, size: u64) -> Heap {
        Heap {
            start,
            end: start,
            limit: start + size,
            blocks: Blocks::default(),
            free: FreeSet::default(),
            last: NONE,
            pages: Vec::new(),
            page_at: Vec::new(),
            fence: Fence::PAST,
            has_freed: false,
        }
    }

    /// What is freed from now on is covered by this fence.
    pub(crate) fn set_fence(&mut self, fence: Fence) {
        self.fence = fence;
        self.has_freed = false;
    }

    #[must_use]
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    #[inline]
    #[must_use]
    pub fn page(&self, page: PageId) -> &Page {
        &self.pages[page.index()]
    }

    pub fn page_mut(&mut self, page: PageId) -> &mut Page {
        &mut self.pages[page.index()]
    }

    #[must_use]
    pub fn block(&self, block: u32) -> &Block {
        &self.blocks[block]
    }

    /// Where the next page will be mapped.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Where its addresses begin.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// How many addresses it has, used or not.
    #[must_use]
    pub fn range(&self) -> u64 {
        self.limit - self.start
    }

    /// Whether an address is one of its own.
    #[inline]
    #[must_use]
    pub fn holds(&self, addr: u64) -> bool {
        (self.start..self.limit).contains(&addr)
    }

    /// Reserved addresses that are not used yet.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.limit - self.end
    }

    /// The free block at the end of the range, where growth continues it: its size.
    #[must_use]
    pub fn tail(&self) -> u64 {
        if self.last != NONE && self.blocks[self.last].state == State::Free {
            self.blocks[self.last].size
        } else {
            0
        }
    }

    /// The smallest free block of at least `size` bytes, cut to size.
    #[inline]
    pub fn take(&mut self, size: u64) -> Option<u32> {
        let Entry { block, size: whole, tie } = self.free.at_least(size)?;
        let (front, rest) = self.split(block, size);
        self.requeue((whole, tie), NONE, rest);
        Some(self.hand_out(front))
    }

    /// `[addr, addr + size)`, where all of it is free.
    #[inline]
    pub fn take_at(&mut self, addr: u64, size: u64) -> Option<u32> {
        let granule = (addr.checked_sub(self.start)? >> GRANULE_BITS) as usize;
        let mut block = self.pages[self.page_at.get(granule)?.index()].first;
        let mut found = self.blocks[block];
        while found.addr + found.size <= addr {
            block = found.next;
            if block == NONE {
                return None;
            }
            found = self.blocks[block];
        }
        if found.state != State::Free || addr + size > found.addr + found.size {
            return None;
        }
        let before = addr - found.addr;
        let mut front = NONE;
        if before > 0 {
            // The smaller part is the new one: pages that begin in it must be told.
            if before <= found.size / 2 {
                front = self.blocks.cut_front(block, before);
                self.tell_pages(front);
            } else {
                let rest = self.blocks.cut_back(block, addr);
                if self.last == block {
                    self.last = rest;
                }
                self.tell_pages(rest);
                front = block;
                block = rest;
            }
        }
        let (block, rest) = self.split(block, size);
        self.requeue((found.size, found.addr), front, rest);
        Some(self.hand_out(block))
    }

    /// The size of the block that [`Heap::take`] would cut.
    #[must_use]
    pub fn fits(&self, size: u64) -> Option<u64> {
        self.free.at_least(size).map(|entry| entry.size)
    }

    /// The first `size` bytes of a block, and what is left of it, which keeps the number; [`NONE`] where nothing is.
    #[inline]
    fn split(&mut self, block: u32, size: u64) -> (u32, u32) {
        if self.blocks[block].size == size {
            return (block, NONE);
        }
        let front = self.blocks.cut_front(block, size);
        self.tell_pages(front);
        (front, block)
    }

    /// Of a free block that the set knows by `old`, at most a front and a rest are still free.
    #[inline]
    fn requeue(&mut self, old: (u64, u64), front: u32, rest: u32) {
        match (front != NONE, rest != NONE) {
            (false, false) => self.free.remove(old.0, old.1),
            (true, false) => self.free.replace(old.0, old.1, self.entry(front)),
            (false, true) => self.free.replace(old.0, old.1, self.entry(rest)),
            (true, true) => {
                let (front, rest) = (self.entry(front), self.entry(rest));
                let (larger, smaller) = if front.size > rest.size { (front, rest) } else { (rest, front) };
                self.free.replace(old.0, old.1, larger);
                self.free.insert(smaller);
            }
        }
    }

    /// Makes a block that is in no set live.
    #[inline]
    fn hand_out(&mut self, block: u32) -> u32 {
        self.blocks[block].state = State::Live;
        self.count_live(block);
        block
    }

    /// Takes a live block back and joins it with its free neighbours.
    #[inline]
    pub fn release(&mut self, block: u32) {
        self.has_freed = true;
        self.release_behind(block, self.fence);
    }

    /// [`Heap::release`]; no work uses the block after fence `fence`.
    #[inline]
    pub(crate) fn release_behind(&mut self, block: u32, fence: Fence) {
        debug_assert_eq!(self.blocks[block].state, State::Live);
        self.count_free(block, fence);
        self.blocks[block].state = State::Free;
        let Block { addr, size, prev, next, .. } = self.blocks[block];
        let free_size = |id: u32| {
            let neighbour = (id != NONE).then(|| &self.blocks[id])?;
            (neighbour.state == State::Free).then_some(neighbour.size)
        };
        let before = free_size(prev).map(|before| (before, addr - before));
        match (before, free_size(next).map(|after| (after, addr + size))) {
            (None, None) => self.put(block),
            (Some(old), None) => {
                let joined = self.join(prev, block);
                self.requeue(old, NONE, joined);
            }
            (None, Some(old)) => {
                let joined = self.join(block, next);
                self.requeue(old, NONE, joined);
            }
            (Some(before), Some(after)) => {
                let (larger, smaller) = if before > after { (before, after) } else { (after, before) };
                self.free.remove(smaller.0, smaller.1);
                let first = self.join(prev, block);
                let joined = self.join(first, next);
                self.requeue(larger, NONE, joined);
            }
        }
    }

    /// Joins two free neighbours, of which the larger keeps its number: pages that begin in the other must be told. The
    /// set is the caller's matter.
    #[inline]
    fn join(&mut self, first: u32, second: u32) -> u32 {
        let (into, from) = if self.blocks[first].size >= self.blocks[second].size {
            (first, second)
        } else {
            (second, first)
        };
        let Block { addr, size, .. } = self.blocks[from];
        self.tell(addr, size, into);
        if into == first {
            if self.last == second {
                self.last = first;
            }
            self.blocks.join(first, second);
        } else {
            self.blocks.join_back(first, second);
        }
        into
    }

    /// Pages that begin in a block know its number.
    #[inline]
    fn tell_pages(&mut self, block: u32) {
        let Block { addr, size, .. } = self.blocks[block];
        self.tell(addr, size, block);
    }

    #[inline]
    fn tell(&mut self, addr: u64, size: u64, block: u32) {
        let mut page = self.page_at[((addr - self.start) >> GRANULE_BITS) as usize].index();
        if self.pages[page].addr < addr {
            page += 1;
        }
        while let Some(p) = self.pages.get_mut(page).filter(|p| p.addr < addr + size) {
            p.first = block;
            page += 1;
        }
    }

    #[inline]
    fn put(&mut self, block: u32) {
        self.blocks[block].state = State::Free;
        self.free.insert(self.entry(block));
    }

    /// What the set knows of a free block.
    #[inline]
    fn entry(&self, block: u32) -> Entry {
        let Block { addr, size, .. } = self.blocks[block];
        Entry { size, tie: addr, block }
    }

    /// One live block more touches the pages of a block.
    #[inline]
    fn count_live(&mut self, block: u32) {
        self.for_pages_of(block, |page| page.busy += 1);
    }

    /// One live block less touches them; no work uses it after fence `fence`.
    #[inline]
    fn count_free(&mut self, block: u32, fence: Fence) {
        self.for_pages_of(block, |page| {
            page.busy -= 1;
            page.freed = page.freed.max(fence);
        });
    }

    #[inline]
    fn for_pages_of(&mut self, block: u32, mut work: impl FnMut(&mut Page)) {
        let Block { addr, size, .. } = self.blocks[block];
        let last = addr + size - 1;
        let mut page = self.page_at[((addr - self.start) >> GRANULE_BITS) as usize].index();
        loop {
            let p = &mut self.pages[page];
            work(p);
            if last < p.addr + p.size {
                return;
            }
            page += 1;
        }
    }

    /// The pages that `[from, to)` touches, which lies in the heap.
    pub(crate) fn pages_between(&self, from: u64, to: u64) -> &[Page] {
        let first = self.page_at[((from - self.start) >> GRANULE_BITS) as usize].index();
        let count = self.pages[first..].iter().take_while(|page| page.addr < to).count();
        &self.pages[first..first + count]
    }

    /// Whether no work uses `[addr, addr + size)` any more, once the work before fence `done` is done. The range
    /// lies in the heap.
    pub(crate) fn is_settled(&self, addr: u64, size: u64, done: Fence) -> bool {
        self.pages_between(addr, addr + size).iter().all(|page| page.freed <= done)
    }

    /// The smallest free block of at least `size` bytes whose front no work uses after fence `done`: its size and
    /// address. `tries` blocks are looked at.
    pub(crate) fn fits_settled(&self, size: u64, done: Fence, tries: usize) -> Option<(u64, u64)> {
        let found =
            self.free.iter_from(size).take(tries).find(|entry| self.is_settled(entry.tie, size, done))?;
        Some((found.size, found.tie))
    }

    /// Puts a page that is mapped at `end` behind the range: free memory.
    pub fn grow(&mut self, handle: PageHandle, size: u64) {
        self.grow_behind(handle, size, Fence::PAST);
    }

    /// Whether something was freed that the present fence covers, and no earlier one.
    pub(crate) fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// Work that nobody told of may use all pages: none is settled before this fence.
    pub(crate) fn used_until(&mut self, fence: Fence) {
        for page in &mut self.pages {
            page.freed = page.freed.max(fence);
        }
    }

    /// [`Heap::grow`] with a page that was used before: no work uses it after fence `freed`.
    pub(crate) fn grow_behind(&mut self, handle: PageHandle, size: u64, freed: Fence) {
        let page = Page {
            addr: self.end,
            size,
            handle: Some(handle),
            busy: 0,
            windows: 0,
            freed,
            is_leaving: false,
            is_asleep: false,
            first: NONE,
        };
        let id = PageId::new(self.pages.len());
        self.pages.push(page);
        self.page_at.extend(std::iter::repeat_n(id, (size >> GRANULE_BITS) as usize));
        self.end += size;
        if self.tail() > 0 {
            let Entry { size: old, tie, .. } = self.entry(self.last);
            self.blocks[self.last].size += size;
            self.requeue((old, tie), NONE, self.last);
        } else {
            let block = self.blocks.add(page.addr, size);
            self.blocks.link(self.last, block, NONE);
            self.last = block;
            self.put(block);
        }
        self.pages[id.index()].first = self.last;
    }

    /// Free blocks of at least `size` bytes, by address: to find the ones around pages.
    #[must_use]
    pub fn free_blocks(&self, size: u64) -> Vec<u32> {
        let mut list: Vec<u32> = self.free.iter_from(size).map(|entry| entry.block).collect();
        list.sort_unstable_by_key(|&id| self.blocks[id].addr);
        list
    }

    /// Whether `[addr, addr + size)` lies in one free block. `around` are the free blocks by address.
    #[must_use]
    pub fn is_free(&self, around: &[u32], addr: u64, size: u64) -> bool {
        let at = around.partition_point(|&id| self.blocks[id].addr <= addr);
        let Some(&block) = at.checked_sub(1).and_then(|at| around.get(at)) else { return false };
        let Block { addr: from, size: whole, state, .. } = self.blocks[block];
        state == State::Free && addr + size <= from + whole
    }

    /// Makes `[addr, addr + size)` live. `around` are the free blocks by address; calls come with rising addresses.
    pub fn carve(&mut self, around: &[u32], addr: u64, size: u64) -> Option<u32> {
        let at = around.partition_point(|&id| self.blocks[id].addr <= addr);
        let block = *around.get(at.checked_sub(1)?)?;
        let Block { addr: from, size: whole, state, .. } = self.blocks[block];
        if state != State::Free || addr + size > from + whole {
            return None;
        }
        let mut front = NONE;
        if addr > from {
            front = self.blocks.cut_front(block, addr - from);
            self.tell_pages(front);
        }
        // The rest keeps its number, so that `around` still finds it.
        let (block, rest) = self.split(block, size);
        self.requeue((whole, from), front, rest);
        Some(self.hand_out(block))
    }

    /// Gives a wholly free page up: its addresses become a hole. The caller unmaps and releases it.
    pub fn give_up(&mut self, page: PageId) -> Option<PageHandle> {
        let Page { addr, size, handle, freed, .. } = self.pages[page.index()];
        let block = self.take_at(addr, size)?;
        self.count_free(block, freed);
        self.blocks[block].state = State::Hole;
        self.pages[page.index()].handle = None;
        handle
    }

    /// Addresses at the end that nothing may be put behind any more: something is mapped there that the device does
    /// not take away.
    pub(crate) fn lose(&mut self, size: u64) {
        let block = self.blocks.add(self.end, size);
        self.blocks[block].state = State::Hole;
        self.blocks.link(self.last, block, NONE);
        self.last = block;
        let id = PageId::new(self.pages.len());
        let page = Page {
            addr: self.end,
            size,
            handle: None,
            busy: 0,
            windows: 0,
            freed: Fence::PAST,
            is_leaving: true,
            is_asleep: false,
            first: block,
        };
        self.pages.push(page);
        self.page_at.extend(std::iter::repeat_n(id, (size >> GRANULE_BITS) as usize));
        self.end += size;
    }

    /// Gives up the addresses of holes at the end: growth uses them again.
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
            self.pages.pop();
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

    /// Puts a page that is mapped at a hole's addresses behind it again; no work uses it after fence `freed`.
    pub fn refill(&mut self, page: PageId, handle: PageHandle, freed: Fence) {
        let Page { addr, size, first: block, .. } = self.pages[page.index()];
        if self.blocks[block].state == State::Hole
            && (self.blocks[block].addr, self.blocks[block].size) == (addr, size)
        {
            let filled = &mut self.pages[page.index()];
            (filled.handle, filled.freed) = (Some(handle), Fence::PAST);
            self.blocks[block].state = State::Live;
            self.count_live(block);
            self.release_behind(block, freed);
        }
    }

    /// Makes `count` holes side by side, from a page on, into holes of other sizes, as many bytes in all. The numbers
    /// of all pages behind them change by the difference: the caller tells whoever knows them.
    pub(crate) fn reshape_holes(&mut self, first: PageId, count: usize, sizes: &[u64]) {
        let from = first.index();
        let old = &self.pages[from..from + count];
        debug_assert!(old.iter().all(|page| page.is_hole() && page.windows == 0));
        debug_assert_eq!(old.iter().map(|page| page.size).sum::<u64>(), sizes.iter().sum::<u64>());
        let freed = old.iter().map(|page| page.freed).max().unwrap_or_default();
        let blocks: Vec<u32> = old.iter().map(|page| page.first).collect();
        let (prev, next) = (self.blocks[blocks[0]].prev, self.blocks[blocks[count - 1]].next);
        let mut addr = old[0].addr;
        for block in blocks {
            self.blocks.discard(block);
        }
        let mut last = prev;
        let mut new = Vec::with_capacity(sizes.len());
        for &size in sizes {
            let block = self.blocks.add(addr, size);
            self.blocks[block].state = State::Hole;
            self.blocks.link(last, block, next);
            last = block;
            new.push(Page {
                addr,
                size,
                handle: None,
                busy: 0,
                windows: 0,
                freed,
                is_leaving: false,
                is_asleep: false,
                first: block,
            });
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

    /// The largest free block.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.free.below(u64::MAX).map_or(0, |entry| entry.size)
    }

    /// Every block, by address.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> + '_ {
        let mut first = self.last;
        while first != NONE && self.blocks[first].prev != NONE {
            first = self.blocks[first].prev;
        }
        let mut next = first;
        std::iter::from_fn(move || {
            (next != NONE).then(|| {
                let block = &self.blocks[next];
                next = block.next;
                block
            })
        })
    }

    /// Checks the invariants; what is wrong, in words.
    ///
    /// # Errors
    /// When one does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut at = self.start;
        let mut free = 0;
        let mut was_free = false;
        let mut busy = vec![0u32; self.pages.len()];
        for block in self.blocks() {
            if block.addr != at || block.size == 0 {
                return Err(format!("a block of {} at {:#x}, where {at:#x} was due", block.size, block.addr));
            }
            at += block.size;
            match block.state {
                State::Free => {
                    if was_free {
                        return Err(format!("two free blocks side by side at {:#x}", block.addr));
                    }
                    free += 1;
                }
                State::Live | State::Asleep => {
                    for (i, page) in self.pages.iter().enumerate() {
                        if page.addr < at && block.addr < page.addr + page.size {
                            busy[i] += 1;
                            if page.handle.is_none() && !page.is_asleep {
                                return Err(format!("a live block at {:#x} over a hole", block.addr));
                            }
                            if page.is_asleep != (block.state == State::Asleep) {
                                return Err(format!(
                                    "the block at {:#x} and its page do not both sleep",
                                    block.addr
                                ));
                            }
                        }
                    }
                }
                State::Hole | State::Closed => {}
            }
            was_free = block.state == State::Free;
        }
        if at != self.end {
            return Err(format!("the blocks end at {at:#x}, the range at {:#x}", self.end));
        }
        if free != self.free.len() {
            return Err(format!("{free} free blocks, {} in the set", self.free.len()));
        }
        for entry in self.free.iter() {
            let block = &self.blocks[entry.block];
            if block.state != State::Free || (block.size, block.addr) != (entry.size, entry.tie) {
                return Err(format!("the set's block at {:#x} is not what the set says", entry.tie));
            }
        }
        let mut at = self.start;
        for (i, page) in self.pages.iter().enumerate() {
            if page.addr != at {
                return Err(format!("a page at {:#x}, where {at:#x} was due", page.addr));
            }
            at += page.size;
            let first = self.blocks[page.first];
            if !(first.addr..first.addr + first.size).contains(&page.addr) {
                return Err(format!("page {i} begins at {:#x}, its block at {:#x}", page.addr, first.addr));
            }
            if page.busy != busy[i] {
                return Err(format!("page {i} counts {} live blocks, {} touch it", page.busy, busy[i]));
            }
        }
        if at == self.end { Ok(()) } else { Err("the pages do not end where the range does".into()) }
    }
}
