//! The allocator as a program calls it, from one thread or through the fronts for many.

use super::device::TimedDevice;
use gapless_pool::budget::Budget;
use gapless_pool::device::StreamHandle;
use gapless_pool::pool::{AllocError, FreeError, Pool, PoolKey};
use gapless_pool::shared::SharedPool;

#[derive(Debug)]
pub(crate) enum Driver {
    Alone(Box<Pool<TimedDevice>>),
    Shared(Box<SharedPool<TimedDevice>>),
}

impl Driver {
    pub(crate) fn with<T>(&mut self, work: impl FnOnce(&mut Pool<TimedDevice>) -> T) -> T {
        match self {
            Driver::Alone(pool) => work(pool),
            Driver::Shared(shared) => shared.with(work),
        }
    }

    pub(crate) fn alloc(
        &mut self,
        size: u64,
        stream: u64,
        pool: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Result<u64, AllocError> {
        match self {
            Driver::Alone(alone) => alone.alloc_for(size, StreamHandle(stream), pool, budget),
            Driver::Shared(shared) => shared.alloc_for(size, StreamHandle(stream), pool, budget),
        }
    }

    /// Memory from the stream's front, if there are fronts and it has some.
    pub(crate) fn alloc_at_front(
        &self,
        size: u64,
        stream: u64,
        pool: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Option<u64> {
        match self {
            Driver::Alone(_) => None,
            Driver::Shared(shared) => {
                shared.fronts().alloc_for(size, StreamHandle(stream), pool, budget, |_| ())
            }
        }
    }

    pub(crate) fn free(&mut self, addr: u64) -> Result<(), FreeError> {
        match self {
            Driver::Alone(alone) => alone.free(addr),
            Driver::Shared(shared) => shared.free(addr),
        }
    }

    pub(crate) fn record_stream(&mut self, addr: u64, stream: u64) -> Result<(), FreeError> {
        match self {
            Driver::Alone(alone) => alone.record_stream(addr, StreamHandle(stream)),
            Driver::Shared(shared) => shared.record_stream(addr, StreamHandle(stream)),
        }
    }

    /// The number of times that the shards were gathered; `None` without fronts.
    pub(crate) fn gathers(&self) -> Option<u64> {
        match self {
            Driver::Alone(_) => None,
            Driver::Shared(shared) => Some(shared.fronts().gathers()),
        }
    }
}
