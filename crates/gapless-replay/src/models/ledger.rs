//! State that the models share: the block of each slot, and the sums.
//!
//! A slot is free, held by its caller, or pending (freed while a stream may still use it). A free of a slot that is not
//! held is ignored: the request that would have filled it failed.

use crate::allocator::{LaneIndex, Oom, Slot, Stats};
use gapless_trace::{Bytes, DeviceAddr};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Live,
    Pending,
}

/// A block that cannot be used again yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) addr: u64,
    pub(super) size: u64,
    requested: u64,
    /// The handle by which the model finds the block again.
    pub(super) handle: u32,
    pub(super) lane: LaneIndex,
    state: State,
}

/// The blocks by slot, and the statistics.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    slots: Vec<Held>,
    pub(super) stats: Stats,
}

impl Ledger {
    /// `slot` now holds `size` bytes at `addr`.
    #[inline]
    pub(super) fn hold(
        &mut self,
        slot: Slot,
        requested: Bytes,
        lane: LaneIndex,
        (addr, size, handle): (u64, u64, u32),
    ) -> DeviceAddr {
        let at = slot as usize;
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Held::default());
        }
        debug_assert_eq!(self.slots[at].state, State::Free, "slot {slot} is held already");
        self.slots[at] = Held { addr, size, requested: requested.0, handle, lane, state: State::Live };
        let stats = &mut self.stats;
        stats.allocations.add(1);
        stats.allocated.add(size);
        stats.requested.add(requested.0);
        stats.active_blocks.add(1);
        stats.active.add(size);
        DeviceAddr(addr)
    }

    #[inline]
    pub(super) fn free_requested(&mut self, slot: Slot) {
        let Some(held) = self.slots.get_mut(slot as usize).filter(|held| held.state == State::Live) else {
            return;
        };
        held.state = State::Pending;
        self.stats.allocations.sub(1);
        self.stats.allocated.sub(held.size);
    }

    /// The block that can be used again from now on.
    #[inline]
    pub(super) fn free_completed(&mut self, slot: Slot) -> Option<Held> {
        let held = self.slots.get_mut(slot as usize).filter(|held| held.state == State::Pending)?;
        held.state = State::Free;
        self.stats.active_blocks.sub(1);
        self.stats.active.sub(held.size);
        self.stats.requested.sub(held.requested);
        Some(*held)
    }

    /// Counts a request that failed.
    #[cold]
    pub(super) fn oom(&mut self, requested: Bytes, asked: u64, free: u64) -> Oom {
        self.stats.ooms += 1;
        Oom { requested, asked: Bytes(asked), free: Bytes(free) }
    }

    /// The blocks that are held, by address.
    pub(super) fn blocks(&self) -> Vec<(Slot, DeviceAddr, Bytes)> {
        let held = self.slots.iter().enumerate().filter(|(_, held)| held.state != State::Free);
        let mut blocks: Vec<_> =
            held.map(|(slot, held)| (slot as Slot, DeviceAddr(held.addr), Bytes(held.size))).collect();
        blocks.sort_unstable_by_key(|block| block.1);
        blocks
    }
}

/// `size` in whole units, at least one. Saturates: a size that cannot be rounded cannot be served either.
#[inline]
pub(super) fn round_up(size: u64, unit: u64) -> u64 {
    size.max(1).div_ceil(unit).saturating_mul(unit)
}
