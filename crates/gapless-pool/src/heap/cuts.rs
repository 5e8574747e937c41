//! Live blocks that are cut or joined, and blocks that windows show.

use super::{GRANULE_BITS, Heap, Page};
use crate::blocks::{Block, NONE, Seen};

impl Heap {
    /// [`Heap::take_at`] for an allocation that lies in a window.
    pub(crate) fn take_part(&mut self, addr: u64, size: u64) -> Option<u32> {
        let block = self.cut_out(addr, size)?;
        self.show(block, Seen::Away);
        Some(block)
    }

    /// Makes one live block of two neighbours.
    pub(crate) fn join_live(&mut self, first: u32, second: u32) -> u32 {
        for block in [first, second] {
            if self.blocks[block].seen != Seen::Joined {
                self.show(block, Seen::Joined);
            }
        }
        let addr = self.blocks[second].addr;
        if let Some(page) = self.page_around(addr) {
            page.busy -= 1;
        }
        self.join(first, second)
    }

    /// Cuts a live block into its first `size` bytes and the rest, which is [`NONE`] if nothing is left.
    pub(crate) fn cut_live(&mut self, block: u32, size: u64) -> (u32, u32) {
        if self.blocks[block].size == size {
            return (block, NONE);
        }
        if self.blocks[block].seen == Seen::Alone {
            self.show(block, Seen::Joined);
        }
        let front = self.blocks.cut_front(block, size);
        let Block { addr, state, seen, .. } = self.blocks[block];
        (self.blocks[front].state, self.blocks[front].seen) = (state, seen);
        self.tell_pages(front);
        if let Some(page) = self.page_around(addr) {
            page.busy += 1;
        }
        (front, block)
    }

    /// The page that contains `addr` behind its first byte.
    fn page_around(&mut self, addr: u64) -> Option<&mut Page> {
        let page = self.page_at[((addr - self.start) >> GRANULE_BITS) as usize];
        Some(&mut self.pages[page.index()]).filter(|page| page.addr < addr)
    }

    /// Shows a live block as lying here for a caller, and no longer in a window.
    pub(crate) fn show_home(&mut self, block: u32) {
        if self.blocks[block].seen == Seen::Away {
            self.show(block, Seen::Joined);
        }
        self.seat(block);
    }
}
