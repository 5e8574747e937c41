//! Blocks in an arena of their own, linked to their neighbours in address order.

use std::ops::{Index, IndexMut};

/// No block.
pub const NONE: u32 = u32::MAX;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is in its heap's set of free blocks.
    Free,
    /// It is part of an allocation.
    Live,
    /// Addresses without memory.
    Hole,
    /// It is part of an allocation that sleeps.
    Asleep,
    /// Free between sleeping blocks: it serves no request until they wake.
    Closed,
}

/// How a block is shown among those of its heap (`heap/picture.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// In one segment with its neighbours: free, or in a caller's hands.
    Joined,
    /// The same, and freed by the lane that borrowed it: shown as free.
    Returning,
    /// As a segment of its own, because it is a small block between large ones.
    Alone,
    /// Not at all, because it has no memory, it sleeps, or a window shows it.
    Away,
}

/// Invariants: neighbours touch (`addr + size == next.addr`) and point at each other; two free neighbours never stay
/// side by side.
///
/// `addr` and `size` lie apart, because compilers like to read two neighbouring words at once. Right after one of them
/// was written such a read stalls each time.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Block {
    pub addr: u64,
    pub prev: u32,
    pub next: u32,
    pub size: u64,
    pub state: State,
    pub(crate) seen: Seen,
    /// True if its heap's stock must list it anew.
    pub(crate) is_stale: bool,
}

/// Blocks by number.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    list: Vec<Block>,
    unused: Vec<u32>,
}

impl Blocks {
    /// Adds a block that is in no set and linked to none.
    #[inline]
    pub fn add(&mut self, addr: u64, size: u64) -> u32 {
        let (state, seen) = (State::Free, Seen::Joined);
        let mut block = Block { addr, size, prev: NONE, next: NONE, state, seen, is_stale: false };
        if let Some(id) = self.unused.pop() {
            block.is_stale = self[id].is_stale;
            self.list[id as usize] = block;
            return id;
        }
        self.list.push(block);
        (self.list.len() - 1) as u32
    }

    /// Removes a block to which no other block points.
    #[inline]
    pub fn discard(&mut self, id: u32) {
        self[id].state = State::Hole;
        self.unused.push(id);
    }

    /// Links `new` between `prev` and `next`, which were neighbours until now.
    #[inline]
    pub fn link(&mut self, prev: u32, new: u32, next: u32) {
        self[new].prev = prev;
        self[new].next = next;
        if prev != NONE {
            self[prev].next = new;
        }
        if next != NONE {
            self[next].prev = new;
        }
    }

    /// Cuts the first `size` bytes off: the front is a new block, the rest keeps its number.
    #[inline]
    pub fn cut_front(&mut self, rest: u32, size: u64) -> u32 {
        let whole = self[rest];
        debug_assert!(size > 0 && size < whole.size);
        let front = self.add(whole.addr, size);
        self[rest].addr += size;
        self[rest].size -= size;
        self.link(whole.prev, front, rest);
        front
    }

    /// Joins `second` into `first`, its neighbour before it.
    #[inline]
    pub fn join(&mut self, first: u32, second: u32) {
        let Block { size, next, .. } = self[second];
        debug_assert_eq!(self[first].next, second);
        self[first].size += size;
        self[first].next = next;
        if next != NONE {
            self[next].prev = first;
        }
        self.discard(second);
    }
}

impl Blocks {
    /// Joins `first` into `second`, its neighbour after it, which keeps its number.
    #[inline]
    pub fn join_back(&mut self, first: u32, second: u32) {
        let Block { addr, size, prev, .. } = self[first];
        debug_assert_eq!(self[first].next, second);
        self[second].addr = addr;
        self[second].size += size;
        self[second].prev = prev;
        if prev != NONE {
            self[prev].next = second;
        }
        self.discard(first);
    }

    /// Cuts the last bytes off, from `addr` on: they are a new block, the front keeps its number.
    #[inline]
    pub fn cut_back(&mut self, front: u32, addr: u64) -> u32 {
        let whole = self[front];
        debug_assert!(addr > whole.addr && addr < whole.addr + whole.size);
        let rest = self.add(addr, whole.addr + whole.size - addr);
        self[front].size = addr - whole.addr;
        self.link(front, rest, whole.next);
        rest
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
