//! Segments cut into chunks: a list in address order that is split and merged in place, so that a block's neighbours
//! are one step away. The model gives a chunk's state its meaning.

/// No chunk.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) addr: u64,
    pub(super) size: u64,
    /// Neighbours by address in the same segment.
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) state: u32,
    /// The group of the chunk, if a model divides segments further. Inherited by both parts of a split.
    pub(super) group: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Chunks {
    all: Vec<Chunk>,
    unused: Vec<u32>,
}

impl Chunks {
    fn store(&mut self, chunk: Chunk) -> u32 {
        if let Some(handle) = self.unused.pop() {
            self.all[handle as usize] = chunk;
            return handle;
        }
        self.all.push(chunk);
        (self.all.len() - 1) as u32
    }

    /// A segment's one chunk.
    pub(super) fn segment(&mut self, addr: u64, size: u64, state: u32) -> u32 {
        self.store(Chunk { addr, size, prev: NONE, next: NONE, state, group: 0 })
    }

    pub(super) fn forget(&mut self, handle: u32) {
        self.unused.push(handle);
    }

    #[inline]
    pub(super) fn get(&self, handle: u32) -> &Chunk {
        &self.all[handle as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, handle: u32) -> &mut Chunk {
        &mut self.all[handle as usize]
    }

    /// Leaves `size` bytes in `handle` and gives the rest, right behind it, a chunk of its own.
    #[inline]
    pub(super) fn split(&mut self, handle: u32, size: u64) -> u32 {
        let whole = *self.get(handle);
        debug_assert!(size < whole.size);
        let tail =
            self.store(Chunk { addr: whole.addr + size, size: whole.size - size, prev: handle, ..whole });
        if whole.next != NONE {
            self.get_mut(whole.next).prev = tail;
        }
        let head = self.get_mut(handle);
        head.size = size;
        head.next = tail;
        tail
    }

    /// Merges the chunk behind `handle` into it.
    #[inline]
    pub(super) fn absorb_next(&mut self, handle: u32) {
        let next = self.get(handle).next;
        let gone = *self.get(next);
        if gone.next != NONE {
            self.get_mut(gone.next).prev = handle;
        }
        let kept = self.get_mut(handle);
        kept.size += gone.size;
        kept.next = gone.next;
        self.forget(next);
    }
}
