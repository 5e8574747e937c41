//! Allocators of the program's own that supply the memory of a `torch.cuda.MemPool`: vLLM's for memory that sleeps,
//! NCCL's for buffers that it registers, that of symmetric memory.
//!
//! They are foreign code: they may throw, take Python's lock, or allocate. So they are called with no card locked. A
//! request first gets the segment that it needs, then it is served; segments that a card let go are put down under its
//! lock and go back to their supplier after it, when trackers have heard of it.

use crate::foreign::Supplier;
use crate::hooks::guarded;
use crate::{history, state};
use gapless_cuda::locks::{self, Lock};
use gapless_pool::{DeviceError, PoolKey, Returned, StreamHandle};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One pool's, on one card.
type Known = (i32, PoolKey, Arc<Supplier>);

static KNOWN: Lock<Vec<Known>> = Lock::new(Vec::new);
/// Whether there ever was one: programs without pay for one look.
static USED: AtomicBool = AtomicBool::new(false);

/// Requests of one pool that may take each other's segment before one gives up.
const TRIES: usize = 16;

thread_local! {
    static ASKED: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, requests of this thread are a supplier's own: the pool that it supplies does not serve them.
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

/// Whether a supplier asks, in this thread: one may be built on torch's current allocator.
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

/// A pool that was just made has this supplier. One that it had before stays.
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

/// Why a supplier's pool cannot serve a request.
#[derive(Debug)]
pub(crate) enum Refused {
    Memory(DeviceError),
    /// What the supplier gave lies in a block that Gapless handed out: a free there could mean either.
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

/// Gets the segment that a request needs first, where its pool has a supplier and nothing free. What the supplier has
/// free elsewhere is asked for once more after everything that is free went back.
///
/// # Safety
/// Where C++ may be thrown through.
pub(crate) unsafe fn prepare(
    device: i32,
    size: u64,
    stream: StreamHandle,
    pool: PoolKey,
) -> Result<(), Refused> {
    let Some(supplier) = of(device, pool) else { return Ok(()) };
    for _ in 0..TRIES {
        let missing = || {
            let ask = |card: &mut state::Card| card.pool.missing_segment(size, stream, pool);
            state::with_card(device, ask).unwrap_or(Ok(None))
        };
        let Some(bytes) = guarded(Ok(None), missing).map_err(Refused::Memory)? else { return Ok(()) };
        // SAFETY: as the caller says; no card is locked.
        let first = unsafe {
            let _asked = Asked::new();
            supplier.alloc(bytes)
        };
        // SAFETY: as above.
        let addr = unsafe {
            match first {
                0 => {
                    guarded((), || {
                        let _ = state::with_card(device, state::Card::trim);
                    });
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
        let is_ours = |card: &mut state::Card| card.pool.containing(addr).is_some();
        if guarded(false, || state::with_card(device, is_ours).unwrap_or(false)) {
            // SAFETY: as the caller says; nobody was told of this memory.
            unsafe { supplier.free(addr) };
            return Err(Refused::Ours { addr });
        }
        let add = |card: &mut state::Card| card.pool.add_segment((addr, bytes), size, stream, pool);
        if !guarded(false, || state::with_card(device, add).unwrap_or(false)) {
            // SAFETY: as the caller says; nobody was told of this memory.
            unsafe { supplier.free(addr) };
            return Err(Refused::Memory(DeviceError::OutOfMemory));
        }
    }
    Ok(())
}

/// Before a request fails, suppliers get back what is free in pools that nobody uses any more, as natively. Whether
/// there was something.
///
/// # Safety
/// As [`give_back`].
pub(crate) unsafe fn reclaim(device: i32) -> bool {
    let has_some = guarded(false, || {
        let trim = |card: &mut state::Card| card.pool.has_idle_segments() && card.trim() > 0;
        state::with_card(device, trim).unwrap_or(false)
    });
    if has_some {
        // SAFETY: as the caller says.
        unsafe { give_back() };
    }
    has_some
}

/// Gives suppliers back what cards let go, and forgets those whose pools have ended.
///
/// # Safety
/// Where C++ may be thrown through; no card is locked.
pub(crate) unsafe fn give_back() {
    if !is_used() || state::is_forked() {
        return;
    }
    let mut returned: Vec<(i32, Returned)> = Vec::new();
    guarded((), || {
        state::for_each(|device, card| {
            returned.extend(card.pool.take_returned().into_iter().map(|segment| (device, segment)));
        });
    });
    // SAFETY: as the caller says. Whoever registered this memory hears of its end before it goes.
    unsafe { history::tell_trackers_first() };
    for (device, segment) in returned {
        if let Some(supplier) = of(device, segment.pool) {
            // SAFETY: as the caller says; the pool waited for all work before it let the segment go.
            unsafe { supplier.free(segment.addr) };
        }
    }
    let ended = guarded(Vec::new(), || {
        let mut ended = Vec::new();
        let pools: Vec<(i32, PoolKey)> = known().iter().map(|(card, pool, _)| (*card, *pool)).collect();
        for (device, pool) in pools {
            let end = |card: &mut state::Card| card.pool.end_supplied(pool);
            if state::with_card(device, end).unwrap_or(false) {
                ended.push((device, pool));
            }
        }
        ended
    });
    // Their ends are foreign code too: after the lock.
    let gone: Vec<Known> = {
        let mut known = known();
        let (gone, kept) = known.drain(..).partition(|(card, pool, _)| ended.contains(&(*card, *pool)));
        *known = kept;
        gone
    };
    drop(gone);
}
