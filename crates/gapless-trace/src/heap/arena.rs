//! Blocks and their places: stored in one vector, linked by address within their run, found by address.
//!
//! Invariants: block.addr + block.size == next.addr within a run; `at[block.addr]` is the block;
//! `tails[end of a mapped run]` is its last block. Look-up by start address is one hash probe; address order over all
//! blocks is built only when something asks for the block *around* an address, and kept from then on.

use super::places::Places;
use crate::trace::BlockState;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// A range of addresses, in use or free. 40 bytes: a cache line holds most of two neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapBlock {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Index of the data that all blocks of its run share.
    pub(super) run: u32,
    /// The allocation that holds it; meaningless when free.
    pub(super) allocation: u32,
    pub(super) state: BlockState,
    /// True if its run can grow: only such runs have their last block looked up.
    pub(super) expandable: bool,
}

impl HeapBlock {
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.addr + self.size
    }
}

#[derive(Debug, Default)]
pub(super) struct Arena {
    blocks: Vec<HeapBlock>,
    spare: Vec<u32>,
    at: Places,
    order: Option<BTreeMap<u64, u32>>,
    tails: FxHashMap<u64, u32>,
}

impl std::ops::Index<u32> for Arena {
    type Output = HeapBlock;
    #[inline]
    fn index(&self, id: u32) -> &HeapBlock {
        &self.blocks[id as usize]
    }
}

impl std::ops::IndexMut<u32> for Arena {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut HeapBlock {
        &mut self.blocks[id as usize]
    }
}

impl Arena {
    /// The block that begins at `addr`.
    #[inline]
    pub(super) fn starting_at(&self, addr: u64) -> Option<u32> {
        self.at.get(addr)
    }

    /// The last block of the mapped run that ends at `addr`.
    pub(super) fn tail(&self, addr: u64) -> u32 {
        self.tails.get(&addr).copied().unwrap_or(NONE)
    }

    /// The block, free or not, that holds `addr`.
    pub(super) fn containing(&mut self, addr: u64) -> Option<u32> {
        if let Some(id) = self.starting_at(addr) {
            return Some(id);
        }
        let (_, &id) = self.ordered().range(..=addr).next_back()?;
        (addr < self[id].end()).then_some(id)
    }

    /// A block that shares an address with `[start, end)`.
    pub(super) fn touching(&mut self, start: u64, end: u64) -> Option<u32> {
        let (_, &id) = self.ordered().range(..end).next_back()?;
        (start < self[id].end()).then_some(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeapBlock> {
        self.at.iter().map(|(_, id)| &self[id])
    }

    /// Adds a free block between `prev` and `next`.
    pub(super) fn add(
        &mut self,
        addr: u64,
        size: u64,
        run: u32,
        expandable: bool,
        prev: u32,
        next: u32,
    ) -> u32 {
        let state = BlockState::Free;
        let block = HeapBlock { addr, size, prev, next, run, allocation: NONE, state, expandable };
        let id = match self.spare.pop() {
            Some(id) => {
                self[id] = block;
                id
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        };
        if prev != NONE {
            self[prev].next = id;
        }
        if next != NONE {
            self[next].prev = id;
        } else if expandable {
            self.tails.insert(addr + size, id);
        }
        self.at.insert(addr, id);
        if let Some(order) = &mut self.order {
            order.insert(addr, id);
        }
        id
    }

    /// Forgets a block; the caller takes care of its neighbours.
    pub(super) fn remove(&mut self, id: u32) {
        let addr = self[id].addr;
        self.at.remove(addr);
        if let Some(order) = &mut self.order {
            order.remove(&addr);
        }
        self.spare.push(id);
    }

    /// Cuts a block: the front keeps its identity and `size` bytes, a new free block, returned, takes the rest.
    #[inline]
    pub(super) fn split(&mut self, id: u32, size: u64) -> u32 {
        let block = self[id];
        self[id].size = size;
        self.add(block.addr + size, block.size - size, block.run, block.expandable, id, block.next)
    }

    /// Joins a block with its free neighbours, the one before first; returns the joined block.
    #[inline]
    pub(super) fn merge(&mut self, id: u32) -> u32 {
        let mut id = id;
        let prev = self[id].prev;
        if prev != NONE && self[prev].state == BlockState::Free {
            self.absorb_next(prev);
            id = prev;
        }
        let next = self[id].next;
        if next != NONE && self[next].state == BlockState::Free {
            self.absorb_next(id);
        }
        id
    }

    /// Ends a run at `addr`: `last` becomes its last block.
    pub(super) fn cut_after(&mut self, last: u32) {
        let end = self[last].end();
        self[last].next = NONE;
        self.tails.insert(end, last);
    }

    /// Cuts a free block so that one begins at `addr` with `size` bytes; `None` if that is not free.
    pub(super) fn carve(&mut self, addr: u64, size: u64) -> Option<u32> {
        let mut id = self.containing(addr)?;
        let block = self[id];
        if block.state != BlockState::Free || size == 0 || addr.checked_add(size)? > block.end() {
            return None;
        }
        if addr > block.addr {
            id = self.split(id, addr - block.addr);
        }
        if size < self[id].size {
            self.split(id, size);
        }
        Some(id)
    }

    #[inline]
    fn absorb_next(&mut self, id: u32) {
        let next = self[id].next;
        let eaten = self[next];
        self.remove(next);
        let block = &mut self[id];
        block.size += eaten.size;
        block.next = eaten.next;
        if eaten.next != NONE {
            self[eaten.next].prev = id;
        } else if eaten.expandable {
            self.tails.insert(eaten.end(), id);
        }
    }

    fn ordered(&mut self) -> &BTreeMap<u64, u32> {
        let at = &self.at;
        self.order.get_or_insert_with(|| at.iter().collect())
    }
}
