//! Private pools with an allocator of their own: their requests are served from memory that it supplied, and wholly
//! free segments go back to it ([`supplied`](crate::supplied)). Such a pool has no windows and no loans.

use super::view::block_view;
use super::{BlockState, BlockView, Budget, Change, Lane, Place, Pool, PoolKey, SegmentView};
use crate::device::{Device, DeviceError, Refusal, StreamHandle};
use crate::ids::{HeapId, LaneId};
use crate::shard::rounded;
use crate::supplied::{Owner, Returned};

impl<D: Device> Pool<D> {
    /// Sets an allocator of the program as the supplier of a private pool. With `is_whole` its blocks are never split.
    pub fn set_supplied(&mut self, pool: PoolKey, is_whole: bool) {
        self.supplied.set_pool(pool, is_whole);
    }

    pub fn is_supplied(&self, pool: PoolKey) -> bool {
        self.supplied.has(pool)
    }

    /// The size of the segment that a pool's supplier must give before a request can be served. `None` if the pool has
    /// no supplier, or a free block for the request.
    ///
    /// # Errors
    /// If the pool would exceed its limit with the segment.
    pub fn missing_segment(
        &mut self,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
    ) -> Result<Option<u64>, DeviceError> {
        if !self.supplied.has(pool) {
            return Ok(None);
        }
        // As in PyTorch, frees that other streams have finished with come first.
        if self.is_waiting_for_work() {
            self.poll();
        }
        let rounded = rounded(size);
        let Some(bytes) = self.supplied.missing(Owner::of(pool, stream, rounded), rounded) else {
            return Ok(None);
        };
        let held = self.stats.reserved.current + bytes;
        if self.options.limit.is_some_and(|limit| held > limit) {
            return Err(DeviceError::Refused(Refusal::Limit));
        }
        Ok(Some(bytes))
    }

    /// Adds a segment that a supplier gave for requests of `size` bytes on `stream`. False if it overlaps another
    /// segment and cannot be used.
    pub fn add_segment(
        &mut self,
        (addr, bytes): (u64, u64),
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
    ) -> bool {
        let owner = Owner::of(pool, stream, rounded(size));
        let is_added = self.supplied.add(owner, addr, bytes);
        if is_added {
            self.count_held(usize::from(owner.is_large), bytes);
            if self.log.is_some() {
                self.log(Change::Mapped { addr, size: bytes, stream, pool });
            }
        }
        is_added
    }

    /// True if [`Pool::trim`] would give a segment back to a supplier.
    pub fn has_idle_segments(&self) -> bool {
        self.supplied.idle(|pool| self.released.contains(&pool)).next().is_some()
    }

    /// Segments to give back to their suppliers, since the last call.
    pub fn take_returned(&mut self) -> Vec<Returned> {
        std::mem::take(&mut self.supplied.returned)
    }

    /// Forgets a pool's supplier if the pool is released and empty. Returns true if it did.
    pub fn end_supplied(&mut self, pool: PoolKey) -> bool {
        self.released.contains(&pool) && self.supplied.end(pool)
    }

    pub(super) fn serve_supplied(
        &mut self,
        lane: LaneId,
        size: u64,
        rounded: u64,
        budget: Option<&'static Budget>,
    ) -> Result<u64, DeviceError> {
        let Lane { stream, pool, .. } = self.lanes[lane];
        let owner = Owner::of(pool, stream, rounded);
        let Some((addr, taken)) = self.supplied.take(owner, rounded) else {
            return Err(DeviceError::OutOfMemory);
        };
        let place = Place::Supplied { addr, is_large: owner.is_large };
        Ok(self.hand_out(lane, size, taken, place, false, budget))
    }

    /// Takes wholly free segments out of the pools that these heaps belong to.
    pub(super) fn give_back_supplied(&mut self, heaps: &[HeapId]) {
        let pools: Vec<PoolKey> = heaps.iter().map(|&heap| self.lanes[heap.lane()].pool).collect();
        for (owner, Returned { pool, addr, size }) in self.supplied.give_back(|pool| pools.contains(&pool)) {
            self.count_let_go(usize::from(owner.is_large), size);
            if self.log.is_some() {
                self.log(Change::Unmapped { addr, size, stream: owner.stream, pool });
            }
        }
    }

    pub(super) fn supplied_segments(&self, found: &mut Vec<SegmentView>) {
        for (addr, segment) in self.supplied.segments() {
            let block = |(addr, size, is_free): (u64, u64, bool)| match self.elsewhere.find(addr) {
                Some(slot) if !is_free => block_view(&self.elsewhere[slot]),
                _ => BlockView { addr, size, requested: 0, state: BlockState::Free },
            };
            found.push(SegmentView {
                addr,
                size: segment.size,
                stream: segment.owner.stream,
                pool: segment.owner.pool,
                is_large: segment.owner.is_large,
                blocks: self.supplied.blocks_of(addr).map(block).collect(),
            });
        }
    }
}
