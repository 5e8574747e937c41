//! `torch.cuda.MemPool` through the table: pools of the program's own, beside those of graphs.
//!
//! A pool with an allocator of its own is refused: requests would have to be served by it. `no_split` changes nothing:
//! blocks lie in pages that are mapped and given back by themselves, which is what it is for.

use super::memory::on_card;
use super::{This, answer, refuse};
use crate::cxx::{PointerSet, SharedPtr};
use crate::routing::MempoolId;
use crate::state;

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

/// `createOrIncrefPool(device, pool, allocator)`.
pub(super) unsafe extern "C-unwind" fn create(
    _: This,
    device: i8,
    id: MempoolId,
    allocator: *const SharedPtr,
) {
    // SAFETY: C++ called, and may be thrown through; the last argument is a live shared pointer.
    unsafe {
        answer((), || {
            if allocator.as_ref().is_some_and(|allocator| !allocator.object.is_null()) {
                return refuse(
                    "gapless: a MemPool cannot use another allocator while Gapless serves the memory: create it without one, as \
                     torch.cuda.MemPool(), or run this program without Gapless",
                );
            }
            on_card(device, |card| card.create(id.into()))
        });
    }
}

/// `setUseOnOOM(device, pool, on)`.
pub(super) unsafe extern "C-unwind" fn set_use_on_oom(_: This, device: i8, id: MempoolId, on: bool) {
    // SAFETY: C++ called, and may be thrown through.
    unsafe {
        answer((), || on_card(device, |card| card.set_spare(id.into(), on)));
    }
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
