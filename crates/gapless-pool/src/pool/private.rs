//! Private pools: those of graphs and of the program's own. A graph remembers the addresses that it was captured with, and a window's may go
//! when it is idle; so a private pool has no windows, and only grows. Its addresses serve another pool once it was released and emptied.

use super::{Place, Pool};
use crate::device::{Device, DeviceError};
use crate::heap::GRANULE;

impl<D: Device> Pool<D> {
    /// What [`Pool::miss`](super) does for a private pool.
    pub(super) fn miss_in_private(&mut self, lane: u32, heap: u32, size: u64) -> Result<Place, DeviceError> {
        if self.refill(heap, size.div_ceil(GRANULE) * GRANULE).is_some()
            && let Ok(place) = self.at_home(heap, size)
        {
            return Ok(place);
        }
        let grow = |pool: &mut Self| {
            let missing = size - pool.heap(heap).tail().min(size - 1);
            pool.grow(heap, missing.div_ceil(GRANULE) * GRANULE)
        };
        let error = match grow(self) {
            Ok(()) => return self.at_home(heap, size),
            Err(error) => error,
        };
        self.climb(lane, heap, size, error)
    }

    /// A lane of a released pool with nothing left in it: its addresses can be used again.
    pub(super) fn abandoned_lane(&self) -> Option<u32> {
        if self.released.is_empty() {
            return None;
        }
        let empty = |heap: u32| self.heap(heap).pages().iter().all(|page| page.handle.is_none());
        self.lanes
            .iter()
            .position(|lane| self.released.contains(&lane.pool) && empty(lane.small) && empty(lane.large))
            .map(|at| at as u32)
    }
}
