//! A private pool's live allocations, kept and brought back: what recordings of graphs that follow each other need.
//! Bringing back frees what is live in the pool and makes what was live then live again, at the same addresses;
//! contents are whatever the pages hold.

use super::{Place, Pool, PoolKey};
use crate::budget::Budget;
use crate::device::Device;
use crate::ids::{HeapId, LaneId};

/// One allocation as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    pub addr: u64,
    size: u64,
    requested: u64,
    lane: LaneId,
    heap: HeapId,
    budget: Option<&'static Budget>,
}

/// Why a state cannot be brought back. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The memory at this address was given back to the device.
    Gone { addr: u64 },
    /// What was freed at this address is still used by another stream.
    Pending { addr: u64 },
}

impl<D: Device> Pool<D> {
    /// What callers hold in a private pool, in order of address.
    pub fn save(&self, pool: PoolKey) -> Vec<Saved> {
        let mut saved: Vec<Saved> = Vec::new();
        for id in self.ids() {
            let a = self.allocation(id);
            // Windows are not made in private pools.
            if let Place::Home { heap, .. } = a.place
                && a.waits == 0
                && self.lanes[a.lane].pool == pool
            {
                let (addr, size, requested, lane, budget) = (a.addr, a.size, a.requested, a.lane, a.budget);
                saved.push(Saved { addr, size, requested, lane, heap, budget });
            }
        }
        saved.sort_unstable_by_key(|s| s.addr);
        saved
    }

    /// Frees what callers hold in a private pool, and makes what is in `saved` live again. The addresses that were
    /// freed.
    ///
    /// # Errors
    /// When that cannot be; nothing changed then.
    pub fn restore(&mut self, pool: PoolKey, saved: &[Saved]) -> Result<Vec<u64>, RestoreError> {
        if !self.is_quiet() {
            self.wait_for_pending();
        }
        let now = self.allocations_in(pool);
        let live = |a: &&super::AllocationView| a.is_live;
        for s in saved {
            let pages = self.heap(s.heap).pages();
            let first = pages.partition_point(|p| p.addr + p.size <= s.addr);
            let under = pages[first..].iter().take_while(|p| p.addr < s.addr + s.size && p.handle.is_some());
            let end = under.last().map_or(0, |page| page.addr + page.size);
            if self.lanes[s.lane].pool != pool || end < s.addr + s.size {
                return Err(RestoreError::Gone { addr: s.addr });
            }
        }
        if let Some(waiting) = now.iter().find(|a| !a.is_live) {
            return Err(RestoreError::Pending { addr: waiting.addr });
        }
        let freed: Vec<u64> = now.iter().filter(live).map(|a| a.addr).collect();
        for &addr in &freed {
            // Other streams' work with it is in the graphs that were recorded: there is nothing to wait for.
            let Some(id) = self.find(addr) else { continue };
            self.allocation_mut(id).uses.clear();
            self.count_free(id);
            self.uncharge(id);
            self.complete(id);
        }
        let mut around: Option<(HeapId, Vec<u32>)> = None;
        let mut in_order = saved.to_vec();
        in_order.sort_unstable_by_key(|s| (s.heap, s.addr));
        for s in in_order {
            if around.as_ref().is_none_or(|(of, _)| *of != s.heap) {
                around = Some((s.heap, self.heap(s.heap).free_blocks(0)));
            }
            let blocks = around.as_ref().map_or(&[][..], |(_, blocks)| blocks);
            let Some(block) = self.heap_mut(s.heap).carve(blocks, s.addr, s.size) else {
                return Err(RestoreError::Gone { addr: s.addr });
            };
            self.hand_out(s.lane, s.requested, s.size, Place::Home { heap: s.heap, block }, false, s.budget);
        }
        Ok(freed)
    }
}
