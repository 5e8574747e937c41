//! A pool for many threads, behind one lock, with whatever its owner keeps beside it.
//!
//! Most requests and frees are served by [`Fronts`], without this lock. [`Shared::lock`] is the only way to the whole
//! pool: it gathers the shards, and sets them apart again when the guard goes. The allocator below PyTorch and the
//! tests of interleavings use the same type, so what those prove is what runs.

use crate::budget::Budget;
use crate::device::{Device, StreamHandle};
use crate::fronts::{Fronts, Gathered};
use crate::pool::{AllocError, FreeError, Pool, PoolKey};
use crate::sync::{Mutex, MutexGuard, lock};
use std::ops::{Deref, DerefMut};

/// State behind the lock of a pool: the pool, and whatever its owner keeps beside it.
pub trait Keeper {
    type Device: Device;

    fn pool_mut(&mut self) -> &mut Pool<Self::Device>;

    /// Called when a thread has taken the whole pool.
    fn taken(&mut self) {}

    /// Called before the shards are set apart again. True if each request must go through the whole pool.
    fn about_to_leave(&mut self) -> bool {
        false
    }
}

impl<D: Device> Keeper for Pool<D> {
    type Device = D;

    fn pool_mut(&mut self) -> &mut Pool<D> {
        self
    }
}

/// A pool that any thread can use, inside its keeper.
#[derive(Debug)]
pub struct Shared<K> {
    keeper: Mutex<K>,
    fronts: Fronts,
}

/// A pool that any thread can use.
pub type SharedPool<D> = Shared<Pool<D>>;

/// The whole pool, held by one thread: the shards' locks are held too.
#[derive(Debug)]
pub struct Whole<'a, K: Keeper> {
    keeper: MutexGuard<'a, K>,
    gathered: Option<Gathered<'a>>,
}

impl<K: Keeper> Shared<K> {
    pub fn new(keeper: K) -> Shared<K> {
        Shared { keeper: Mutex::new(keeper), fronts: Fronts::default() }
    }

    #[inline]
    #[must_use]
    pub fn fronts(&self) -> &Fronts {
        &self.fronts
    }

    /// The whole pool, while all other threads wait.
    pub fn lock(&self) -> Whole<'_, K> {
        let mut keeper = lock(&self.keeper);
        let gathered = Some(self.fronts.gather(keeper.pool_mut()));
        keeper.taken();
        Whole { keeper, gathered }
    }

    /// Runs `work` on the whole pool, while all other threads wait.
    pub fn with<T>(&self, work: impl FnOnce(&mut K) -> T) -> T {
        work(&mut self.lock())
    }
}

impl<K: Keeper> Deref for Whole<'_, K> {
    type Target = K;
    fn deref(&self) -> &K {
        &self.keeper
    }
}

impl<K: Keeper> DerefMut for Whole<'_, K> {
    fn deref_mut(&mut self) -> &mut K {
        &mut self.keeper
    }
}

impl<K: Keeper> Drop for Whole<'_, K> {
    fn drop(&mut self) {
        // After a panic the shards stay in the pool, and the next thread that locks it finds them there. To divide what
        // a panic left half done could panic again, which ends the process.
        if let Some(gathered) = self.gathered.take().filter(|_| !std::thread::panicking()) {
            let detour = self.keeper.about_to_leave();
            gathered.scatter(self.keeper.pool_mut(), detour);
        }
    }
}

impl<D: Device> SharedPool<D> {
    /// [`Pool::alloc`].
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    #[inline]
    pub fn alloc(&self, size: u64, stream: StreamHandle, key: PoolKey) -> Result<u64, AllocError> {
        match self.fronts.alloc(size, stream, key) {
            Some(addr) => Ok(addr),
            None => self.with(|pool| pool.alloc(size, stream, key)),
        }
    }

    /// [`Pool::alloc_for`].
    ///
    /// # Errors
    /// As [`Pool::alloc_for`].
    pub fn alloc_for(
        &self,
        size: u64,
        stream: StreamHandle,
        key: PoolKey,
        budget: Option<&'static Budget>,
    ) -> Result<u64, AllocError> {
        match self.fronts.alloc_for(size, stream, key, budget, |_| ()) {
            Some(addr) => Ok(addr),
            None => self.with(|pool| pool.alloc_for(size, stream, key, budget)),
        }
    }

    /// [`Pool::free`].
    ///
    /// # Errors
    /// As [`Pool::free`].
    #[inline]
    pub fn free(&self, addr: u64) -> Result<(), FreeError> {
        if self.fronts.free(addr) { Ok(()) } else { self.with(|pool| pool.free(addr)) }
    }

    /// [`Pool::record_stream`].
    ///
    /// # Errors
    /// As [`Pool::record_stream`].
    pub fn record_stream(&self, addr: u64, stream: StreamHandle) -> Result<(), FreeError> {
        if self.fronts.record_stream(addr, stream) {
            return Ok(());
        }
        self.with(|pool| pool.record_stream(addr, stream))
    }
}
