//! Blocks in an arena, linked to their neighbours in address order.

use std::ops::{Index, IndexMut};

/// No block.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In its shelf's set of free blocks.
    Free,
    /// In a caller's hands.
    Live,
    /// Given back, used by another stream.
    Pending,
    /// Addresses without memory: in its shelf's unmapped ranges.
    Unmapped,
}

/// Invariants: neighbours touch (`addr + size == next.addr`) and point at each other; two free or two unmapped
/// neighbours never stay side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    /// When it was made, for the release that breaks ties by it.
    pub(super) order: u64,
    /// The order of its segment among all, for the releases that break ties by segment (see `Blocks::new_place`).
    pub(super) place: u64,
    /// The shelf's search count when it became free.
    pub(super) free_since: u64,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) slot: u32,
    pub(super) shelf: u16,
    pub(super) state: State,
    pub(super) expandable: bool,
}

impl Block {
    #[inline]
    pub(super) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    list: Vec<Block>,
    unused: Vec<u32>,
    made: u64,
    /// Units of 512 bytes in all segments and ranges until now.
    units: u64,
}

/// Addresses and sizes of blocks are multiples of it.
const UNIT: u64 = 512;

impl Blocks {
    /// A segment or range of its own: a block without an owner, in no set.
    pub(super) fn add_segment(&mut self, addr: u64, size: u64, shelf: u16, expandable: bool) -> u32 {
        let place = self.new_place(addr, size);
        self.add(addr, size, shelf, expandable, place)
    }

    /// A place behind all segments until now. Invariant: `place + addr / UNIT`, the units before the segment plus the
    /// offset in it, orders blocks by the age of their segment, then by address.
    fn new_place(&mut self, addr: u64, size: u64) -> u64 {
        let place = self.units.wrapping_sub(addr / UNIT);
        self.units += size.div_ceil(UNIT);
        place
    }

    /// The key that orders blocks of one size by segment and address.
    #[inline]
    pub(super) fn in_segments(&self, id: u32) -> u64 {
        let block = &self[id];
        block.place.wrapping_add(block.addr / UNIT)
    }

    /// A piece of the segment at `place`, without an owner and in no set.
    #[inline]
    pub(super) fn add(&mut self, addr: u64, size: u64, shelf: u16, expandable: bool, place: u64) -> u32 {
        self.made += 1;
        let block = Block {
            addr,
            size,
            requested: 0,
            order: self.made,
            place,
            free_since: 0,
            prev: NONE,
            next: NONE,
            slot: NONE,
            shelf,
            state: State::Free,
            expandable,
        };
        if let Some(id) = self.unused.pop() {
            self.list[id as usize] = block;
            id
        } else {
            self.list.push(block);
            (self.list.len() - 1) as u32
        }
    }

    /// Forgets a block that nothing points at any more.
    #[inline]
    pub(super) fn discard(&mut self, id: u32) {
        self.unused.push(id);
    }

    /// Links `new` in between `prev` and `next`, neighbours until now.
    #[inline]
    pub(super) fn link(&mut self, prev: u32, new: u32, next: u32) {
        self[new].prev = prev;
        self[new].next = next;
        if prev != NONE {
            self[prev].next = new;
        }
        if next != NONE {
            self[next].prev = new;
        }
    }

    /// Every block that is in use, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        let mut dead = vec![false; self.list.len()];
        for &id in &self.unused {
            dead[id as usize] = true;
        }
        self.list.iter().enumerate().filter(move |(i, _)| !dead[*i]).map(|(_, block)| block)
    }
}

impl Index<u32> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, id: u32) -> &Block {
        &self.list[id as usize]
    }
}

impl IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Block {
        &mut self.list[id as usize]
    }
}
