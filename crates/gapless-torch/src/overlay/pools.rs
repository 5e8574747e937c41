//! `torch.cuda.MemPool` through the table: pools of the program's own, beside those of graphs.
//!
//! A pool with an allocator of its own is refused: requests would have to be served by it. `no_split` changes nothing:
//! blocks lie in pages that are mapped and given back by themselves, which is what it is for.

use super::memory::on_card;
use super::{Refusal, This, answer, refuse};
use crate::cxx::{PointerSet, SharedPtr};
use crate::routing::{self, MempoolId};
use crate::state;
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
        let allocator = allocator.as_ref().map_or(std::ptr::null_mut(), |allocator| allocator.object);
        answer((), || make(device, id, allocator));
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
    unsafe { answer((), || make(device, id, allocator)) };
}

fn make(device: i8, id: MempoolId, allocator: *mut c_void) -> Result<(), Refusal> {
    if !allocator.is_null() {
        return refuse(
            "gapless: a MemPool cannot use another allocator while Gapless serves the memory: create it without one, as \
             torch.cuda.MemPool(), or run this program without Gapless",
        );
    }
    on_card(device, |card| card.create(id.into()))
}

/// `setUseOnOOM(device, pool, on)`.
pub(super) unsafe extern "C-unwind" fn set_use_on_oom(_: This, device: i8, id: MempoolId, on: bool) {
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
pub(super) unsafe extern "C-unwind" fn set_no_split(_: This, _: i8, _: MempoolId) {}

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
