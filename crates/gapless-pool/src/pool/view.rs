//! The pool as a list of segments with their blocks, as PyTorch shows an allocator.
//!
//! A segment is a stretch of a heap with memory behind it. An allocation in a window is a segment of its own, at the
//! addresses that its caller knows, and the bytes at home that it stands for are left out there: they cut their heap
//! into several segments. So every physical byte is in one segment, the segments' sizes add up to what is reserved, and
//! the blocks' to what is allocated and active.

use super::{Allocation, Lane, Place, Pool, PoolKey, SMALL};
use crate::blocks::State;
use crate::device::{Device, StreamHandle};
use crate::heap::{GRANULE, Heap};
use crate::ids::HeapId;
use crate::shard::{Amount, Shard};
use crate::stats::Stats;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// A caller holds it.
    Allocated,
    /// Freed, and other streams may still use it.
    Pending,
    /// A stream that borrowed it has freed it, and its owner gets it back behind a fence. PyTorch's own allocator has
    /// no such wait, so its view of the pool shows the block as free.
    Returning,
    Free,
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    pub addr: u64,
    pub size: u64,
    /// The requested size; 0 if the block is free.
    pub requested: u64,
    pub state: BlockState,
}

/// One segment; its blocks fill it, in order of address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    pub addr: u64,
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    pub is_large: bool,
    pub blocks: Vec<BlockView>,
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationView {
    pub addr: u64,
    pub size: u64,
    pub requested: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// True if the caller still has it.
    pub is_live: bool,
}

/// All segments in figures, of small and of large requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    pub segments: [u64; 2],
    /// Free blocks in segments of several blocks, and their bytes.
    pub split: [u64; 2],
    pub split_bytes: [u64; 2],
}

/// The part of one pool that one stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// Blocks in callers' hands, and their bytes.
    pub blocks: u64,
    pub allocated: u64,
    /// Memory that was taken for this lane, even if another lane uses it now.
    pub reserved: u64,
}

impl<D: Device> Pool<D> {
    /// The part of each stream in each pool, in the order in which they were made.
    pub fn lanes(&self) -> Vec<LaneView> {
        let view = |shard: &Shard| {
            let &Shard { stream, pool, live, ref heaps, .. } = shard;
            let supplied = self.supplied.held_by(pool, Some(stream)).iter().sum::<u64>();
            LaneView {
                stream,
                pool,
                blocks: live.blocks,
                allocated: live.bytes,
                reserved: heaps.iter().map(Heap::held).sum::<u64>() + supplied,
            }
        };
        self.lanes.shards().map(view).collect()
    }

    /// All allocations that callers have, in no order.
    pub fn live(&self) -> impl Iterator<Item = AllocationView> + '_ {
        self.ids().map(|id| self.view_of(self.allocation(id))).filter(|a| a.is_live)
    }

    /// The allocation at `addr`, if it is not free yet.
    pub fn allocation_at(&self, addr: u64) -> Option<AllocationView> {
        self.find(addr).map(|id| self.view_of(self.allocation(id)))
    }

    /// True if a caller has the allocation at `addr`.
    pub fn is_live(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.allocation(id).is_live())
    }

    /// Notes that the caller keeps data about the allocation at `addr`. A later allocation at the same address has no
    /// note, so data of an allocation whose free the caller did not hear of is not taken for the new one's.
    pub fn note(&mut self, addr: u64) {
        if let Some(id) = self.find(addr) {
            self.allocation_mut(id).is_noted = true;
        }
    }

    /// True if the allocation at `addr` was noted.
    pub fn is_noted(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.allocation(id).is_noted)
    }

    /// True if the allocation at `addr` lies in a window.
    pub fn is_in_window(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| matches!(self.allocation(id).place, Place::Window { .. }))
    }

    /// Allocations of a pool that are not free yet, in order of address.
    pub fn allocations_in(&self, pool: PoolKey) -> Vec<AllocationView> {
        let all = self.ids().map(|id| self.view_of(self.allocation(id)));
        let mut found: Vec<AllocationView> = all.filter(|a| a.pool == pool).collect();
        found.sort_unstable_by_key(|a| a.addr);
        found
    }

    pub(super) fn view_of(&self, a: &Allocation) -> AllocationView {
        let Lane { stream, pool, .. } = self.lanes[a.lane];
        AllocationView {
            addr: a.addr,
            size: a.size,
            requested: a.requested,
            stream,
            pool,
            is_live: a.is_live(),
        }
    }

    /// Lent memory that its borrower freed: free for callers, and not yet for other lanes.
    fn returning(&self) -> impl Iterator<Item = &Allocation> + '_ {
        self.fences.waiting().map(|id| self.allocation(id)).filter(|a| a.is_lent_only)
    }

    /// The addresses of lent memory that its borrower freed, in no order: callers have freed it, yet
    /// [`Pool::allocations`] has it.
    pub fn returning_at(&self) -> impl Iterator<Item = u64> + '_ {
        self.returning().map(|a| a.addr)
    }

    /// The counters as PyTorch's own allocator has them: freed loans are not active. They agree with the segments.
    /// Peaks are those of [`Pool::stats`].
    pub fn stats_shown(&self) -> Stats {
        let mut stats = self.stats;
        for (class, Amount { blocks, bytes }) in stats.classes.iter_mut().zip(self.returning) {
            class.active_blocks.sub(blocks);
            class.active.sub(bytes);
            stats.active_blocks.sub(blocks);
            stats.active.sub(bytes);
        }
        stats
    }

    /// [`Pool::segments`] in figures, in a time that does not depend on the number of blocks.
    pub fn segment_counts(&self) -> SegmentCounts {
        let mut counts = SegmentCounts::default();
        for shard in self.lanes.shards() {
            for (class, (heap, in_windows)) in shard.heaps.iter().zip(shard.in_windows).enumerate() {
                let picture = heap.picture();
                counts.segments[class] += picture.runs + in_windows.blocks;
                counts.segments[0] += picture.guests;
                counts.split[class] += picture.split;
                counts.split_bytes[class] += picture.split_bytes;
            }
        }
        for (class, supplied) in self.supplied.counts().iter().enumerate() {
            counts.segments[class] += supplied.segments;
            counts.split[class] += supplied.split;
            counts.split_bytes[class] += supplied.split_bytes;
        }
        counts
    }

    /// The bytes of each private pool's segments, small and large.
    pub fn reserved_by_pool(&self) -> Vec<(PoolKey, [u64; 2])> {
        let mut found: Vec<(PoolKey, [u64; 2])> = Vec::new();
        for shard in self.lanes.shards().filter(|shard| shard.pool.is_private()) {
            let [small, large] = shard.heaps.each_ref().map(Heap::picture);
            let mut bytes = [small.bytes + large.guest_bytes, large.bytes];
            for (class, in_windows) in shard.in_windows.iter().enumerate() {
                bytes[class] += in_windows.bytes;
            }
            let at = found.iter().position(|(pool, _)| *pool == shard.pool).unwrap_or_else(|| {
                found.push((shard.pool, self.supplied.held_by(shard.pool, None)));
                found.len() - 1
            });
            for (sum, more) in found[at].1.iter_mut().zip(bytes) {
                *sum += more;
            }
        }
        found
    }

    /// Every segment, in order of address.
    pub fn segments(&self) -> Vec<SegmentView> {
        let mut found = Vec::new();
        for heap in self.lanes.heap_ids() {
            self.segments_of(heap, &mut found);
        }
        for id in self.ids() {
            let a = self.allocation(id);
            if matches!(a.place, Place::Window { .. }) {
                let Lane { stream, pool, .. } = self.lanes[a.lane];
                let blocks = vec![block_view(a)];
                found.push(SegmentView {
                    addr: a.addr,
                    size: a.size,
                    stream,
                    pool,
                    is_large: a.place.class(a.size) == 1,
                    blocks,
                });
            }
        }
        self.supplied_segments(&mut found);
        found.sort_unstable_by_key(|segment| segment.addr);
        found
    }

    fn segments_of(&self, heap: HeapId, found: &mut Vec<SegmentView>) {
        let (lane, is_large) = (self.lanes[heap.lane()], heap.is_large());
        let mut open: Option<SegmentView> = None;
        for block in self.heap(heap).blocks() {
            let here = match block.state {
                State::Free => Some(BlockView {
                    addr: block.addr,
                    size: block.size,
                    requested: 0,
                    state: BlockState::Free,
                }),
                // A live block at which no allocation begins is part of a window.
                State::Live => self.find(block.addr).map(|id| block_view(self.allocation(id))),
                // A sleeping block is neither live nor free.
                State::Hole | State::Asleep | State::Closed => None,
            };
            let is_guest = is_large && block.state == State::Live && block.size <= SMALL;
            match (here, &mut open) {
                // A small block between large ones is a small segment of its own.
                (Some(block), _) if is_guest => {
                    found.extend(open.take());
                    let (addr, size, stream, pool) = (block.addr, block.size, lane.stream, lane.pool);
                    found.push(SegmentView {
                        addr,
                        size,
                        stream,
                        pool,
                        is_large: false,
                        blocks: vec![block],
                    });
                }
                (Some(block), Some(segment)) => {
                    segment.size += block.size;
                    segment.blocks.push(block);
                }
                (Some(block), None) => {
                    open = Some(SegmentView {
                        addr: block.addr,
                        size: block.size,
                        stream: lane.stream,
                        pool: lane.pool,
                        is_large,
                        blocks: vec![block],
                    });
                }
                (None, _) => found.extend(open.take()),
            }
        }
        found.extend(open);
    }

    /// Free bytes that cannot be given back to the device, because other blocks use their pages.
    pub fn stranded(&self) -> u64 {
        let of_heaps = self.heaps().map(|heap| heap.free_bytes() - heap.whole()).sum::<u64>();
        of_heaps + self.supplied.counts().iter().map(|counts| counts.split_bytes).sum::<u64>()
    }

    /// The largest request that could succeed: whole pages, which windows can put side by side, and what the device has
    /// left.
    pub fn largest_available(&mut self) -> u64 {
        let (free, _) = self.device.memory();
        let reserved = self.stats.reserved.current;
        let more = self.options.limit.map_or(free, |limit| free.min(limit.saturating_sub(reserved)));
        let more = more / GRANULE * GRANULE;
        let lanes = self.lanes.iter().filter(|(_, owner)| !owner.pool.is_private());
        let heaps = lanes.map(|(lane, _)| self.heap(lane.large()));
        let (mut pages, mut largest) = (0, 0);
        for heap in heaps {
            pages += heap.whole();
            largest = largest.max(heap.largest_free());
        }
        largest.max(pages + more)
    }
}

pub(super) fn block_view(a: &Allocation) -> BlockView {
    let state = match a.waits {
        0 => BlockState::Allocated,
        _ if a.is_lent_only => BlockState::Returning,
        _ => BlockState::Pending,
    };
    // As in the counters, a freed loan is no longer requested.
    let requested = if a.is_lent_only { 0 } else { a.requested };
    BlockView { addr: a.addr, size: a.size, requested, state }
}
