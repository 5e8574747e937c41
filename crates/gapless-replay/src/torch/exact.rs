//! Requests that name their address (`allocateWithAddress`, 2.13 and later).
//!
//! Such a request takes a part of one free block and tries nothing else: no new segment, no collection, no limit of
//! splitting. The bytes before the address are taken too, as an allocation of their own, and given back at once; so
//! counts and peaks include them.

use super::blocks::NONE;
use super::{Shelf, Torch};
use crate::allocator::{LaneIndex, Slot};
use crate::device::Device;
use gapless_trace::{Bytes, DeviceAddr, torch_rules};

/// Addresses that may be named are multiples of it.
const ALIGNMENT: u64 = 512;

/// A request that was placed at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact {
    pub addr: DeviceAddr,
    /// The bytes in front of it that were taken and given back.
    pub before: Bytes,
}

impl<D: Device> Torch<D> {
    /// Serves `size` bytes on `lane` at `addr`; nothing if no free block of the lane holds all of it.
    pub fn alloc_at(&mut self, slot: Slot, size: Bytes, lane: LaneIndex, addr: DeviceAddr) -> Option<Exact> {
        if !addr.0.is_multiple_of(ALIGNMENT) {
            return None;
        }
        let rounded = torch_rules::round_size(size, &self.settings.base).0;
        let shelf = self.lanes[lane as usize][usize::from(torch_rules::is_small(size))];
        let mut id = self.free_block_with(shelf, addr.0, addr.0.checked_add(rounded)?)?;
        self.take(id);
        let before = addr.0 - self.blocks[id].addr;
        let mut front = NONE;
        if before > 0 {
            let rest = id;
            front = self.cut(rest, before, true);
            self.hand_out(front, NONE, before);
            self.take(rest);
            id = rest;
        }
        let placed = self.place(id, slot, size.0, rounded);
        if front != NONE {
            self.caller_gave_back(front);
            self.complete(front);
        }
        Some(Exact { addr: placed, before: Bytes(before) })
    }

    /// The bytes in front of a chosen address, as a recording has them: an allocation of its own, split off the rest of
    /// the block, with the chosen one to follow. `None` if no free block begins there and is longer.
    pub(crate) fn alloc_front_at(
        &mut self,
        slot: Slot,
        size: Bytes,
        lane: LaneIndex,
        addr: DeviceAddr,
    ) -> Option<DeviceAddr> {
        // The chosen request, which comes later, decides the half: the block is looked for in both.
        let halves = self.lanes[lane as usize];
        let end = addr.0.checked_add(size.0)?;
        let id = halves.into_iter().find_map(|shelf| self.free_block_with(shelf, addr.0, end))?;
        if self.blocks[id].addr != addr.0 || self.blocks[id].size == size.0 {
            return None;
        }
        self.take(id);
        let front = self.cut(id, size.0, true);
        Some(self.hand_out(front, slot, size.0))
    }

    /// The free block of `shelf` that holds the addresses from `from` to `to`.
    fn free_block_with(&self, shelf: u16, from: u64, to: u64) -> Option<u32> {
        let Shelf { free, .. } = &self.shelves[shelf as usize];
        free.iter_from(to - from).map(|entry| entry.block).find(|&id| {
            let block = &self.blocks[id];
            block.addr <= from && to <= block.addr + block.size
        })
    }
}
