//! The pool for many threads. Between calls its shards stand apart, each behind a lock of its own: what a shard can serve alone waits only for
//! others of the same lane. Everything else takes the pool's own lock, gathers the shards into the pool, and is the plain machine again.
//!
//! Order of locks: the pool's, then the shards' by number. Who holds one shard's lock takes no other.

use crate::device::{Device, StreamHandle};
use crate::pool::{AllocError, FreeError, Pool, PoolKey};
use crate::shard::{RANGE, Shard};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use std::sync::OnceLock;

/// Lanes that are served apart; more are served by the gathered pool.
const FRONTS: usize = 512;

/// A shard behind its lock, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Front {
    /// The lane's stream and pool, to find it without its lock; its shard has the last word.
    stream: AtomicU64,
    pool: [AtomicU64; 2],
    /// Where its addresses begin.
    start: u64,
    shard: Mutex<Box<Shard>>,
}

impl Front {
    fn is_of(&self, stream: StreamHandle, pool: PoolKey) -> bool {
        self.stream.load(Ordering::Relaxed) == stream.0
            && self.pool[0].load(Ordering::Relaxed) == pool.0
            && self.pool[1].load(Ordering::Relaxed) == pool.1
    }
}

/// The shards of a pool while nobody has the whole of it.
#[derive(Debug)]
pub struct Fronts {
    fronts: Box<[OnceLock<Front>]>,
    count: AtomicUsize,
    /// Requests must go through the pool: something is pending, or somebody wants to see each of them.
    detour: AtomicBool,
    /// How often the shards were gathered.
    gathers: AtomicU64,
}

impl Default for Fronts {
    fn default() -> Fronts {
        Fronts {
            fronts: (0..FRONTS).map(|_| OnceLock::new()).collect(),
            count: AtomicUsize::new(0),
            detour: AtomicBool::new(false),
            gathers: AtomicU64::new(0),
        }
    }
}

impl Fronts {
    fn iter(&self) -> impl Iterator<Item = &Front> {
        let count = self.count.load(Ordering::Acquire);
        self.fronts[..count].iter().filter_map(OnceLock::get)
    }

    /// Serves a request from its lane's own heap; `None`: the gathered pool must.
    #[inline]
    pub fn alloc(&self, size: u64, stream: StreamHandle, pool: PoolKey) -> Option<u64> {
        self.alloc_then(size, stream, pool, |_| ())
    }

    /// [`Fronts::alloc`]; `then` sees the address before anybody can free it or anything beside it can change: under the lane's lock.
    #[inline]
    pub fn alloc_then(
        &self,
        size: u64,
        stream: StreamHandle,
        pool: PoolKey,
        then: impl FnOnce(u64),
    ) -> Option<u64> {
        if self.detour.load(Ordering::Relaxed) || size > crate::pool::LARGEST {
            return None;
        }
        let front = self.iter().find(|front| front.is_of(stream, pool))?;
        let mut shard = lock(&front.shard);
        if !shard.is_of(stream, pool) {
            return None;
        }
        let addr = shard.alloc(size)?;
        then(addr);
        Some(addr)
    }

    fn holding(&self, addr: u64) -> Option<&Front> {
        self.iter().find(|front| (front.start..front.start + 2 * RANGE).contains(&addr))
    }

    /// Takes back what concerns its own lane alone. Whether it did; the gathered pool must look where not.
    #[inline]
    pub fn free(&self, addr: u64) -> bool {
        self.free_after(addr, |_, _, _| ())
    }

    /// [`Fronts::free`]; `before` sees what was asked for, with its stream and pool, before the memory can serve anybody else.
    #[inline]
    pub fn free_after(&self, addr: u64, before: impl FnOnce(u64, StreamHandle, PoolKey)) -> bool {
        self.holding(addr).is_some_and(|front| lock(&front.shard).free_after(addr, before))
    }

    /// Notes that another stream uses what is at `addr`. Whether it did; the gathered pool must look where not.
    pub fn record_stream(&self, addr: u64, stream: StreamHandle) -> bool {
        self.holding(addr).is_some_and(|front| lock(&front.shard).record_stream(addr, stream))
    }

    /// How often the shards were gathered: requests that their own heaps could not serve, and everything else that needs the whole pool.
    #[must_use]
    pub fn gathers(&self) -> u64 {
        self.gathers.load(Ordering::Relaxed)
    }

    /// Puts the shards back into their pool, whose lock the caller holds, until [`Gathered::scatter`].
    pub fn gather<D: Device>(&self, pool: &mut Pool<D>) -> Gathered<'_> {
        self.gathers.fetch_add(1, Ordering::Relaxed);
        let mut held: Vec<MutexGuard<'_, Box<Shard>>> = self.iter().map(|front| lock(&front.shard)).collect();
        // A panic while they were gathered left them in the pool.
        let apart = held.iter_mut().map(|guard| &mut **guard);
        pool.exchange_shards(apart, |shard| !shard.is_nowhere());
        pool.settle();
        Gathered { fronts: self, held }
    }
}

/// The locks of all shards of a pool, which has them back.
#[derive(Debug)]
#[must_use = "the shards must be scattered again"]
pub struct Gathered<'a> {
    fronts: &'a Fronts,
    held: Vec<MutexGuard<'a, Box<Shard>>>,
}

impl Gathered<'_> {
    /// Sets the shards apart again. With `detour`, every request goes through the pool.
    pub fn scatter<D: Device>(mut self, pool: &mut Pool<D>, detour: bool) {
        self.fronts.detour.store(detour || pool.needs_polling(), Ordering::Relaxed);
        pool.give_room();
        // Lanes that are new since.
        for at in self.held.len()..pool.shard_count().min(FRONTS) {
            let start = pool.start_of(at);
            let shard = Mutex::new(Box::new(Shard::nowhere()));
            let key = || AtomicU64::new(u64::MAX);
            let front = Front { stream: key(), pool: [key(), key()], start, shard };
            if let Some(front) = self.fronts.fronts.get(at).filter(|slot| slot.set(front).is_ok()) {
                self.held.extend(front.get().map(|front| lock(&front.shard)));
            }
        }
        pool.exchange_shards(self.held.iter_mut().map(|guard| &mut **guard), |_| true);
        for (slot, guard) in self.fronts.fronts.iter().zip(&self.held) {
            if let Some(front) = slot.get() {
                front.stream.store(guard.stream.0, Ordering::Relaxed);
                front.pool[0].store(guard.pool.0, Ordering::Relaxed);
                front.pool[1].store(guard.pool.1, Ordering::Relaxed);
            }
        }
        self.fronts.count.store(self.held.len(), Ordering::Release);
    }
}

/// A pool that any thread can use.
#[derive(Debug)]
pub struct SharedPool<D> {
    pool: Mutex<Pool<D>>,
    fronts: Fronts,
}

impl<D: Device> SharedPool<D> {
    pub fn new(pool: Pool<D>) -> SharedPool<D> {
        SharedPool { pool: Mutex::new(pool), fronts: Fronts::default() }
    }

    #[must_use]
    pub fn fronts(&self) -> &Fronts {
        &self.fronts
    }

    /// Runs `work` on the whole pool, while everybody else waits.
    pub fn with<T>(&self, work: impl FnOnce(&mut Pool<D>) -> T) -> T {
        let mut pool = lock(&self.pool);
        let gathered = self.fronts.gather(&mut pool);
        let result = work(&mut pool);
        gathered.scatter(&mut pool, false);
        result
    }

    /// [`Pool::alloc`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn alloc(&self, size: u64, stream: StreamHandle, key: PoolKey) -> Result<u64, AllocError> {
        match self.fronts.alloc(size, stream, key) {
            Some(addr) => Ok(addr),
            None => self.with(|pool| pool.alloc(size, stream, key)),
        }
    }

    /// [`Pool::free`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn free(&self, addr: u64) -> Result<(), FreeError> {
        if self.fronts.free(addr) { Ok(()) } else { self.with(|pool| pool.free(addr)) }
    }

    /// [`Pool::record_stream`].
    ///
    /// # Errors
    /// As there.
    pub fn record_stream(&self, addr: u64, stream: StreamHandle) -> Result<(), FreeError> {
        if self.fronts.record_stream(addr, stream) {
            return Ok(());
        }
        self.with(|pool| pool.record_stream(addr, stream))
    }
}
