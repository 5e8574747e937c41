//! Allocators of the program that supply the memory of a `torch.cuda.MemPool`: vLLM's for memory that sleeps, NCCL's
//! for buffers that it registers, symmetric memory's.
//!
//! They are foreign code that may throw, take Python's lock, or allocate, so they are called with no card locked. A
//! request first gets the segment that it needs and is then served. A card queues the segments that it lets go under
//! its lock. They go back to their supplier after it, when trackers have heard.

use crate::card;
use crate::cards;
use crate::foreign::Supplier;
use crate::guard::guarded;
use crate::opening;
use crate::process;
use crate::{history, outside};
use gapless_cuda::locks::{self, Lock};
use gapless_pool::{DeviceError, PoolKey, Returned, StreamHandle};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The supplier of one pool on one card.
type Known = (i32, PoolKey, Arc<Supplier>);

static KNOWN: Lock<Vec<Known>> = Lock::new(Vec::new);
/// True once a pool had a supplier: other programs pay only this load.
static USED: AtomicBool = AtomicBool::new(false);

/// Requests of one pool can take each other's segments. After so many tries a request gives up.
const TRIES: usize = 16;

thread_local! {
    static ASKED: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, this thread's requests come from a supplier, so the pool that it supplies must not serve them.
struct Asked;

impl Asked {
    fn new() -> Asked {
        ASKED.set(ASKED.get() + 1);
        Asked
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        ASKED.set(ASKED.get() - 1);
    }
}

/// True if this thread's request comes from a supplier: one may be built on torch's current allocator.
#[inline]
pub(crate) fn is_asked() -> bool {
    is_used() && ASKED.get() > 0
}

fn known() -> locks::Guard<'static, Vec<Known>> {
    KNOWN.lock()
}

#[inline]
pub(crate) fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Notes the supplier of a pool that was just made. If the pool has one already, that one stays.
pub(crate) fn add(device: i32, pool: PoolKey, supplier: Supplier) {
    USED.store(true, Ordering::Relaxed);
    let mut known = known();
    if !known.iter().any(|(card, key, _)| (*card, *key) == (device, pool)) {
        known.push((device, pool, Arc::new(supplier)));
    }
}

fn of(device: i32, pool: PoolKey) -> Option<Arc<Supplier>> {
    known().iter().find(|(card, key, _)| (*card, *key) == (device, pool)).map(|(.., found)| found.clone())
}

/// The reason why a supplier's pool cannot serve a request.
#[derive(Debug)]
pub(crate) enum Refused {
    Memory(DeviceError),
    /// The supplier's memory lies in a block that Gapless handed out. A free of its address would be ambiguous.
    Ours {
        addr: u64,
    },
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Memory(error) => write!(f, "{error:?}"),
            Refused::Ours { addr } => write!(
                f,
                "gapless: the allocator of this torch.cuda.MemPool gave memory at {addr:#x}, which it has from torch's \
                 current allocator, that is from Gapless: let it take memory from the driver, or use a MemPool without \
                 an allocator"
            ),
        }
    }
}

/// Gets the segment that a request needs, if its pool has a supplier and nothing free. If the supplier has no memory,
/// all free memory goes back first, and the supplier is asked again.
///
/// # Safety
/// C++ exceptions may pass the callers; no card is locked.
pub(crate) unsafe fn prepare(
    device: i32,
    size: u64,
    stream: StreamHandle,
    pool: PoolKey,
) -> Result<(), Refused> {
    let Some(supplier) = of(device, pool) else { return Ok(()) };
    for _ in 0..TRIES {
        let missing = || {
            let ask = |card: &mut card::Card| card.pool.missing_segment(size, stream, pool);
            opening::with_card(device, ask).unwrap_or(Ok(None))
        };
        let Some(bytes) = guarded(Ok(None), missing).map_err(Refused::Memory)? else { return Ok(()) };
        // SAFETY: our caller lets exceptions pass; the guard has ended and the card is unlocked.
        let first = unsafe {
            let _asked = Asked::new();
            supplier.alloc(bytes)
        };
        // SAFETY: our caller lets exceptions pass. The guard around `trim` ends before the next call.
        let addr = unsafe {
            match first {
                0 => {
                    guarded(0, || outside::trim(device));
                    give_back();
                    let _asked = Asked::new();
                    supplier.alloc(bytes)
                }
                addr => addr,
            }
        };
        if addr == 0 {
            return Err(Refused::Memory(DeviceError::OutOfMemory));
        }
        let is_ours = |card: &mut card::Card| card.pool.containing(addr).is_some();
        if guarded(false, || opening::with_card(device, is_ours).unwrap_or(false)) {
            // SAFETY: our caller lets exceptions pass. The supplier gave this address, and nothing else knows it.
            unsafe { supplier.free(addr) };
            return Err(Refused::Ours { addr });
        }
        let add = |card: &mut card::Card| card.pool.add_segment((addr, bytes), size, stream, pool);
        if !guarded(false, || opening::with_card(device, add).unwrap_or(false)) {
            // SAFETY: our caller lets exceptions pass. The supplier gave this address, and the pool refused it.
            unsafe { supplier.free(addr) };
            return Err(Refused::Memory(DeviceError::OutOfMemory));
        }
    }
    Ok(())
}

/// Before a request fails, suppliers get back free memory of pools without users, as in PyTorch. True if there was
/// some.
///
/// # Safety
/// As [`give_back`].
pub(crate) unsafe fn reclaim(device: i32) -> bool {
    let has_some = guarded(false, || {
        let has_idle = |card: &mut card::Card| card.pool.has_idle_segments();
        opening::with_card(device, has_idle).unwrap_or(false) && outside::trim(device) > 0
    });
    if has_some {
        // SAFETY: our caller lets exceptions pass; the guard has ended and the card is unlocked.
        unsafe { give_back() };
    }
    has_some
}

/// Gives segments that cards let go back to their suppliers, and forgets suppliers whose pools have ended.
///
/// # Safety
/// C++ exceptions may pass the callers; no card is locked.
pub(crate) unsafe fn give_back() {
    if !is_used() || process::is_forked() {
        return;
    }
    let mut returned: Vec<(i32, Returned)> = Vec::new();
    guarded((), || {
        cards::for_each(|device, card| {
            returned.extend(card.pool.take_returned().into_iter().map(|segment| (device, segment)));
        });
    });
    // SAFETY: our caller lets exceptions pass; no card is locked. Trackers hear of the end before the memory goes.
    unsafe { history::tell_trackers_first() };
    for (device, segment) in returned {
        if let Some(supplier) = of(device, segment.pool) {
            // SAFETY: our caller lets exceptions pass. The supplier gave this segment, and no work uses it any more.
            unsafe { supplier.free(segment.addr) };
        }
    }
    let ended = guarded(Vec::new(), || {
        let mut ended = Vec::new();
        let pools: Vec<(i32, PoolKey)> = known().iter().map(|(card, pool, _)| (*card, *pool)).collect();
        for (device, pool) in pools {
            let end = |card: &mut card::Card| card.pool.end_supplied(pool);
            if opening::with_card(device, end).unwrap_or(false) {
                ended.push((device, pool));
            }
        }
        ended
    });
    // Their destructors are foreign code too, so they run after the lock is released.
    let gone: Vec<Known> = {
        let mut known = known();
        let (gone, kept) = known.drain(..).partition(|(card, pool, _)| ended.contains(&(*card, *pool)));
        *known = kept;
        gone
    };
    drop(gone);
}
