//! Every invariant of a heap, checked by looking at all of it: for tests.

use super::{Heap, Page};
use crate::blocks::State;
use crate::stretches::Stretches;

impl Heap {
    /// Checks the invariants, and describes the first that does not hold.
    ///
    /// # Errors
    /// If an invariant does not hold.
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
        if at != self.end {
            return Err("the pages do not end where the range does".into());
        }
        self.check_figures()?;
        self.check_stock()
    }

    /// Compares the figures that are kept with the blocks and pages.
    fn check_figures(&self) -> Result<(), String> {
        if self.picture() != self.drawn() {
            return Err(format!("{:?} are counted, {:?} are there", self.picture(), self.drawn()));
        }
        let of = |is_it: fn(&Page) -> bool| {
            self.pages.iter().filter(|page| is_it(page)).map(|page| page.size).sum::<u64>()
        };
        let there = [
            self.free.iter().map(|entry| entry.size).sum(),
            of(|page| page.handle.is_some()),
            of(Page::is_free),
        ];
        let counted = [self.free_bytes(), self.held(), self.whole()];
        if counted != there {
            return Err(format!("{counted:?} bytes are free, held and whole as counted, {there:?} are"));
        }
        let mut holes = Stretches::default();
        for page in self.pages.iter().filter(|page| page.is_hole()) {
            holes.add(page.addr, page.size);
        }
        if holes != self.holes {
            return Err(format!("the holes are {holes:?}, {:?} are known", self.holes));
        }
        Ok(())
    }
}
