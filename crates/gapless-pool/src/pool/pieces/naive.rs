//! [`Reach`](super::Reach) computed from everything that is free: for tests.

use super::{Choice, ENDS, Piece, best_ends};
use crate::blocks::State;
use crate::device::Device;
use crate::heap::FRAGMENT;
use crate::ids::{Fence, LaneId, PageId};
use crate::pool::Pool;
use crate::pool::missing::Whose;
use std::cmp::Reverse;

/// The memory that a window may take.
#[derive(Clone, Debug, Default)]
pub(in crate::pool) struct Pieces {
    /// Wholly free pages.
    pub(super) pages: Vec<Piece>,
    /// Free fronts of pages whose back is used: they can end a window.
    pub(super) fronts: Vec<Piece>,
    /// Free backs: they can begin one.
    pub(super) backs: Vec<Piece>,
}

impl Pieces {
    pub(super) fn add(&mut self, other: Pieces) {
        self.pages.extend(other.pages);
        self.fronts.extend(other.fronts);
        self.backs.extend(other.backs);
        self.fronts.sort_by_key(|p| (p.size, p.heap, p.page));
        self.backs.sort_by_key(|p| (p.size, p.heap, p.page));
    }

    pub(super) fn most(&self) -> u64 {
        let largest = |pieces: &[Piece]| pieces.iter().map(|p| p.size).max().unwrap_or(0);
        self.pages.iter().map(|p| p.size).sum::<u64>() + largest(&self.fronts) + largest(&self.backs)
    }

    pub(super) fn choose(&self, size: u64) -> Option<Vec<Piece>> {
        let whole: u64 = self.pages.iter().map(|page| page.size).sum();
        let last = |pieces: &[Piece]| pieces.len() - pieces.len().min(ENDS);
        let (backs, fronts) = (&self.backs[last(&self.backs)..], &self.fronts[last(&self.fronts)..]);
        let ends = best_ends(whole, backs, fronts, size)?;
        let mut choice = Choice::new(size, &ends);
        for page in &self.pages {
            choice.offer(*page);
        }
        choice.finish(&ends)
    }
}

impl<D: Device> Pool<D> {
    pub(super) fn pieces(&self, lane: LaneId, whose: Whose) -> Pieces {
        let own = self.lanes[lane];
        let mut found = Pieces::default();
        let mut pages = Vec::new();
        for (at, other) in self.lanes.iter() {
            let is_own = at == lane;
            let apart = own.pool.is_private() || other.pool.is_private() || !self.options.lending;
            if is_own != (whose == Whose::Own) || (!is_own && apart) {
                continue;
            }
            let done = if whose == Whose::Lent { self.fences.done(at) } else { Fence::LAST };
            let heap = at.large();
            let large = self.heap(heap);
            for block in large.blocks().filter(|b| b.state == State::Free && b.size >= FRAGMENT) {
                let end = block.addr + block.size;
                for (i, page) in large.pages().iter().enumerate() {
                    let page_end = page.addr + page.size;
                    if page.addr >= end || page_end <= block.addr || page.freed > done {
                        continue;
                    }
                    let page_id = PageId::new(i);
                    let piece = Piece::page(heap, page_id, page.size);
                    match (page.addr >= block.addr, page_end <= end) {
                        (true, true) => pages.push((block.size, piece)),
                        (true, false) => found.fronts.push(Piece { size: end - page.addr, ..piece }),
                        (false, true) => {
                            let from = block.addr - page.addr;
                            found.backs.push(Piece { from, size: page_end - block.addr, ..piece });
                        }
                        (false, false) => {}
                    }
                }
            }
        }
        pages.sort_by_key(|&(block, p)| (Reverse(p.size), block, p.heap, p.page));
        found.pages = pages.into_iter().map(|(_, piece)| piece).collect();
        found.add(Pieces::default());
        found
    }
}
