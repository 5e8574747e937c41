//! A heap as PyTorch shows an allocator, in figures: the number of segments that its blocks make, and the free bytes
//! beside other blocks. [`Pool::segments`](crate::Pool::segments) computes the same from every block.
//!
//! A block's share depends only on itself and its two neighbours. So a request or a free changes the figures by what it
//! touches anyway: as long as blocks stay in their segment, only `split` changes.

use super::Heap;
use crate::blocks::{Block, NONE, Seen, State};

/// Invariants: `runs` counts the blocks that are joined to none before them, `bytes` is the sum of joined blocks;
/// `guests` and `guest_bytes` are of those that are alone; `split` and `split_bytes` of those that are shown as free
/// and joined to a neighbour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Picture {
    /// Segments of joined blocks, in the order of addresses.
    pub(crate) runs: u64,
    pub(crate) bytes: u64,
    /// Small blocks between large ones, which PyTorch's views show as segments of small requests.
    pub(crate) guests: u64,
    pub(crate) guest_bytes: u64,
    /// Free blocks in segments of several blocks.
    pub(crate) split: u64,
    pub(crate) split_bytes: u64,
}

impl Heap {
    pub(crate) fn picture(&self) -> Picture {
        self.picture
    }

    #[inline]
    fn is_joined(&self, block: u32) -> bool {
        block != NONE && matches!(self.blocks[block].seen, Seen::Joined | Seen::Returning)
    }

    /// True if a joined block has a neighbour in its segment.
    #[inline]
    fn is_beside(&self, block: u32) -> bool {
        let Block { prev, next, .. } = self.blocks[block];
        self.is_joined(prev) || self.is_joined(next)
    }

    /// Takes a free block out of the figures before it changes or ends.
    #[inline]
    pub(super) fn hide(&mut self, block: u32) {
        if self.is_beside(block) {
            self.picture.split -= 1;
            self.picture.split_bytes -= self.blocks[block].size;
        }
    }

    /// Counts a block that is free now.
    #[inline]
    pub(super) fn reveal(&mut self, block: u32) {
        if self.is_beside(block) {
            self.picture.split += 1;
            self.picture.split_bytes += self.blocks[block].size;
        }
        if self.is_large {
            self.spoil_free(block);
        }
    }

    /// Changes how a live block is shown.
    #[cold]
    pub(super) fn show(&mut self, block: u32, seen: Seen) {
        let Block { prev, next, .. } = self.blocks[block];
        let mut picture = self.picture;
        for each in [prev, block, next] {
            picture.take(self.part(each));
        }
        self.blocks[block].seen = seen;
        for each in [prev, block, next] {
            picture.add(self.part(each));
        }
        self.picture = picture;
    }

    /// Shows a lent block that its borrower freed as free, or as taken again.
    pub(crate) fn show_returning(&mut self, block: u32, is_returning: bool) {
        match (self.blocks[block].seen, is_returning) {
            (Seen::Joined, true) => self.show(block, Seen::Returning),
            (Seen::Returning, false) => self.show(block, Seen::Joined),
            _ => {}
        }
    }

    /// One block's share of the figures.
    fn part(&self, block: u32) -> Picture {
        let mut part = Picture::default();
        if block == NONE {
            return part;
        }
        let Block { size, prev, state, seen, .. } = self.blocks[block];
        if seen == Seen::Alone {
            (part.guests, part.guest_bytes) = (1, size);
        } else if self.is_joined(block) {
            (part.runs, part.bytes) = (u64::from(!self.is_joined(prev)), size);
            let is_free = state == State::Free || seen == Seen::Returning;
            if is_free && self.is_beside(block) {
                (part.split, part.split_bytes) = (1, size);
            }
        }
        part
    }

    /// The figures, computed from every block.
    pub(super) fn drawn(&self) -> Picture {
        let mut picture = Picture::default();
        let mut at = self.last;
        while at != NONE {
            picture.add(self.part(at));
            at = self.blocks[at].prev;
        }
        picture
    }
}

impl Picture {
    fn add(&mut self, part: Picture) {
        self.runs += part.runs;
        self.bytes += part.bytes;
        self.guests += part.guests;
        self.guest_bytes += part.guest_bytes;
        self.split += part.split;
        self.split_bytes += part.split_bytes;
    }

    fn take(&mut self, part: Picture) {
        self.runs -= part.runs;
        self.bytes -= part.bytes;
        self.guests -= part.guests;
        self.guest_bytes -= part.guest_bytes;
        self.split -= part.split;
        self.split_bytes -= part.split_bytes;
    }
}
