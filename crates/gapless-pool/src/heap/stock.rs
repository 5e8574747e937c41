//! Free memory of a heap of large requests that windows can use, in order: wholly free pages, and the free fronts and
//! backs of pages that are used in part. It is listed twice: all of it, and the settled part for other lanes.
//!
//! A request that its heap can serve only notes which pages and blocks it changed. A miss lists those anew. So a hit
//! costs next to nothing, and a miss costs as much as changed since the last one, however much lies free.

use super::{GRANULE, Heap, Page};
use crate::blocks::{Block, State};
use crate::ids::{Fence, PageId};
use crate::visits;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Smaller pieces of free memory are not listed.
pub(crate) const FRAGMENT: u64 = 64 << 10;

/// Free memory for windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shelf {
    /// Free fronts and backs of pages that are used in part: bytes, and the page's address.
    pub(crate) fronts: BTreeSet<(u64, u64)>,
    pub(crate) backs: BTreeSet<(u64, u64)>,
    /// Free blocks with wholly free pages: the size of those pages, the block's size and address. Large pages come
    /// first, because they need fewer mappings; of equals those in the smallest free blocks, which serve fewest
    /// requests.
    whole: BTreeSet<Whole>,
    /// Bytes in wholly free pages.
    pub(crate) bytes: u64,
}

/// The size of wholly free pages, and the size and address of the free block around them.
pub(crate) type Whole = (Reverse<u64>, u64, u64);

/// A page's part of the lists: the bytes of its free front and back, of free blocks that are large enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    front: u64,
    back: u64,
    is_settled: bool,
    /// True if the page must be listed anew.
    pub(super) is_stale: bool,
}

/// A free block's part of the lists: its size and address, and its whole pages by size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InBlock {
    size: u64,
    addr: u64,
    sizes: Vec<OfSize>,
    /// The first fence after which more of its pages are settled.
    due: Option<Fence>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfSize {
    page: u64,
    bytes: u64,
    settled: u64,
}

/// Invariants: of pages and blocks that are not stale, `all` and `settled` list what there is; a page or block that is
/// stale is in `stale_pages` or `stale_blocks`, once; what is not settled is in `due_pages` or `due_blocks` by the
/// fence to wait for, which `done` did not reach.
#[derive(Clone, Debug, Default)]
pub(super) struct Stock {
    all: Shelf,
    settled: Shelf,
    blocks: FxHashMap<u32, InBlock>,
    pub(super) stale_pages: Vec<PageId>,
    stale_blocks: Vec<u32>,
    due_pages: BTreeSet<(Fence, u64)>,
    due_blocks: BTreeSet<(Fence, u32)>,
    done: Fence,
}

impl Shelf {
    fn list_ends(&mut self, page: u64, listed: Listed, is_in: bool) {
        for (set, size) in [(&mut self.fronts, listed.front), (&mut self.backs, listed.back)] {
            if size > 0 && is_in {
                set.insert((size, page));
            } else if size > 0 {
                set.remove(&(size, page));
            }
        }
    }

    fn list_whole(&mut self, of: &InBlock, page: u64, bytes: u64, is_in: bool) {
        let key = (Reverse(page), of.size, of.addr);
        if bytes > 0 && is_in {
            self.whole.insert(key);
            self.bytes += bytes;
        } else if bytes > 0 {
            self.whole.remove(&key);
            self.bytes -= bytes;
        }
    }

    /// The size of the largest pages that are smaller than `below`.
    pub(crate) fn next_size(&self, below: u64) -> Option<u64> {
        let &(Reverse(size), ..) = self.whole.range((Reverse(below - 1), 0, 0)..).next()?;
        Some(size)
    }

    /// Size and address of the free blocks with pages of a size, in order.
    pub(crate) fn blocks_with(&self, page: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let of_size = self.whole.range((Reverse(page), 0, 0)..=(Reverse(page), u64::MAX, u64::MAX));
        of_size.map(|&(_, size, addr)| (size, addr)).inspect(|_| visits::add(1))
    }

    /// The bytes of the longest free front or back.
    pub(crate) fn longest(ends: &BTreeSet<(u64, u64)>) -> u64 {
        ends.last().map_or(0, |(size, _)| *size)
    }
}

impl Heap {
    /// Marks a block that is free, or was, to be listed anew.
    #[inline]
    pub(super) fn spoil(&mut self, block: u32) {
        if !self.blocks[block].is_stale {
            self.blocks[block].is_stale = true;
            self.stock.stale_blocks.push(block);
        }
    }

    /// [`Heap::spoil`] for a block that is free now. If it is too small for a window, it may be the rest of a larger
    /// one, so its pages must drop what they list of it.
    #[inline]
    pub(super) fn spoil_free(&mut self, block: u32) {
        let size = self.blocks[block].size;
        if size >= GRANULE {
            self.spoil(block);
        } else if size < FRAGMENT {
            self.spoil_pages(block);
        }
    }

    /// Marks the pages of a block to be listed anew.
    pub(super) fn spoil_pages(&mut self, block: u32) {
        // `for_pages_of` marks each page that it visits.
        self.for_pages_of(block, |_| ());
    }

    /// Lists everything anew, because page numbers or the free memory changed as a whole.
    pub(super) fn list_anew(&mut self) {
        if !self.is_large {
            return;
        }
        visits::add(self.pages.len());
        let done = self.stock.done;
        for &block in &self.stock.stale_blocks {
            self.blocks[block].is_stale = false;
        }
        self.stock = Stock { done, ..Stock::default() };
        for page in 0..self.pages.len() {
            self.pages[page].listed = Listed { is_stale: true, ..Listed::default() };
            self.stock.stale_pages.push(PageId::new(page));
        }
        let free: Vec<u32> = self.free.iter_from(GRANULE).map(|entry| entry.block).collect();
        for block in free {
            self.spoil(block);
        }
    }

    /// Brings the lists up to date: all free memory, and the part that no work uses after fence `done`.
    pub(crate) fn take_stock(&mut self, done: Fence) {
        if done > self.stock.done {
            self.stock.done = done;
            while let Some(&(fence, page)) = self.stock.due_pages.first()
                && fence <= done
            {
                self.stock.due_pages.pop_first();
                self.settle_page(page);
            }
            while let Some(&(fence, block)) = self.stock.due_blocks.first()
                && fence <= done
            {
                self.stock.due_blocks.pop_first();
                self.spoil(block);
            }
        }
        while let Some(page) = self.stock.stale_pages.pop() {
            self.list_page(page);
        }
        let stale = std::mem::take(&mut self.stock.stale_blocks);
        // A block may lie where another one was listed, so the old entries go first.
        for &block in &stale {
            self.unlist_block(block);
        }
        for block in stale {
            self.list_block(block);
        }
    }

    /// The lists since [`Heap::take_stock`]: the settled part, or all.
    pub(crate) fn shelf(&self, settled: bool) -> &Shelf {
        if settled { &self.stock.settled } else { &self.stock.all }
    }

    fn settle_page(&mut self, addr: u64) {
        let Some(page) = self.page_of(addr) else { return };
        let Page { freed, listed, .. } = &mut self.pages[page.index()];
        // A stale page is listed anew later in this call; a page of which more was freed since is due later.
        if !listed.is_stale && !listed.is_settled && *freed <= self.stock.done {
            listed.is_settled = true;
            self.stock.settled.list_ends(addr, *listed, true);
        }
    }

    /// Takes a page that left the end of the heap out of the lists.
    pub(super) fn forget_page(&mut self, page: &Page) {
        self.stock.all.list_ends(page.addr, page.listed, false);
        if page.listed.is_settled {
            self.stock.settled.list_ends(page.addr, page.listed, false);
        }
    }

    /// Corrects the numbers in the lists after `count` pages from `from` on became `new` pages. These are not listed
    /// yet.
    pub(super) fn renumber(&mut self, from: usize, count: usize, new: usize) {
        let behind = from + count;
        self.stock.stale_pages.retain(|page| page.index() < from || page.index() >= behind);
        for page in self.stock.stale_pages.iter_mut().filter(|page| page.index() >= behind) {
            *page = page.moved(new as i32 - count as i32);
        }
    }

    fn list_page(&mut self, id: PageId) {
        visits::add(1);
        // The page may have left the end of the heap.
        let Some(&Page { addr, listed: old, freed, .. }) = self.pages.get(id.index()) else { return };
        let new = self.ends_of(id, self.stock.done);
        self.pages[id.index()].listed = new;
        let Stock { all, settled, due_pages, .. } = &mut self.stock;
        all.list_ends(addr, old, false);
        if old.is_settled {
            settled.list_ends(addr, old, false);
        }
        all.list_ends(addr, new, true);
        if new.is_settled {
            settled.list_ends(addr, new, true);
        } else {
            due_pages.insert((freed, addr));
        }
    }

    /// The free front and back of a page.
    fn ends_of(&self, id: PageId, done: Fence) -> Listed {
        let Page { addr, size, freed, first, .. } = self.pages[id.index()];
        let end = addr + size;
        let is_free = |block: &Block| block.state == State::Free && block.size >= FRAGMENT;
        let mut listed = Listed::default();
        let at_front = &self.blocks[first];
        if is_free(at_front) && at_front.addr + at_front.size < end {
            listed.front = at_front.addr + at_front.size - addr;
        }
        // The block that contains the page's last byte.
        let last = match self.pages.get(id.index() + 1) {
            Some(next) if self.blocks[next.first].addr < end => next.first,
            Some(next) => self.blocks[next.first].prev,
            None => self.last,
        };
        let at_back = &self.blocks[last];
        if is_free(at_back) && at_back.addr > addr {
            listed.back = end - at_back.addr;
        }
        listed.is_settled = freed <= done || listed.front + listed.back == 0;
        listed
    }

    fn unlist_block(&mut self, block: u32) {
        self.blocks[block].is_stale = false;
        let Stock { all, settled, blocks, due_blocks, .. } = &mut self.stock;
        if let Some(old) = blocks.remove(&block) {
            for of in &old.sizes {
                all.list_whole(&old, of.page, of.bytes, false);
                settled.list_whole(&old, of.page, of.settled, false);
            }
            if let Some(due) = old.due {
                due_blocks.remove(&(due, block));
            }
        }
    }

    fn list_block(&mut self, block: u32) {
        let new = self.pages_in(block, self.stock.done);
        if new.sizes.is_empty() {
            return;
        }
        let Stock { all, settled, blocks, due_blocks, .. } = &mut self.stock;
        for of in &new.sizes {
            all.list_whole(&new, of.page, of.bytes, true);
            settled.list_whole(&new, of.page, of.settled, true);
        }
        if let Some(due) = new.due {
            due_blocks.insert((due, block));
        }
        blocks.insert(block, new);
    }

    /// The whole pages in a free block; none if the block is not free.
    fn pages_in(&self, block: u32, done: Fence) -> InBlock {
        let Block { addr, size, state, .. } = self.blocks[block];
        let mut found = InBlock { size, addr, ..InBlock::default() };
        if state != State::Free || size < GRANULE {
            return found;
        }
        for page in self.whole_pages(addr, size) {
            let Page { size, freed, .. } = *page;
            let at = found.sizes.iter().position(|of| of.page == size).unwrap_or_else(|| {
                found.sizes.push(OfSize { page: size, ..OfSize::default() });
                found.sizes.len() - 1
            });
            found.sizes[at].bytes += size;
            if freed <= done {
                found.sizes[at].settled += size;
            } else {
                found.due = Some(found.due.map_or(freed, |due| due.min(freed)));
            }
        }
        found
    }

    /// The pages that lie wholly in `[addr, addr + size)`.
    pub(crate) fn whole_pages(&self, addr: u64, size: u64) -> impl Iterator<Item = &Page> {
        let pages = self.pages_between(addr, addr + size).iter().inspect(|_| visits::add(1));
        pages.filter(move |page| page.addr >= addr && page.addr + page.size <= addr + size)
    }

    /// Compares the lists with the pages and blocks.
    pub(super) fn check_stock(&self) -> Result<(), String> {
        let Stock { all, settled, blocks, stale_pages, stale_blocks, due_pages, due_blocks, done } =
            &self.stock;
        let is_stale = |block: u32| self.blocks[block].is_stale;
        let mut expected = [Shelf::default(), Shelf::default()];
        for (at, page) in self.pages.iter().enumerate() {
            let (id, listed) = (PageId::new(at), page.listed);
            if listed.is_stale {
                if self.is_large && !stale_pages.contains(&id) {
                    return Err(format!("page {at} is stale, and is not listed as that"));
                }
            } else if self.is_large && listed != Listed::default() && listed != self.ends_of(id, *done) {
                return Err(format!("page {at} is listed as {listed:?}, has {:?}", self.ends_of(id, *done)));
            }
            if !listed.is_settled
                && !listed.is_stale
                && listed != Listed::default()
                && !due_pages.contains(&(page.freed, page.addr))
            {
                return Err(format!("page {at} is not settled, and not due"));
            }
            expected[0].list_ends(page.addr, listed, true);
            if listed.is_settled {
                expected[1].list_ends(page.addr, listed, true);
            }
        }
        for entry in self.free.iter_from(GRANULE).filter(|entry| self.is_large && !is_stale(entry.block)) {
            let there = self.pages_in(entry.block, *done);
            if !there.sizes.is_empty() && blocks.get(&entry.block) != Some(&there) {
                return Err(format!("the free block at {:#x} has {there:?}, is listed otherwise", entry.tie));
            }
        }
        for (&block, of) in blocks {
            if is_stale(block) && !stale_blocks.contains(&block) {
                return Err(format!("block {block} is stale, and is not listed as that"));
            }
            if !is_stale(block) && (self.blocks[block].addr, self.blocks[block].size) != (of.addr, of.size) {
                return Err(format!("block {block} is listed as {of:?}"));
            }
            if of.due.is_some_and(|due| !due_blocks.contains(&(due, block))) {
                return Err(format!("block {block} is not settled, and not due"));
            }
            for each in &of.sizes {
                expected[0].list_whole(of, each.page, each.bytes, true);
                expected[1].list_whole(of, each.page, each.settled, true);
            }
        }
        for (shelf, there) in [all, settled].into_iter().zip(&expected) {
            if shelf != there {
                return Err(format!("listed are {shelf:x?}, pages and blocks have {there:x?}"));
            }
        }
        Ok(())
    }
}
