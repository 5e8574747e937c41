//! Private pools: those of graphs and of the program's own. A graph remembers the addresses that it was captured with, and a window's may go
//! when it is idle; so a private pool has no windows, and only grows. Its addresses serve another pool once it was released and emptied.

use super::{Place, Pool};
use crate::device::{Device, DeviceError};
use crate::heap::GRANULE;

impl<D: Device> Pool<D> {
    /// What [`Pool::miss`](super) does for a private pool.
    pub(super) fn miss_in_private(&mut self, lane: u32, heap: u32, size: u64) -> Result<Place, DeviceError> {
        let missing = size - self.heap(heap).tail().min(size - 1);
        let error = match self.grow_for(heap, size, missing.div_ceil(GRANULE) * GRANULE) {
            Ok(()) => return self.at_home(heap, size),
            Err(error) => error,
        };
        self.climb(lane, heap, size, error)
    }
}
