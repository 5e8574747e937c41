//! `torch.cuda.MemPool` through the table: pools of the program, beside those of graphs.
//!
//! A pool with an allocator of its own gets its memory from that one (`suppliers.rs`). There `no_split` means that
//! segments are handed out whole. For other pools it changes nothing: their blocks lie in pages that are mapped and
//! given back separately, which is the purpose of `no_split`.

use super::layout::MempoolId;
use super::memory::on_card;
use super::{This, answer, refuse};
use crate::cards;
use crate::cxx::{PointerSet, SharedPtr};
use crate::foreign::Supplier;
use crate::pools;
use crate::process;
use crate::suppliers;
use gapless_pool::PoolKey;
use std::ffi::c_void;

/// `markCaptureBegin(device)`: a capture of the thread's current stream begins.
pub(super) unsafe extern "C-unwind" fn capture_begins(_: This, device: i8) {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
    unsafe { pools::mark_capture(device, true) };
}

/// `markCaptureEnd(device)`.
pub(super) unsafe extern "C-unwind" fn capture_ends(_: This, device: i8) {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
    unsafe { pools::mark_capture(device, false) };
}

/// `getPoolUseCount(device, pool)`.
pub(super) unsafe extern "C-unwind" fn use_count(_: This, device: i8, id: MempoolId) -> i32 {
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
    unsafe {
        answer(0, || {
            let uses = cards::existing(i32::from(device)).and_then(|card| card.uses_of(id.into()));
            Ok(uses.unwrap_or(0) as i32)
        })
    }
}

/// `createOrIncrefPool(device, pool, allocator)`: makes a pool, or adds a user. Graphs name a pool again that was used
/// during their capture, without an allocator.
pub(super) unsafe extern "C-unwind" fn create(
    _: This,
    device: i8,
    id: MempoolId,
    allocator: *const SharedPtr,
) {
    // SAFETY: PyTorch's C++ called and handles exceptions; the last argument is null or a live shared pointer.
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
    // SAFETY: PyTorch's C++ called and handles exceptions; it keeps the allocator alive while the pool is used.
    unsafe { make(device, id, SharedPtr::NULL, allocator) };
}

/// # Safety
/// Called from C++ that handles exceptions. `object` is null or a live allocator. If `shared` is not null, it keeps the
/// object alive.
unsafe fn make(device: i8, id: MempoolId, shared: SharedPtr, object: *mut c_void) {
    let pool = PoolKey::from(id);
    // SAFETY: PyTorch passed a live allocator of this build, and handles exceptions; no card is locked.
    unsafe {
        // A pool over the allocator that serves everything is an ordinary pool.
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

/// `setUseOnOOM(device, pool, on)`. PyTorch's destructor of a pool calls it, which must not throw. A forked child ends
/// its parent's pools too.
pub(super) unsafe extern "C-unwind" fn set_use_on_oom(_: This, device: i8, id: MempoolId, on: bool) {
    if process::is_forked() {
        return;
    }
    // SAFETY: PyTorch's C++ called; no card is locked.
    unsafe {
        answer((), || on_card(device, |card| card.set_spare(id.into(), on)));
    }
}

/// `setUseOnOOM(device, pool)` up to 2.10.
pub(super) unsafe extern "C-unwind" fn use_on_oom(this: This, device: i8, id: MempoolId) {
    // SAFETY: PyTorch's C++ called; no card is locked.
    unsafe { set_use_on_oom(this, device, id, true) };
}

/// `setNoSplit(device, pool)`.
pub(super) unsafe extern "C-unwind" fn set_no_split(_: This, device: i8, id: MempoolId) {
    let pool = PoolKey::from(id);
    // SAFETY: PyTorch's C++ called and handles exceptions; no card is locked.
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

/// `checkPoolLiveAllocations(device, pool, expected)`: true if the pool's live allocations are exactly these.
pub(super) unsafe extern "C-unwind" fn has_live_allocations(
    _: This,
    device: i8,
    id: MempoolId,
    expected: *const PointerSet,
) -> bool {
    // SAFETY: PyTorch's C++ called and handles exceptions; the last argument is a live set.
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
