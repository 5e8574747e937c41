//! Free memory and its place, for messages that say why a request failed.

use super::{Lane, Pool, PoolKey, SMALL};
use crate::device::{Device, StreamHandle};
use crate::shard::rounded;

/// The largest free block of a lane's size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    pub size: u64,
    pub stream: StreamHandle,
    pub pool: PoolKey,
    /// True if it lies in memory of small requests.
    pub is_small: bool,
}

/// Free memory of a private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateFree {
    pub pool: PoolKey,
    pub free: u64,
    /// Bytes of it in wholly free pages.
    pub pages: u64,
    /// True if the program has released the pool.
    pub is_released: bool,
}

/// Free memory that is held, from the view of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// The largest of all.
    pub largest: Option<Hole>,
    /// In the request's own pool: free bytes, and those of them that lie in pages with other blocks.
    pub own: u64,
    pub pinned: u64,
    /// For a request in a private pool: wholly free pages of the default one.
    pub elsewhere: u64,
    /// Private pools with free memory, other than the request's; the most first.
    pub private: Vec<PrivateFree>,
    /// Freed memory that other streams use: the stream, and the bytes that wait for it; the most first.
    pub pending: Vec<(StreamHandle, u64)>,
}

impl<D: Device> Pool<D> {
    /// The block size for a request.
    #[must_use]
    pub fn block_size(requested: u64) -> u64 {
        rounded(requested)
    }

    /// The free memory, for a request in `pool`.
    #[must_use]
    pub fn holes_for(&self, pool: PoolKey) -> Holes {
        let mut found = Holes::default();
        for heap in self.lanes.heap_ids() {
            let lane = self.lanes[heap.lane()];
            let free = self.heap(heap).free_bytes();
            if free == 0 {
                continue;
            }
            let pages = self.heap(heap).whole();
            let largest = self.heap(heap).largest_free();
            if largest > found.largest.map_or(0, |hole| hole.size) {
                let Lane { stream, pool, .. } = lane;
                found.largest = Some(Hole { size: largest, stream, pool, is_small: heap.is_small() });
            }
            if lane.pool == pool {
                found.own += free;
                found.pinned += free - pages;
            } else if !lane.pool.is_private() {
                found.elsewhere += pages;
            } else {
                let is_released = self.released.contains(&lane.pool);
                match found.private.iter_mut().find(|private| private.pool == lane.pool) {
                    Some(private) => {
                        private.free += free;
                        private.pages += pages;
                    }
                    None => found.private.push(PrivateFree { pool: lane.pool, free, pages, is_released }),
                }
            }
        }
        found.private.sort_by_key(|private| (std::cmp::Reverse(private.free), private.pool));
        for (stream, queue) in self.pending.by_stream() {
            // A block that several streams use waits for the last of them. It is counted for each.
            let bytes: u64 = queue.iter().map(|waiting| self.allocation(waiting.id).size).sum();
            if bytes > 0 {
                found.pending.push((stream, bytes));
            }
        }
        found.pending.sort_by_key(|&(stream, bytes)| (std::cmp::Reverse(bytes), stream));
        found
    }

    /// True if a request of `size` bytes counts as small.
    #[must_use]
    pub fn is_small(size: u64) -> bool {
        rounded(size) <= SMALL
    }
}
