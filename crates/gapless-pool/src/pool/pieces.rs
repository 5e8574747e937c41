//! Free memory for windows, in pieces: whole pages, and the free fronts and backs of pages that are used in part. A
//! window consists of a back, whole pages and a front. The choice decides how many pages stay wholly free.
//!
//! Heaps list their pieces in order ([`Shelf`]). This file merges the lists of several heaps, and reads from each only
//! as far as a window needs.

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

use crate::heap::{GRANULE, Heap, Page, Shelf};
use crate::ids::{Fence, HeapId, PageId};
use crate::visits;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;

/// The largest fronts and backs, which are tried as ends of a window.
const ENDS: usize = 128;

/// Free memory that a window can take: a page, or the free front or back of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) heap: HeapId,
    pub(super) page: PageId,
    /// The size of the page.
    pub(super) page_size: u64,
    /// Offset of the free bytes in the page, and their number.
    pub(super) from: u64,
    pub(super) size: u64,
}

impl Piece {
    /// A wholly free page.
    pub(super) fn page(heap: HeapId, page: PageId, size: u64) -> Piece {
        Piece { heap, page, page_size: size, from: 0, size }
    }
}

/// A heap whose free memory a window may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) id: HeapId,
    pub(super) heap: &'a Heap,
    pub(super) shelf: &'a Shelf,
    /// Only pages that are settled by this fence count.
    pub(super) done: Fence,
}

impl Source<'_> {
    fn piece(&self, page: &Page) -> Option<Piece> {
        Some(Piece::page(self.id, self.heap.page_of(page.addr)?, page.size))
    }

    /// The page at `addr`, of which the last or the first `size` bytes are free.
    fn end(&self, addr: u64, size: u64, is_back: bool) -> Option<Piece> {
        let page = self.heap.page_of(addr)?;
        let page_size = self.heap.page(page).size;
        let from = if is_back { page_size - size } else { 0 };
        Some(Piece { heap: self.id, page, page_size, from, size })
    }
}

/// The memory that a window may take: of the lane's own heap, whose pages come first, and of others.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach<'a> {
    pub(super) own: Vec<Source<'a>>,
    pub(super) lent: Vec<Source<'a>>,
}

impl Reach<'_> {
    fn shelves(&self) -> impl Iterator<Item = &Shelf> {
        self.own.iter().chain(&self.lent).map(|source| source.shelf)
    }

    /// Bytes in whole pages.
    fn whole(&self) -> u64 {
        self.shelves().map(|shelf| shelf.bytes).sum()
    }

    /// True if other lanes have whole pages.
    pub(super) fn has_lent(&self) -> bool {
        self.lent.iter().any(|source| source.shelf.bytes > 0)
    }

    /// The most bytes that one window can hold.
    pub(super) fn most(&self) -> u64 {
        let largest = |of: fn(&Shelf) -> &BTreeSet<(u64, u64)>| {
            self.shelves().map(|shelf| Shelf::longest(of(shelf))).max().unwrap_or(0)
        };
        self.whole() + largest(|shelf| &shelf.fronts) + largest(|shelf| &shelf.backs)
    }

    /// Pieces for `size` bytes, in the order of a window: a free back of a page, whole pages, and a free front. Whole
    /// pages are taken in order while they are not too large, those in `fresh` of the lane's own heap first;
    /// [`best_ends`] chooses the rest.
    pub(super) fn choose(&self, size: u64, fresh: &[Range<u64>]) -> Option<Vec<Piece>> {
        let (backs, fronts) =
            (self.ends(|shelf| &shelf.backs, true), self.ends(|shelf| &shelf.fronts, false));
        let ends = best_ends(self.whole(), &backs, &fronts, size)?;
        let mut choice = Choice::new(size, &ends);
        for page in self.fresh_pages(fresh) {
            choice.offer(page);
        }
        let is_fresh = |page: &Page| fresh.iter().any(|range| range.contains(&page.addr));
        offer_in_order(&self.own, &mut choice, is_fresh);
        offer_in_order(&self.lent, &mut choice, |_| false);
        choice.finish(&ends)
    }

    /// Whole pages of the lane's own heap in these ranges, in order.
    fn fresh_pages(&self, fresh: &[Range<u64>]) -> Vec<Piece> {
        let Some(own) = self.own.first() else { return Vec::new() };
        let pages = fresh.iter().flat_map(|range| own.heap.pages_between(range.start, range.end));
        let mut keyed: Vec<_> = pages
            .filter(|page| page.is_free())
            .filter_map(|page| {
                Some(((Reverse(page.size), own.heap.block_at(page), page.addr), own.piece(page)?))
            })
            .collect();
        keyed.sort_unstable_by_key(|&(key, _)| key);
        keyed.into_iter().map(|(_, piece)| piece).collect()
    }

    /// The largest fronts or backs, the largest last.
    fn ends(&self, of: fn(&Shelf) -> &BTreeSet<(u64, u64)>, is_back: bool) -> Vec<Piece> {
        let sources: Vec<&Source<'_>> = self.own.iter().chain(&self.lent).collect();
        let mut lists: Vec<_> = sources.iter().map(|source| of(source.shelf).iter().rev()).collect();
        let mut heads = BinaryHeap::new();
        for (at, list) in lists.iter_mut().enumerate() {
            heads.extend(list.next().map(|&(size, addr)| (size, sources[at].id, addr, at)));
        }
        let mut found = Vec::new();
        while let Some((size, _, addr, at)) = heads.pop() {
            visits::add(1);
            found.extend(sources[at].end(addr, size, is_back));
            if found.len() == ENDS {
                break;
            }
            heads.extend(lists[at].next().map(|&(size, addr)| (size, sources[at].id, addr, at)));
        }
        found.reverse();
        found
    }
}

/// Offers whole pages while bytes are missing. Large pages come first, because they need fewer mappings; of equal ones
/// those in the smallest free blocks, which serve the fewest requests.
fn offer_in_order(sources: &[Source<'_>], choice: &mut Choice, is_left_out: impl Fn(&Page) -> bool) {
    let mut below = u64::MAX;
    while choice.left > 0 {
        let sizes = sources.iter().filter_map(|source| source.shelf.next_size(below));
        let Some(size) = sizes.max() else { return };
        below = size;
        let mut lists: Vec<_> = sources.iter().map(|source| source.shelf.blocks_with(size)).collect();
        let mut heads = BinaryHeap::new();
        for (at, list) in lists.iter_mut().enumerate() {
            heads.extend(list.next().map(|(block, addr)| Reverse((block, sources[at].id, addr, at))));
        }
        'size: while let Some(Reverse((block, _, addr, at))) = heads.pop() {
            let source = &sources[at];
            let pages = source.heap.whole_pages(addr, block).filter(|page| page.size == size);
            let pages = pages.filter(|page| page.freed <= source.done && !is_left_out(page));
            for page in pages.filter_map(|page| source.piece(page)) {
                // The others of this size are too large as well.
                if !choice.offer(page) {
                    break 'size;
                }
            }
            heads.extend(lists[at].next().map(|(block, addr)| Reverse((block, source.id, addr, at))));
        }
    }
}

/// The pieces that are chosen for a window so far.
#[derive(Clone, Debug)]
struct Choice {
    /// Bytes that whole pages must still supply.
    left: u64,
    chosen: Vec<Piece>,
    /// The first of the smallest pages that were too large.
    rest: Option<Piece>,
}

impl Choice {
    fn new(size: u64, ends: &Ends<'_>) -> Choice {
        let &Ends { back, from_back, from_front, .. } = ends;
        let cut =
            |back: &Piece| Piece { from: back.from + (back.size - from_back), size: from_back, ..*back };
        Choice {
            left: size - from_back - from_front,
            chosen: back.map(cut).into_iter().collect(),
            rest: None,
        }
    }

    /// Takes a page if it is not too large. Returns true if it was taken.
    fn offer(&mut self, page: Piece) -> bool {
        let is_taken = page.size <= self.left;
        if is_taken {
            self.left -= page.size;
            self.chosen.push(page);
        } else {
            self.rest = self.rest.filter(|rest| rest.size <= page.size).or(Some(page));
        }
        is_taken
    }

    fn finish(mut self, ends: &Ends<'_>) -> Option<Vec<Piece>> {
        let mut end = self.left + ends.from_front;
        if self.left > 0 {
            // Only larger pages are left: one of them is the end, or comes before it.
            let page = self.rest?;
            self.chosen.push(Piece { size: end.min(page.size), ..page });
            end = end.saturating_sub(page.size);
        }
        if end > 0 {
            self.chosen.push(Piece { size: end, ..*ends.front? });
        }
        Some(self.chosen)
    }
}

/// The beginning and the end of a window in pages that are free in part, and the bytes taken from each.
#[derive(Clone, Copy, Debug)]
struct Ends<'a> {
    back: Option<&'a Piece>,
    from_back: u64,
    front: Option<&'a Piece>,
    from_front: u64,
}

/// The best beginning and end for a window of `size` bytes; `None` if there is not enough. Whole pages, of `whole`
/// bytes in all, serve any window; parts of pages serve only as ends. So the best ends leave the most whole pages free.
/// Of these, the best lie in the smallest pages and leave the smallest hole, because they keep the fewest bytes from
/// becoming whole pages again.
fn best_ends<'a>(whole: u64, backs: &'a [Piece], fronts: &'a [Piece], size: u64) -> Option<Ends<'a>> {
    let mut best: Option<(Ends<'_>, (u64, u64, u64))> = None;
    for back in backs.iter().map(Some).chain([None]) {
        let from_back = back.map_or(0, |back| back.size.min(size));
        let needed = size - from_back;
        for front in fronts.iter().map(Some).chain([None]) {
            if back.zip(front).is_some_and(|(b, f)| (b.heap, b.page) == (f.heap, f.page)) {
                continue;
            }
            let there = front.map_or(0, |front| front.size);
            // Whole pages supply the rest, in granules.
            let from_front = match there.min(needed).checked_sub(needed % GRANULE) {
                Some(beyond) => needed % GRANULE + beyond / GRANULE * GRANULE,
                None if front.is_none() => 0,
                None => continue,
            };
            let from_pages = (needed - from_front).div_ceil(GRANULE) * GRANULE;
            let hole = there - from_front + back.map_or(0, |back| back.size - from_back);
            let pinned = [back, front].into_iter().flatten().map(|piece| piece.page_size).sum::<u64>();
            let rank = (from_pages, pinned + hole, hole);
            if from_pages <= whole && best.is_none_or(|(_, least)| rank < least) {
                best = Some((Ends { back, from_back, front, from_front }, rank));
            }
        }
    }
    best.map(|(ends, _)| ends)
}
