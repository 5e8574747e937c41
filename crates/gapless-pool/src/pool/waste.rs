//! Held memory that is not allocated, lane by lane: for tests and benchmarks that explain failures and waste.

use super::{Pool, PoolKey};
use crate::blocks::State;
use crate::device::{Device, StreamHandle};
use crate::heap::GRANULE;
use crate::ids::HeapId;

/// A heap: the bytes that it holds, and those of them that are not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapWaste {
    pub stream: StreamHandle,
    pub pool: PoolKey,
    pub is_small: bool,
    pub held: u64,
    /// Free bytes in wholly free pages; those behind fences that are not done; those that windows have mapped.
    pub whole: u64,
    pub unsettled: u64,
    pub in_windows: u64,
    /// Free bytes in pages that live blocks use: in pages of 2 MiB, and in larger ones.
    pub in_fine: u64,
    pub in_coarse: u64,
}

/// Held memory that callers do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waste {
    pub held: u64,
    pub active: u64,
    /// Active but freed: it waits for streams or fences.
    pub pending: u64,
    /// Pages that go back to the device behind a fence.
    pub leaving: u64,
    /// Heaps that hold memory.
    pub heaps: Vec<HeapWaste>,
}

impl<D: Device> Pool<D> {
    /// Held memory that is not allocated.
    #[must_use]
    pub fn waste(&self) -> Waste {
        let heaps = self.lanes.heap_ids().map(|heap| self.heap_waste(heap));
        Waste {
            held: self.stats.reserved.current,
            active: self.stats.active.current,
            pending: self.stats.active.current - self.stats.allocated.current,
            leaving: self.leaving.bytes,
            heaps: heaps.filter(|heap| heap.held > 0).collect(),
        }
    }

    fn heap_waste(&self, at: HeapId) -> HeapWaste {
        let lane = self.lanes[at.lane()];
        let heap = self.heap(at);
        let mut waste = HeapWaste {
            stream: lane.stream,
            pool: lane.pool,
            is_small: at.is_small(),
            held: 0,
            whole: 0,
            unsettled: 0,
            in_windows: 0,
            in_fine: 0,
            in_coarse: 0,
        };
        let mut free: Vec<u64> = vec![0; heap.pages().len()];
        let mut page = 0;
        for block in heap.blocks().filter(|block| block.state == State::Free) {
            page += heap.pages()[page..].partition_point(|p| p.addr + p.size <= block.addr);
            let end = block.addr + block.size;
            for (p, bytes) in heap.pages().iter().zip(&mut free).skip(page).take_while(|(p, _)| p.addr < end)
            {
                *bytes += end.min(p.addr + p.size) - block.addr.max(p.addr);
            }
        }
        for (page, bytes) in heap.pages().iter().zip(free).filter(|(page, _)| page.handle.is_some()) {
            waste.held += page.size;
            if page.is_free() {
                waste.whole += page.size;
                waste.unsettled += if self.fences.is_done(at.lane(), page.freed) { 0 } else { page.size };
                waste.in_windows += if page.windows > 0 { page.size } else { 0 };
            } else if page.size == GRANULE {
                waste.in_fine += bytes;
            } else {
                waste.in_coarse += bytes;
            }
        }
        waste
    }
}

impl std::fmt::Display for Waste {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "held {:.1} MiB, active {:.1}, of it pending {:.1}; leaving {:.1}",
            mib(self.held),
            mib(self.active),
            mib(self.pending),
            mib(self.leaving)
        )?;
        writeln!(
            f,
            "{:>10} {:>8} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "stream", "pool", "class", "held", "whole", "unsettled", "windows", "in fine", "in coarse"
        )?;
        for h in &self.heaps {
            let pool = if h.pool.is_private() { "private" } else { "default" };
            let class = if h.is_small { "small" } else { "large" };
            write!(f, "{:>10x} {pool:>8} {class:>5}", h.stream.0)?;
            for bytes in [h.held, h.whole, h.unsettled, h.in_windows, h.in_fine, h.in_coarse] {
                write!(f, " {:>9.2}", mib(bytes))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
