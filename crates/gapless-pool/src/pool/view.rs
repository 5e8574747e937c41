//! The pool as a list of segments with their blocks, as PyTorch shows an allocator.
//!
//! A segment is a stretch of a heap with memory behind it. An allocation in a window is a segment of its own, at the
//! addresses that its caller knows, and the bytes at home that it stands for are left out there: they cut their heap
//! into several segments. So every physical byte is in one segment, the segments' sizes add up to what is reserved, and
//! the blocks' to what is allocated and active.

use super::{Allocation, Lane, Place, Pool, PoolKey, SMALL};
use crate::blocks::State;
use crate::device::{Device, StreamHandle};
use crate::heap::GRANULE;
use crate::ids::{HeapId, LaneId};
use crate::stats::Stats;

/// Whose hands a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The caller's.
    Allocated,
    /// Freed, and other streams may still use it.
    Pending,
    /// Freed by a stream that it was lent to, and its owner's again behind a fence. PyTorch's own allocator has no such
    /// wait: who looks at the pool as at that one takes it for free.
    Returning,
    Free,
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    pub addr: u64,
    pub size: u64,
    /// What was asked for; 0 where it is free.
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
    /// Whether the caller still has it.
    pub is_live: bool,
}

/// What one stream has of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// Blocks in callers' hands, and their bytes.
    pub blocks: u64,
    pub allocated: u64,
    /// Memory that was taken for it, also where another one uses it now.
    pub reserved: u64,
}

impl<D: Device> Pool<D> {
    /// Every stream's part of every pool, in the order in which they came.
    pub fn lanes(&self) -> Vec<LaneView> {
        let reserved = |heap: HeapId| -> u64 {
            self.heap(heap).pages().iter().filter(|page| page.handle.is_some()).map(|page| page.size).sum()
        };
        let view = |(lane, &Lane { stream, pool }): (LaneId, &Lane)| LaneView {
            stream,
            pool,
            blocks: 0,
            allocated: 0,
            reserved: reserved(lane.small()) + reserved(lane.large()),
        };
        let mut lanes: Vec<LaneView> = self.lanes.iter().map(view).collect();
        for (_, segment) in self.supplied.segments() {
            let of = segment.owner;
            if let Some(lane) = lanes.iter_mut().find(|lane| (lane.stream, lane.pool) == (of.stream, of.pool))
            {
                lane.reserved += segment.size;
            }
        }
        for a in self.ids().map(|id| self.allocation(id)).filter(|a| a.is_live()) {
            let lane = &mut lanes[a.lane.index()];
            lane.blocks += 1;
            lane.allocated += a.size;
        }
        lanes
    }

    /// Everything that callers have, in no order.
    pub fn live(&self) -> impl Iterator<Item = AllocationView> + '_ {
        self.ids().map(|id| self.view_of(self.allocation(id))).filter(|a| a.is_live)
    }

    /// What was allocated at `addr` and is not free yet.
    pub fn allocation_at(&self, addr: u64) -> Option<AllocationView> {
        self.find(addr).map(|id| self.view_of(self.allocation(id)))
    }

    /// Whether a caller has what was allocated at `addr`.
    pub fn is_live(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.allocation(id).is_live())
    }

    /// The caller keeps something about what was allocated at `addr`. What comes there later is another allocation,
    /// without a note: so frees that nobody was told of leave nothing behind that is taken for true.
    pub fn note(&mut self, addr: u64) {
        if let Some(id) = self.find(addr) {
            self.allocation_mut(id).is_noted = true;
        }
    }

    /// Whether what is at `addr` now was noted.
    pub fn is_noted(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| self.allocation(id).is_noted)
    }

    /// Whether what was allocated at `addr` lies in a window.
    pub fn is_in_window(&self, addr: u64) -> bool {
        self.find(addr).is_some_and(|id| matches!(self.allocation(id).place, Place::Window { .. }))
    }

    /// Everything that was allocated in a pool and is not free yet, in order of address.
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

    /// Memory that a lane had lent and that its borrower gave back: free for callers, and not yet for other lanes.
    fn returning(&self) -> impl Iterator<Item = &Allocation> + '_ {
        self.fences.waiting().map(|id| self.allocation(id)).filter(|a| a.is_lent_only)
    }

    /// Where that is, in no order: callers have given it back, yet [`Pool::allocations`] has it.
    pub fn returning_at(&self) -> impl Iterator<Item = u64> + '_ {
        self.returning().map(|a| a.addr)
    }

    /// The counters as PyTorch's own allocator has them: what returns from a stream that it was lent to is not active.
    /// They agree with the segments. Peaks are those of [`Pool::stats`].
    pub fn stats_shown(&self) -> Stats {
        let mut stats = self.stats;
        for a in self.returning() {
            let class = &mut stats.classes[a.place.class(a.size)];
            class.active_blocks.sub(1);
            class.active.sub(a.size);
            stats.active_blocks.sub(1);
            stats.active.sub(a.size);
        }
        stats
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
                // A live block that is nobody's beginning is part of a window.
                State::Live => self.find(block.addr).map(|id| block_view(self.allocation(id))),
                // What sleeps is neither live nor free.
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

    /// Free blocks that cannot be given back to the device, since others use their pages, and their bytes there: for
    /// small and for large.
    pub fn stranded(&self) -> [(u64, u64); 2] {
        let mut found = [(0, 0); 2];
        for (at, heap) in self.heaps().enumerate() {
            let pages = heap.pages();
            for block in heap.blocks().filter(|block| block.state == State::Free) {
                let end = block.addr + block.size;
                let first = pages.partition_point(|p| p.addr + p.size <= block.addr);
                let pages = pages[first..].iter().take_while(|p| p.addr < end);
                let stranded: u64 = pages
                    .filter(|p| !p.is_free())
                    .map(|p| end.min(p.addr + p.size) - block.addr.max(p.addr))
                    .sum();
                if stranded > 0 {
                    found[at % 2].0 += 1;
                    found[at % 2].1 += stranded;
                }
            }
        }
        self.stranded_supplied(&mut found);
        found
    }

    /// The most that one request could get: what is free in whole pages, which can be put side by side, with what the
    /// device has left.
    pub fn largest_available(&mut self) -> u64 {
        let (free, _) = self.device.memory();
        let reserved = self.stats.reserved.current;
        let more = self.options.limit.map_or(free, |limit| free.min(limit.saturating_sub(reserved)));
        let more = more / GRANULE * GRANULE;
        let lanes = self.lanes.iter().filter(|(_, owner)| !owner.pool.is_private());
        let heaps = lanes.map(|(lane, _)| self.heap(lane.large()));
        let (mut pages, mut largest) = (0, 0);
        for heap in heaps {
            pages += heap.pages().iter().filter(|page| page.is_free()).map(|page| page.size).sum::<u64>();
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
    // As the counters have it: what was lent and given back is requested by nobody.
    let requested = if a.is_lent_only { 0 } else { a.requested };
    BlockView { addr: a.addr, size: a.size, requested, state }
}
