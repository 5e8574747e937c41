//! Our own allocator on a simulated card: the very code that runs live, served by a script.

use crate::allocator::{Allocator, Inventory, Lane, LaneIndex, Oom, Slot, Stats};
use crate::planner::AtOnce;
use gapless_pool::blocks::State;
use gapless_pool::{AllocError, Device, Options, Pool, PoolKey, SimDevice, StreamHandle};
use gapless_trace::{Bytes, DeviceAddr, PoolId};
use std::collections::BTreeSet;

/// The allocator, with the addresses of a script's slots.
#[derive(Debug)]
pub struct Gapless {
    pool: Pool<SimDevice>,
    lanes: Vec<Lane>,
    /// Address of each slot; 0 for none.
    slots: Vec<u64>,
    /// Slots that were given back and are not free yet.
    pending: Vec<Slot>,
    stats: Stats,
}

impl Gapless {
    #[must_use]
    pub fn new(capacity: u64, options: Options, lanes: &[Lane]) -> Gapless {
        let pool = Pool::new(SimDevice::new(capacity), options);
        Gapless {
            pool,
            lanes: lanes.to_vec(),
            slots: Vec::new(),
            pending: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// The same with plans for steps that repeat.
    #[must_use]
    pub fn planned(capacity: u64, options: Options, lanes: &[Lane]) -> Gapless {
        let mut gapless = Gapless::new(capacity, options, lanes);
        gapless.pool.set_planner(Some(Box::new(AtOnce)));
        gapless
    }

    /// The pool itself.
    #[must_use]
    pub fn pool(&self) -> &Pool<SimDevice> {
        &self.pool
    }

    fn count(&mut self) {
        let from = *self.pool.stats();
        if from.waits != self.stats.syncs {
            // A wait for streams freed pending slots, or part of them: other allocations may have their addresses by
            // now.
            let (pool, slots) = (&self.pool, &mut self.slots);
            self.pending.retain(|&slot| {
                let waits = pool.is_later(slots[slot as usize]);
                if !waits {
                    slots[slot as usize] = 0;
                }
                waits
            });
        }
        let device = self.pool.device();
        let to = &mut self.stats;
        to.allocations = from.allocations;
        to.allocated = from.allocated;
        to.requested = from.requested;
        // Memory that returned to the stream that lent it is free, as in the statistics of a live run.
        let shown = self.pool.stats_shown();
        to.active_blocks = shown.active_blocks;
        to.active = shown.active;
        to.reserved = from.reserved;
        to.device_allocs = from.device_allocs + from.windows_made;
        to.device_frees = from.device_frees;
        to.retries = from.retries;
        to.ooms = from.ooms;
        to.syncs = from.waits;
        to.driver_ns = device.driver_ns;
    }
}

impl Allocator for Gapless {
    fn alloc(&mut self, slot: Slot, size: Bytes, lane: LaneIndex) -> Result<DeviceAddr, Oom> {
        let Lane { stream, pool } = self.lanes[lane as usize];
        let served = self.pool.alloc(size.0, StreamHandle(stream.0), PoolKey(pool.0, pool.1));
        self.count();
        match served {
            Ok(addr) => {
                debug_assert!(!self.pending.contains(&slot));
                if self.slots.len() <= slot as usize {
                    self.slots.resize(slot as usize + 1, 0);
                }
                self.slots[slot as usize] = addr;
                Ok(DeviceAddr(addr))
            }
            Err(AllocError::OutOfMemory { .. }) => {
                let free = self.pool.device_mut().memory().0;
                Err(Oom { requested: size, asked: size, free: Bytes(free) })
            }
        }
    }

    fn free_requested(&mut self, slot: Slot) {
        let addr = self.slots.get(slot as usize).copied().unwrap_or_default();
        if !self.pending.contains(&slot) && self.pool.free_later(addr).is_ok() {
            self.pending.push(slot);
        }
        self.count();
    }

    fn free_completed(&mut self, slot: Slot) {
        if let Some(at) = self.pending.iter().position(|s| *s == slot) {
            self.pending.swap_remove(at);
            let addr = std::mem::take(&mut self.slots[slot as usize]);
            self.pool.free_now(addr);
            self.count();
        }
    }

    fn free(&mut self, slot: Slot) {
        let addr = self.slots.get_mut(slot as usize).map(std::mem::take).unwrap_or_default();
        let _ = self.pool.free(addr);
        // A trace has the time at which memory was free, so the simulated card's work is done at once.
        if self.pool.is_waiting_for_work() {
            self.pool.poll();
        }
        self.count();
    }

    fn empty_cache(&mut self, pool: Option<PoolId>) {
        // One pool's memory alone does not justify a wait for all streams.
        if pool.is_none() {
            self.pool.trim();
            self.count();
        }
    }

    fn release_pool(&mut self, pool: PoolId) {
        self.pool.release_pool(PoolKey(pool.0, pool.1));
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn inventory(&self) -> Inventory {
        let mut by_addr: Vec<(u64, Slot)> = self
            .slots
            .iter()
            .zip(0..)
            .filter(|(addr, _)| **addr != 0)
            .map(|(&addr, slot)| (addr, slot))
            .collect();
        by_addr.sort_unstable();
        let slot_of =
            |addr: u64| by_addr.binary_search_by_key(&addr, |b| b.0).map_or(Slot::MAX, |at| by_addr[at].1);
        let returning: BTreeSet<u64> = self.pool.returning_at().collect();
        let mut blocks: Vec<(Slot, DeviceAddr, Bytes)> = self
            .pool
            .allocations()
            .filter(|(addr, ..)| !returning.contains(addr))
            .map(|(addr, size, _)| (slot_of(addr), DeviceAddr(addr), Bytes(size)))
            .collect();
        blocks.sort_unstable_by_key(|b| b.1);
        let active = blocks.iter().map(|b| b.2).sum();
        let mut inventory = Inventory { blocks, active, ..Inventory::default() };
        for heap in self.pool.heaps() {
            for page in heap.pages().iter().filter(|p| p.handle.is_some()) {
                inventory.segments += 1;
                inventory.reserved += Bytes(page.size);
                inventory.spans.push((DeviceAddr(page.addr), Bytes(page.size)));
                if page.busy == 0 {
                    continue;
                }
                // Free bytes of a page that also holds live ones.
                inventory.stranded += Bytes(page.size);
            }
            for block in heap.blocks() {
                match block.state {
                    State::Free => {
                        inventory.holes += 1;
                        inventory.largest_hole = inventory.largest_hole.max(Bytes(block.size));
                    }
                    State::Live | State::Hole | State::Asleep | State::Closed => {}
                }
            }
        }
        inventory.spans.sort_unstable_by_key(|span| span.0);
        inventory.stranded = inventory.stranded.saturating_sub(inventory.active);
        inventory
    }
}
