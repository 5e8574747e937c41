//! The way of a free: a block that the caller gave back, its streams' end, and the neighbours that it joins.

use super::blocks::{Block, NONE, State};
use super::{NoteKind, Torch};
use crate::allocator::Slot;
use crate::device::Device;

impl<D: Device> Torch<D> {
    /// Joins `from`, a neighbour of `into`, with it if both are free or both unmapped; `into` keeps its identity.
    /// Returns the bytes that were joined.
    #[inline]
    pub(super) fn merge(&mut self, into: u32, from: u32) -> u64 {
        if from == NONE {
            return 0;
        }
        let source = self.blocks[from];
        let mapped = self.blocks[into].state != State::Unmapped;
        match source.state {
            State::Free if mapped => self.take(from),
            State::Unmapped if !mapped => self.take_unmapped(from),
            _ => return 0,
        }
        if self.blocks[into].prev == from {
            self.blocks[into].addr = source.addr;
            self.blocks[into].prev = source.prev;
            if source.prev != NONE {
                self.blocks[source.prev].next = into;
            }
        } else {
            self.blocks[into].next = source.next;
            if source.next != NONE {
                self.blocks[source.next].prev = into;
            }
        }
        self.blocks[into].size += source.size;
        self.blocks.discard(from);
        source.size
    }

    #[inline]
    pub(super) fn caller_gave_back(&mut self, id: u32) {
        let size = self.blocks[id].size;
        self.stats.allocations.sub(1);
        self.stats.allocated.sub(size);
        if size >= self.settings.max_split() {
            self.stats.oversize_allocations.sub(1);
        }
    }

    /// The block can be used again.
    #[inline]
    pub(super) fn complete(&mut self, id: u32) {
        let Block { addr, size, requested, prev, next, slot, expandable, shelf, .. } = self.blocks[id];
        if self.notes.is_some() {
            self.note(NoteKind::FreeCompleted, addr, requested, shelf);
        }
        if slot != NONE {
            self.slots[slot as usize] = NONE;
        }
        self.blocks[id].slot = NONE;
        // Any state but unmapped, so that it joins with mapped neighbours.
        self.blocks[id].state = State::Free;
        for neighbour in [prev, next] {
            let joined = self.merge(id, neighbour);
            if joined > 0 && !expandable {
                self.stats.inactive_split_blocks.sub(1);
                self.stats.inactive_split.sub(joined);
            }
        }
        self.put(id);
        let block = &self.blocks[id];
        if block.is_split() && !expandable {
            self.stats.inactive_split_blocks.add(1);
            self.stats.inactive_split.add(block.size);
        }
        self.stats.active_blocks.sub(1);
        self.stats.active.sub(size);
        self.stats.requested.sub(requested);
    }

    /// Waits for the streams that use pending blocks, of all pools or of one: the blocks become free.
    pub(super) fn synchronize(&mut self, pool: Option<u16>) {
        self.stats.syncs += 1;
        for slot in std::mem::take(&mut self.pending) {
            if let Some(id) = self.pending_block(slot) {
                let of = self.shelves[self.blocks[id].shelf as usize].pool;
                if pool.is_none_or(|pool| pool == of) {
                    self.complete(id);
                } else {
                    self.pending.push(slot);
                }
            }
        }
    }

    pub(super) fn pending_block(&self, slot: Slot) -> Option<u32> {
        let id = *self.slots.get(slot as usize)?;
        (id != NONE && self.blocks[id].state == State::Pending).then_some(id)
    }

    pub(super) fn live_block(&self, slot: Slot) -> Option<u32> {
        let id = *self.slots.get(slot as usize)?;
        (id != NONE && self.blocks[id].state == State::Live).then_some(id)
    }
}
