//! Requests for an address that the caller chose: they take free memory there or fail.

use super::{LARGEST, Place, Pool, PoolKey, SMALL};
use crate::budget::Budget;
use crate::device::{Device, DeviceError, StreamHandle};
use crate::shard::rounded;

/// Reason why memory at an address cannot be had. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExactError {
    /// Blocks begin at multiples of this.
    Unaligned { step: u64 },
    /// Some of it is in use, or no memory of this stream lies there.
    NotFree,
    /// A budget has no room for it, or the device refuses more.
    Refused(DeviceError),
}

impl std::fmt::Display for ExactError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExactError::Unaligned { step } => write!(f, "the address must be a multiple of {step}"),
            ExactError::NotFree => {
                f.write_str("they are not free there, in one piece of memory that this stream has")
            }
            ExactError::Refused(error) => write!(f, "{error:?}"),
        }
    }
}

impl<D: Device> Pool<D> {
    /// Takes `size` bytes at `addr`, to be used on `stream`, from free memory of this stream's own heap in the pool.
    /// Takes no memory from the device.
    ///
    /// # Errors
    /// If that memory is not free.
    pub fn alloc_at(
        &mut self,
        size: u64,
        addr: u64,
        stream: StreamHandle,
        pool: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Result<u64, ExactError> {
        let step = rounded(1);
        if !addr.is_multiple_of(step) || size == 0 {
            return Err(ExactError::Unaligned { step });
        }
        if size > LARGEST {
            return Err(ExactError::NotFree);
        }
        let size_there = rounded(size);
        let asked = self.ask(budget, size_there, stream, pool).and_then(|()| self.lane(stream, pool));
        if asked.is_ok() && !self.pending.is_empty() {
            self.poll();
        }
        let lane = asked.map_err(ExactError::Refused)?;
        let heap = lane.heap(usize::from(size_there > SMALL));
        let block = self.heap_mut(heap).take_at(addr, size_there).ok_or(ExactError::NotFree)?;
        Ok(self.hand_out(lane, size, size_there, Place::Home { heap, block }, false, budget))
    }
}
