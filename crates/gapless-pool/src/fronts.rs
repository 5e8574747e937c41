//! The shards of a pool, for many threads. Between calls the shards stand apart, each behind a lock of its own, so a
//! request that its shard can serve alone waits only for threads of the same lane. Everything else takes the pool's own
//! lock, gathers the shards into the pool, and runs the plain, single-threaded code.
//!
//! Order of locks: the pool's, then the shards' by number. A thread that holds only a shard's lock takes no other.

use crate::budget::Budget;
use crate::device::{Device, StreamHandle};
use crate::pool::{Pool, PoolKey};
use crate::shard::Shard;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use std::sync::OnceLock;

/// Lanes with a front of their own; further lanes are served by the gathered pool.
const FRONTS: usize = 512;

/// A shard behind its lock, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Front(OnceLock<Mutex<Box<Shard>>>);

/// Copy of a shard's identity outside its lock. Threads read all keys for each request, and only [`Gathered::scatter`]
/// writes them, so their cache lines stay shared.
#[derive(Debug)]
struct Key {
    /// The lane's stream and pool. Checked again under the shard's lock, as the lane may have changed.
    stream: AtomicU64,
    pool: [AtomicU64; 2],
    /// Beginning and number of its addresses.
    start: AtomicU64,
    bytes: AtomicU64,
}

impl Key {
    fn nowhere() -> Key {
        let none = || AtomicU64::new(u64::MAX);
        Key { stream: none(), pool: [none(), none()], start: none(), bytes: AtomicU64::new(0) }
    }

    fn is_of(&self, stream: StreamHandle, pool: PoolKey) -> bool {
        self.stream.load(Ordering::Relaxed) == stream.0
            && self.pool[0].load(Ordering::Relaxed) == pool.0
            && self.pool[1].load(Ordering::Relaxed) == pool.1
    }

    fn holds(&self, addr: u64) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        addr.wrapping_sub(start) < self.bytes.load(Ordering::Relaxed)
    }

    fn set(&self, shard: &Shard) {
        self.stream.store(shard.stream.0, Ordering::Relaxed);
        self.pool[0].store(shard.pool.0, Ordering::Relaxed);
        self.pool[1].store(shard.pool.1, Ordering::Relaxed);
        let range = shard.range();
        self.start.store(range.start, Ordering::Relaxed);
        self.bytes.store(range.end - range.start, Ordering::Relaxed);
    }
}

/// The shards of a pool while no thread has gathered it.
#[derive(Debug)]
pub struct Fronts {
    fronts: Box<[Front]>,
    keys: Box<[Key]>,
    count: AtomicUsize,
    /// True if all requests must go through the pool, because its keeper or its log must see each of them.
    detour: AtomicBool,
    /// The number of times that the shards were gathered.
    gathers: AtomicU64,
}

impl Default for Fronts {
    fn default() -> Fronts {
        Fronts {
            fronts: (0..FRONTS).map(|_| Front(OnceLock::new())).collect(),
            keys: (0..FRONTS).map(|_| Key::nowhere()).collect(),
            count: AtomicUsize::new(0),
            detour: AtomicBool::new(false),
            gathers: AtomicU64::new(0),
        }
    }
}

impl Fronts {
    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The shard of the first matching key.
    #[inline]
    fn find(&self, is_it: impl Fn(&Key) -> bool) -> Option<&Mutex<Box<Shard>>> {
        let at = self.keys[..self.count()].iter().position(is_it)?;
        self.fronts[at].0.get()
    }

    /// Serves a request from its lane's own heap. `None` if only the gathered pool can serve it.
    #[inline]
    pub fn alloc(&self, size: u64, stream: StreamHandle, pool: PoolKey) -> Option<u64> {
        self.alloc_then(size, stream, pool, |_| ())
    }

    /// [`Fronts::alloc`]. Calls `then` with the address under the lane's lock, before any thread can free it and before
    /// anything beside it changes.
    #[inline]
    pub fn alloc_then(
        &self,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
        then: impl FnOnce(u64),
    ) -> Option<u64> {
        self.alloc_for(size, stream, pool, None, then)
    }

    /// [`Fronts::alloc_then`], charged to a budget until it is freed. Also `None` if the budget has no room.
    #[inline]
    pub fn alloc_for(
        &self,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
        budget: Option<&'static Budget>,
        then: impl FnOnce(u64),
    ) -> Option<u64> {
        if self.detour.load(Ordering::Relaxed) || size > crate::heap::LARGEST {
            return None;
        }
        let mut shard = lock(self.find(|key| key.is_of(stream, pool))?);
        if !shard.is_of(stream, pool) {
            return None;
        }
        let addr = shard.alloc(size, budget)?;
        then(addr);
        Some(addr)
    }

    /// Frees an allocation that concerns its own lane alone. False if the gathered pool must do it.
    #[inline]
    pub fn free(&self, addr: u64) -> bool {
        self.free_after(addr, |_, _, _| ())
    }

    /// [`Fronts::free`]. Calls `before` with the requested size, the stream and the pool before the memory is free.
    #[inline]
    pub fn free_after(&self, addr: u64, before: impl FnOnce(u64, StreamHandle, PoolKey)) -> bool {
        self.find(|key| key.holds(addr)).is_some_and(|shard| lock(shard).free_after(addr, before))
    }

    /// Notes that another stream uses the allocation at `addr`. False if the gathered pool must do it.
    pub fn record_stream(&self, addr: u64, stream: StreamHandle) -> bool {
        self.find(|key| key.holds(addr)).is_some_and(|shard| lock(shard).record_stream(addr, stream))
    }

    /// The number of times that the shards were gathered: for requests that their own heaps could not serve, and for
    /// everything else that needs the whole pool.
    #[must_use]
    pub fn gathers(&self) -> u64 {
        self.gathers.load(Ordering::Relaxed)
    }

    /// Puts the shards back into their pool until [`Gathered::scatter`]. The caller holds the pool's lock.
    pub(crate) fn gather<D: Device>(&self, pool: &mut Pool<D>) -> Gathered<'_> {
        self.gathers.fetch_add(1, Ordering::Relaxed);
        let fronts = self.fronts[..self.count()].iter();
        let mut held: Vec<MutexGuard<'_, Box<Shard>>> =
            fronts.filter_map(|front| front.0.get()).map(lock).collect();
        // A panic while the shards were gathered left them in the pool.
        let apart = held.iter_mut().map(|guard| &mut **guard);
        pool.exchange_shards(apart, |shard| !shard.is_nowhere());
        pool.settle();
        Gathered { fronts: self, held }
    }
}

/// The locks of all shards while the shards are back in their pool.
#[derive(Debug)]
#[must_use = "the shards must be scattered again"]
pub(crate) struct Gathered<'a> {
    fronts: &'a Fronts,
    held: Vec<MutexGuard<'a, Box<Shard>>>,
}

impl Gathered<'_> {
    /// Sets the shards apart again. With `detour`, every request goes through the pool.
    pub(crate) fn scatter<D: Device>(mut self, pool: &mut Pool<D>, detour: bool) {
        self.fronts.detour.store(detour || pool.is_logged(), Ordering::Relaxed);
        pool.prepare_shards();
        // Lanes that were added since.
        for at in self.held.len()..pool.shard_count().min(FRONTS) {
            let front = self.fronts.fronts[at].0.get_or_init(|| Mutex::new(Box::new(Shard::nowhere())));
            self.held.push(lock(front));
        }
        pool.exchange_shards(self.held.iter_mut().map(|guard| &mut **guard), |_| true);
        for (key, shard) in self.fronts.keys.iter().zip(&self.held) {
            if !key.is_of(shard.stream, shard.pool) {
                key.set(shard);
            }
        }
        self.fronts.count.store(self.held.len(), Ordering::Release);
    }
}
