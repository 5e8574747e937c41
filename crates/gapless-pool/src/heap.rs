//! One lane's memory of one size class: a growing range of addresses with pages behind it, cut into blocks.
//!
//! Pages stay where they were first mapped, their home. Blocks are placed best fit, with splitting and merging. A page
//! counts the live blocks that touch it, so one comparison shows that it is free. The hot path does no more than that;
//! when nothing fits, the pool decides. A page also knows the block at its first byte, so a short walk finds any block.

mod check;
mod cuts;
mod pages;
mod picture;
mod sleeping;
mod stock;

use crate::blocks::{Block, Blocks, NONE, Seen, State};
use crate::device::PageHandle;
use crate::free_set::{Entry, FreeSet};
use crate::ids::{Fence, PageId};
use crate::stretches::Stretches;
use crate::visits;
pub(crate) use picture::Picture;
pub(crate) use stock::{FRAGMENT, Shelf};
use stock::{Listed, Stock};

/// The unit of block sizes.
pub const UNIT: u64 = 512;
/// A request above this size is refused before the device is asked.
pub(crate) const LARGEST: u64 = 1 << 50;
/// Requests up to this size have heaps of their own, because small blocks would pin the pages of large ones.
pub const SMALL: u64 = 1 << 20;
/// The unit of pages and of reserved addresses.
pub const GRANULE: u64 = 2 << 20;
const GRANULE_BITS: u32 = 21;

/// A physical page at its home.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub addr: u64,
    pub size: u64,
    /// `None` if the page was given back to the device: a hole.
    pub handle: Option<PageHandle>,
    /// Live blocks that touch it.
    pub busy: u32,
    /// Windows that map it too.
    pub windows: u32,
    /// After this fence no work uses the freed parts of the page: see [`Fences`](crate::pool).
    pub freed: Fence,
    /// A hole whose addresses are still mapped because queued work may use them.
    pub is_leaving: bool,
    /// The page sleeps or is about to: its blocks keep their addresses. With a handle, its memory is still held.
    pub is_asleep: bool,
    /// The block that contains its first byte.
    first: u32,
    /// The parts of it that windows can take, as the heap's stock lists them.
    listed: Listed,
}

impl Page {
    /// A page with nothing behind it.
    fn empty(addr: u64, size: u64, first: u32) -> Page {
        Page {
            addr,
            size,
            handle: None,
            busy: 0,
            windows: 0,
            freed: Fence::PAST,
            is_leaving: false,
            is_asleep: false,
            first,
            listed: Listed::default(),
        }
    }

    /// True if a page can be mapped at its addresses.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        self.handle.is_none() && !self.is_leaving && !self.is_asleep
    }

    /// True if no live block touches it and it has memory.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.busy == 0 && self.handle.is_some() && !self.is_asleep
    }
}

/// Invariants: blocks tile `[start, end)`; so do pages; `page_at[g]` is the page behind granule `g`; `page.first`
/// contains `page.addr`; `free_bytes`, `held` and `whole` are the sums over free blocks, over pages with a handle, and
/// over pages that are wholly free; `holes` has the pages that are holes. [`picture`] and [`stock`] state theirs.
#[derive(Clone, Debug)]
pub struct Heap {
    start: u64,
    end: u64,
    /// The end of the reserved addresses.
    limit: u64,
    /// True for the heap of large requests. There a small block is a guest, and windows take free pages.
    is_large: bool,
    blocks: Blocks,
    free: FreeSet,
    /// The block that ends at `end`.
    last: u32,
    pages: Vec<Page>,
    page_at: Vec<PageId>,
    /// The fence that covers frees from now on.
    fence: Fence,
    /// True if a block was freed since `fence` became the present one.
    has_freed: bool,
    free_bytes: u64,
    held: u64,
    whole: u64,
    picture: Picture,
    stock: Stock,
    holes: Stretches,
}

impl Heap {
    /// A heap over reserved addresses without pages, for large requests or for small ones.
    #[must_use]
    pub fn new(start: u64, size: u64, is_large: bool) -> Heap {
        Heap {
            start,
            end: start,
            limit: start + size,
            is_large,
            blocks: Blocks::default(),
            free: FreeSet::default(),
            last: NONE,
            pages: Vec::new(),
            page_at: Vec::new(),
            fence: Fence::PAST,
            has_freed: false,
            free_bytes: 0,
            held: 0,
            whole: 0,
            picture: Picture::default(),
            stock: Stock::default(),
            holes: Stretches::default(),
        }
    }

    /// Sets the fence that covers frees from now on.
    pub(crate) fn set_fence(&mut self, fence: Fence) {
        self.fence = fence;
        self.has_freed = false;
    }

    /// Every page. To find one page, [`Heap::page_of`] and [`Heap::pages_between`] are faster.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        visits::add(self.pages.len());
        &self.pages
    }

    #[inline]
    #[must_use]
    pub fn page(&self, page: PageId) -> &Page {
        &self.pages[page.index()]
    }

    /// Bytes in free blocks.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    pub(crate) fn whole(&self) -> u64 {
        self.whole
    }

    /// True if it has no page, held or not.
    pub(crate) fn is_bare(&self) -> bool {
        self.pages.is_empty()
    }

    #[must_use]
    pub fn block(&self, block: u32) -> &Block {
        &self.blocks[block]
    }

    /// The address at which the next page will be mapped.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The first of its addresses.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The number of its addresses, used or not.
    #[must_use]
    pub fn range(&self) -> u64 {
        self.limit - self.start
    }

    /// True if the address is one of its own.
    #[inline]
    #[must_use]
    pub fn holds(&self, addr: u64) -> bool {
        (self.start..self.limit).contains(&addr)
    }

    /// The number of reserved addresses that are not used yet.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.limit - self.end
    }

    /// The size of the free block at the end of the range, which growth extends; 0 if that block is taken.
    #[must_use]
    pub fn tail(&self) -> u64 {
        if self.last != NONE && self.blocks[self.last].state == State::Free {
            self.blocks[self.last].size
        } else {
            0
        }
    }

    /// Takes `size` bytes from the front of the smallest free block that has them.
    #[inline]
    pub fn take(&mut self, size: u64) -> Option<u32> {
        let Entry { block, size: whole, tie } = self.free.at_least(size)?;
        self.hide(block);
        let (front, rest) = self.split(block, size);
        self.requeue(block, (whole, tie), NONE, rest);
        self.hand_out(front);
        self.seat(front);
        Some(front)
    }

    /// Takes `[addr, addr + size)` if all of it is free.
    #[inline]
    pub fn take_at(&mut self, addr: u64, size: u64) -> Option<u32> {
        let block = self.cut_out(addr, size)?;
        self.seat(block);
        Some(block)
    }

    /// The free block that contains `[addr, addr + size)`.
    #[inline]
    fn free_around(&self, addr: u64, size: u64) -> Option<u32> {
        let granule = (addr.checked_sub(self.start)? >> GRANULE_BITS) as usize;
        let mut block = self.pages[self.page_at.get(granule)?.index()].first;
        let mut found = &self.blocks[block];
        while found.addr + found.size <= addr {
            block = found.next;
            if block == NONE {
                return None;
            }
            found = &self.blocks[block];
        }
        (found.state == State::Free && addr + size <= found.addr + found.size).then_some(block)
    }

    /// True if one free block contains `[addr, addr + size)`.
    #[must_use]
    pub fn is_free(&self, addr: u64, size: u64) -> bool {
        self.free_around(addr, size).is_some()
    }

    /// Makes `[addr, addr + size)` live if all of it is free.
    #[inline]
    fn cut_out(&mut self, addr: u64, size: u64) -> Option<u32> {
        let mut block = self.free_around(addr, size)?;
        let old = block;
        let found = self.blocks[block];
        self.hide(block);
        let before = addr - found.addr;
        let mut front = NONE;
        if before > 0 {
            // The smaller part gets the new number, because the pages that begin in it must be told.
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
        self.requeue(old, (found.size, found.addr), front, rest);
        self.hand_out(block);
        Some(block)
    }

    /// The size of the block from which [`Heap::take`] would cut.
    #[must_use]
    pub fn fits(&self, size: u64) -> Option<u64> {
        self.free.at_least(size).map(|entry| entry.size)
    }

    /// Cuts the first `size` bytes off a block. The rest keeps the block's number; it is [`NONE`] if nothing is left.
    #[inline]
    fn split(&mut self, block: u32, size: u64) -> (u32, u32) {
        if self.blocks[block].size == size {
            return (block, NONE);
        }
        let front = self.blocks.cut_front(block, size);
        self.tell_pages(front);
        (front, block)
    }

    /// Replaces a free block in the set by what is left of it: at most a front and a rest. `number` and `old` are how
    /// the set knows it; the caller has taken it out of the picture before.
    #[inline]
    fn requeue(&mut self, number: u32, old: (u64, u64), front: u32, rest: u32) {
        self.free_bytes -= old.0;
        if self.is_large && old.0 >= GRANULE {
            self.spoil(number);
        }
        for block in [front, rest] {
            if block != NONE {
                self.free_bytes += self.blocks[block].size;
                self.reveal(block);
            }
        }
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

    /// Makes a block live that is in no set.
    #[inline]
    fn hand_out(&mut self, block: u32) {
        self.blocks[block].state = State::Live;
        self.count_live(block);
    }

    /// Shows a small block between large ones apart, once it lies here for a caller.
    #[inline]
    fn seat(&mut self, block: u32) {
        if self.is_large && self.blocks[block].size <= SMALL {
            self.show(block, Seen::Alone);
        }
    }

    /// Frees a live block and joins it with its free neighbours.
    #[inline]
    pub fn release(&mut self, block: u32) {
        self.has_freed = true;
        self.release_behind(block, self.fence);
    }

    /// [`Heap::release`]; after fence `fence` no work uses the block.
    #[inline]
    pub(crate) fn release_behind(&mut self, block: u32, fence: Fence) {
        debug_assert_eq!(self.blocks[block].state, State::Live);
        if self.blocks[block].seen != Seen::Joined {
            self.show(block, Seen::Joined);
        }
        self.count_free(block, fence);
        let Block { addr, size, prev, next, .. } = self.blocks[block];
        let free_size = |id: u32| {
            let neighbour = (id != NONE).then(|| &self.blocks[id])?;
            (neighbour.state == State::Free).then_some(neighbour.size)
        };
        let before = free_size(prev).map(|before| (before, addr - before));
        let after = free_size(next).map(|after| (after, addr + size));
        for (neighbour, old) in [(prev, before), (next, after)] {
            let Some((bytes, _)) = old else { continue };
            self.hide(neighbour);
            if self.is_large && bytes < FRAGMENT {
                self.spoil_pages(neighbour);
            }
        }
        self.blocks[block].state = State::Free;
        match (before, after) {
            (None, None) => self.put(block),
            (Some(old), None) => {
                let joined = self.join(prev, block);
                self.requeue(prev, old, NONE, joined);
            }
            (None, Some(old)) => {
                let joined = self.join(block, next);
                self.requeue(next, old, NONE, joined);
            }
            (Some(before), Some(after)) => {
                let is_before_larger = before > after;
                let (larger, smaller) = if is_before_larger { (before, after) } else { (after, before) };
                self.free.remove(smaller.0, smaller.1);
                self.free_bytes -= smaller.0;
                let (kept, other) = if is_before_larger { (prev, next) } else { (next, prev) };
                if self.is_large && smaller.0 >= GRANULE {
                    self.spoil(other);
                }
                let first = self.join(prev, block);
                let joined = self.join(first, next);
                self.requeue(kept, larger, NONE, joined);
            }
        }
    }

    /// Joins two free neighbours. The larger one keeps its number, because the pages that begin in the other must be
    /// told. The caller updates the set.
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

    /// Writes a block's number into the pages that begin in it.
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
        self.free_bytes += self.blocks[block].size;
        self.reveal(block);
    }

    /// The set's entry of a free block.
    #[inline]
    fn entry(&self, block: u32) -> Entry {
        let Block { addr, size, .. } = self.blocks[block];
        Entry { size, tie: addr, block }
    }

    /// Counts one more live block in the pages that a block touches.
    #[inline]
    fn count_live(&mut self, block: u32) {
        let mut taken = 0;
        self.for_pages_of(block, |page| {
            taken += if page.busy == 0 { page.size } else { 0 };
            page.busy += 1;
        });
        self.whole -= taken;
    }

    /// Counts one live block less there; after fence `fence` no work uses it.
    #[inline]
    fn count_free(&mut self, block: u32, fence: Fence) {
        let mut left = 0;
        self.for_pages_of(block, |page| {
            page.busy -= 1;
            page.freed = page.freed.max(fence);
            left += if page.busy == 0 { page.size } else { 0 };
        });
        self.whole += left;
    }

    #[inline]
    fn for_pages_of(&mut self, block: u32, mut work: impl FnMut(&mut Page)) {
        let Block { addr, size, .. } = self.blocks[block];
        let last = addr + size - 1;
        let mut page = self.page_at[((addr - self.start) >> GRANULE_BITS) as usize].index();
        loop {
            let p = &mut self.pages[page];
            work(p);
            if self.is_large && !p.listed.is_stale {
                p.listed.is_stale = true;
                self.stock.stale_pages.push(PageId::new(page));
            }
            if last < p.addr + p.size {
                return;
            }
            page += 1;
        }
    }

    /// The pages that `[from, to)` touches. The range lies in the heap.
    pub(crate) fn pages_between(&self, from: u64, to: u64) -> &[Page] {
        let first = self.page_at[((from - self.start) >> GRANULE_BITS) as usize].index();
        let count = self.pages[first..].iter().take_while(|page| page.addr < to).count();
        &self.pages[first..first + count]
    }

    /// True if no work uses `[addr, addr + size)` after fence `done`. The range lies in the heap.
    pub(crate) fn is_settled(&self, addr: u64, size: u64, done: Fence) -> bool {
        self.pages_between(addr, addr + size).iter().all(|page| page.freed <= done)
    }

    /// Size and address of the smallest free block of at least `size` bytes whose front no work uses after fence
    /// `done`. Looks at `tries` blocks at most.
    pub(crate) fn fits_settled(&self, size: u64, done: Fence, tries: usize) -> Option<(u64, u64)> {
        let found =
            self.free.iter_from(size).take(tries).find(|entry| self.is_settled(entry.tie, size, done))?;
        Some((found.size, found.tie))
    }

    /// True if a block was freed that only the present fence covers.
    pub(crate) fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// The size of the block that contains the page's first byte.
    pub(crate) fn block_at(&self, page: &Page) -> u64 {
        self.blocks[page.first].size
    }

    /// The size of the largest free block.
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
                visits::add(1);
                let block = &self.blocks[next];
                next = block.next;
                block
            })
        })
    }
}
