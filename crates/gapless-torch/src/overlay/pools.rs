//! `torch.cuda.MemPool` through the table: pools of the program's own, beside those of graphs.
//!
//! A pool with an allocator of its own is served from what that one supplies (`suppliers.rs`), and there `no_split`
//! means that segments are handed out whole. For other pools it changes nothing: blocks lie in pages that are mapped
//! and given back by themselves, which is what it is for.

use super::memory::on_card;
use super::{This, answer, refuse};
use crate::cxx::{PointerSet, SharedPtr};
use crate::foreign::Supplier;
use crate::routing::{self, MempoolId};
use crate::{state, suppliers};
use gapless_pool::PoolKey;
use std::ffi::c_void;

/// `markCaptureBegin(device)`: the thread's current stream is captured now.
pub(super) unsafe extern "C-unwind" fn capture_begins(_: This, device: i8) {
    // SAFETY: C++ called, and may be thrown through.
    unsafe { routing::mark_capture(device, true) };
}

/// `markCaptureEnd(device)`.
pub(super) unsafe extern "C-unwind" fn capture_ends(_: This, device: i8) {
    // SAFETY: C++ called, and may be thrown through.
    unsafe { routing::mark_capture(device, false) };
}

/// `getPoolUseCount(device, pool)`.
pub(super) unsafe extern "C-unwind" fn use_count(_: This, device: i8, id: MempoolId) -> i32 {
    // SAFETY: C++ called, and may be thrown through.
    unsafe {
        answer(0, || {
            let uses = state::existing(i32::from(device)).and_then(|card| card.uses_of(id.into()));
            Ok(uses.unwrap_or(0) as i32)
        })
    }
}

/// `createOrIncrefPool(device, pool, allocator)`: a pool is there, or has one user more. Graphs name a pool again that
/// was used while they were captured, without an allocator.
pub(super) unsafe extern "C-unwind" fn create(
    _: This,
    device: i8,
    id: MempoolId,
    allocator: *const SharedPtr,
) {
    // SAFETY: C++ called, and may be thrown through; the last argument is a live shared pointer.
    unsafe {
        let shared = allocator.as_ref().map_or(SharedPtr::NULL, SharedPtr::clone);
        let object = shared.object;
        make(device, id, shared, object);
    }
}

/// `createOrIncrefPool(device, pool, allocator)` up to 2.10.
pub(super) unsafe extern "C-unwind" fn create_plain(
    _: This,
    device: i8,
    id: MempoolId,
    allocator: *mut c_void,
) {
    // SAFETY: C++ called, and may be thrown through.
    unsafe { make(device, id, SharedPtr::NULL, allocator) };
}

/// # Safety
/// Called from C++ that may be thrown through; `object` is null or a live allocator, which `shared` keeps alive where
/// it is not null.
unsafe fn make(device: i8, id: MempoolId, shared: SharedPtr, object: *mut c_void) {
    let pool = PoolKey::from(id);
    // SAFETY: as the caller says.
    unsafe {
        // A pool over the allocator that serves everything is a pool like any other.
        let is_supplied = !object.is_null() && !super::is_ours(object);
        let supplier = is_supplied.then(|| Supplier::new(shared, object, super::supplier_places()));
        answer((), || {
            on_card(device, |card| {
                card.create(pool);
                if is_supplied {
                    card.pool.set_supplied(pool, false);
                }
            })
        });
        if let Some(supplier) = supplier {
            suppliers::add(i32::from(device), pool, supplier);
        }
    }
}

/// `setUseOnOOM(device, pool, on)`. PyTorch's destructor of a pool calls it, which nothing may be thrown through: a
/// forked child ends its parent's pools too.
pub(super) unsafe extern "C-unwind" fn set_use_on_oom(_: This, device: i8, id: MempoolId, on: bool) {
    if state::is_forked() {
        return;
    }
    // SAFETY: C++ called, and may be thrown through.
    unsafe {
        answer((), || on_card(device, |card| card.set_spare(id.into(), on)));
    }
}

/// `setUseOnOOM(device, pool)` up to 2.10.
pub(super) unsafe extern "C-unwind" fn use_on_oom(this: This, device: i8, id: MempoolId) {
    // SAFETY: C++ called, and may be thrown through.
    unsafe { set_use_on_oom(this, device, id, true) };
}

/// `setNoSplit(device, pool)`.
pub(super) unsafe extern "C-unwind" fn set_no_split(_: This, device: i8, id: MempoolId) {
    let pool = PoolKey::from(id);
    // SAFETY: C++ called, and may be thrown through.
    unsafe {
        answer((), || {
            on_card(device, |card| {
                if card.pool.is_supplied(pool) {
                    card.pool.set_supplied(pool, true);
                }
            })
        });
    }
}

/// `checkPoolLiveAllocations(device, pool, expected)`: whether these are just what callers hold in the pool.
pub(super) unsafe extern "C-unwind" fn has_live_allocations(
    _: This,
    device: i8,
    id: MempoolId,
    expected: *const PointerSet,
) -> bool {
    // SAFETY: C++ called, and may be thrown through; the last argument is a live set.
    unsafe {
        answer(false, || {
            let mut expected = (*expected).to_vec();
            expected.sort_unstable();
            let live = on_card(device, |card| {
                card.uses_of(id.into()).map(|_| {
                    let all = card.pool.allocations_in(id.into());
                    all.iter().filter(|a| a.is_live).map(|a| a.addr).collect::<Vec<u64>>()
                })
            })?;
            match live {
                Some(live) => Ok(live == expected),
                None => refuse("Could not find pool of id"),
            }
        })
    }
}
