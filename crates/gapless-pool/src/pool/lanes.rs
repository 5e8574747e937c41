//! Lanes: one for each stream of each pool, with addresses of its own for as long as it has memory.

use super::{Lane, Pool, PoolKey};
use crate::device::{Device, DeviceError, StreamHandle};
use crate::heap::GRANULE;
use crate::mutants::{self, Mutant};
use crate::shard::{Ranges, Shard};

/// Lanes whose addresses are plentiful, and lanes with enough for the whole card: there are 128 TiB of addresses,
/// and cards of 288 GiB.
const PLENTY: usize = 32;
const ENOUGH: usize = 128;
/// From so many lanes on, those of streams that hold nothing are used for new ones.
const MANY: usize = 64;
/// The least that a lane's heap has.
const LEAST: u64 = 1 << 30;

impl<D: Device> Pool<D> {
    /// The lane of a stream in a pool, made on first use.
    pub(super) fn lane(&mut self, stream: StreamHandle, pool: PoolKey) -> Result<u32, DeviceError> {
        if let Some(at) = self.lanes.iter().position(|l| l.stream == stream && l.pool == pool) {
            return Ok(at as u32);
        }
        if let Some(at) = self.abandoned_lane() {
            self.lanes[at as usize].stream = stream;
            self.lanes[at as usize].pool = pool;
            self.shards[at as usize].stream = stream;
            self.shards[at as usize].pool = pool;
            self.shards[at as usize].tally.reset();
            self.set_steps(at as usize);
            return Ok(at);
        }
        let (addr, ranges) = self.reserve_ranges()?;
        let at = self.lanes.len() as u32;
        let mut shard = Shard::new(at, stream, pool, addr, ranges);
        for heap in &mut shard.heaps {
            heap.set_fence(self.fences.open());
        }
        self.shards.push(Box::new(shard));
        self.lanes.push(Lane { stream, pool, small: 2 * at, large: 2 * at + 1 });
        self.set_steps(at as usize);
        Ok(at)
    }

    /// The memory of the card. It is asked for once: drivers take their time to answer.
    pub(super) fn card(&mut self) -> u64 {
        if self.card == 0 {
            self.card = self.device.memory().1;
        }
        self.card
    }

    /// Addresses for a lane: fewer where there are many lanes, or where the program has taken most of them.
    fn reserve_ranges(&mut self) -> Result<(u64, Ranges), DeviceError> {
        let total = self.card().max(LEAST).div_ceil(LEAST) * LEAST;
        let part = |of: u64, part: u64| (of / part).div_ceil(GRANULE) * GRANULE;
        let mut ranges = match self.lanes.len() {
            ..PLENTY => Ranges { small: total, large: 2 * total },
            PLENTY..ENOUGH => Ranges { small: part(total, 4), large: total },
            _ => Ranges { small: part(total, 16), large: part(total, 4) },
        };
        loop {
            ranges = Ranges { small: ranges.small.max(LEAST), large: ranges.large.max(LEAST) };
            match self.device.reserve(ranges.small + ranges.large) {
                Ok(addr) => return Ok((addr, ranges)),
                Err(error) if ranges.small + ranges.large == 2 * LEAST => return Err(error),
                Err(_) => ranges = Ranges { small: part(ranges.small, 2), large: part(ranges.large, 2) },
            }
        }
    }

    /// A lane with nothing left in it: its addresses can be used again. A released pool's is one as soon as it is
    /// empty; where there are many lanes, so is one of a stream that has nothing allocated, as most streams that are
    /// gone.
    fn abandoned_lane(&mut self) -> Option<u32> {
        let empty = |pool: &Self, at: usize| {
            let shard = &pool.shards[at];
            shard.allocations.is_empty()
                && !pool.supplied.holds_of(shard.pool)
                && shard.heaps.iter().all(|heap| heap.pages().iter().all(crate::heap::Page::is_hole))
        };
        if !self.released.is_empty() {
            let lanes = self.lanes.iter().enumerate();
            let mut released = lanes.filter(|(_, lane)| self.released.contains(&lane.pool));
            if let Some((at, _)) = released.find(|&(at, _)| empty(self, at)) {
                return Some(at as u32);
            }
        }
        if self.lanes.len() < MANY || mutants::is(Mutant::AddressesLeak) {
            return None;
        }
        self.tend_fences();
        let unused = (0..self.lanes.len()).find(|&at| self.is_unused(at as u32))?;
        self.drop_idle_windows_of(unused as u32);
        for heap in [2 * unused, 2 * unused + 1] {
            self.give_back_pages(heap, u64::MAX);
        }
        empty(self, unused).then_some(unused as u32)
    }

    /// Whether a stream's lane of the default pool has nothing allocated, and no work uses its memory.
    fn is_unused(&self, lane: u32) -> bool {
        let shard = &self.shards[lane as usize];
        let done = self.fences.done();
        let settled = |page: &crate::heap::Page| {
            (page.handle.is_none() && !page.is_asleep)
                || (page.is_free() && page.windows == 0 && page.freed <= done)
        };
        !shard.pool.is_private()
            && shard.allocations.is_empty()
            && shard.heaps.iter().all(|heap| heap.pages().iter().all(settled))
            && self.ids().all(|id| self.allocation(id).lane != lane)
    }
}
