//! Changes of memory between a caller's request and the caller's free, for histories. Off, the log costs one
//! comparison.
//!
//! A page is shown at the place where its present user has it. An allocation in a window takes its bytes away at home
//! and puts them at the window's addresses; when it ends, they return. So each physical byte is mapped once at any
//! time, as readers of a history expect.

use super::{Allocation, AllocationId, Lane, Place, Pool, PoolKey};
use crate::device::{Device, StreamHandle};
use crate::ids::HeapId;

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A freed block became free for other requests.
    Completed { addr: u64, requested: u64, stream: StreamHandle, pool: PoolKey },
    /// Memory is behind these addresses from now on.
    Mapped { addr: u64, size: u64, stream: StreamHandle, pool: PoolKey },
    /// Memory is no longer behind these addresses.
    Unmapped { addr: u64, size: u64, stream: StreamHandle, pool: PoolKey },
}

impl<D: Device> Pool<D> {
    /// Begins or ends the recording of changes.
    pub fn set_log(&mut self, on: bool) {
        if on != self.log.is_some() {
            self.log = on.then(Vec::new);
        }
    }

    /// The changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    #[cold]
    pub(super) fn log(&mut self, change: Change) {
        if let Some(log) = &mut self.log {
            log.push(change);
        }
    }

    pub(super) fn log_pages(&mut self, heap: HeapId, addr: u64, size: u64, mapped: bool) {
        if self.log.is_none() {
            return;
        }
        let Lane { stream, pool, .. } = self.lanes[heap.lane()];
        self.log(if mapped {
            Change::Mapped { addr, size, stream, pool }
        } else {
            Change::Unmapped { addr, size, stream, pool }
        });
    }

    #[cold]
    pub(super) fn log_completed(&mut self, id: AllocationId) {
        let Allocation { addr, requested, lane, .. } = *self.allocation(id);
        let Lane { stream, pool, .. } = self.lanes[lane];
        self.log(Change::Completed { addr, requested, stream, pool });
    }

    /// Logs that an allocation takes its window's bytes away at home, or returns them.
    #[cold]
    pub(super) fn log_window(&mut self, id: AllocationId, taken: bool) {
        let Allocation { addr, size, lane, ref place, .. } = *self.allocation(id);
        let Place::Window { parts, .. } = place else { return };
        let mut homes: Vec<(HeapId, u64, u64)> = parts
            .iter()
            .map(|&(heap, block)| {
                let block = self.heap(heap).block(block);
                (heap, block.addr, block.size)
            })
            .collect();
        homes.sort_unstable();
        // Neighbours are one change. Otherwise a window of pages that are neighbours at home would fill the history.
        homes.dedup_by(|next, before| {
            let touch = next.0 == before.0 && before.1 + before.2 == next.1;
            if touch {
                before.2 += next.2;
            }
            touch
        });
        let Lane { stream, pool, .. } = self.lanes[lane];
        if !taken {
            self.log(Change::Unmapped { addr, size, stream, pool });
        }
        for (heap, addr, size) in homes {
            self.log_pages(heap, addr, size, !taken);
        }
        if taken {
            self.log(Change::Mapped { addr, size, stream, pool });
        }
    }
}
