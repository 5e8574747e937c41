//! PyTorch's calls about private pools: the pool of a request, and their begin, end and release. Filters, trackers and
//! the exceptions of mistakes may pass the callers, so no card is locked around a call.

use crate::card::Card;
use crate::exception::{self, Kind};
use crate::foreign::{self, Filter};
use crate::guard::guarded;
use crate::opening::with_card;
use crate::overlay::layout::MempoolId;
use crate::process::{self, CardError};
use crate::routing::{self, Capture, Routing};
use crate::{history, suppliers};
use gapless_pool::{PoolKey, StreamHandle};
use std::ffi::c_void;

/// The pool of a request of this thread on `stream`: that of the newest routing that takes it. A supplier's own
/// requests go to the common pool.
///
/// # Safety
/// C++ exceptions may pass the callers: no guard, and no card locked.
#[inline]
#[must_use]
pub unsafe fn pool_of(device: i32, stream: *mut c_void) -> PoolKey {
    if suppliers::is_asked() {
        return PoolKey(0, 0);
    }
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    unsafe { routing::pool_of(device, stream) }
}

/// A capture or a memory pool begins to take requests. Throws if the pool has a routing already, as PyTorch's own
/// allocator does: PyTorch's call to end a routing names only the pool.
///
/// # Safety
/// As [`pool_of`].
pub unsafe fn begin(device: i32, id: MempoolId, filter: Filter) {
    if process::is_forked() {
        return;
    }
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    let capture = unsafe { Capture::of(device, &filter) };
    let routing = Routing { pool: id.into(), filter };
    let has_begun = guarded(true, || with_card(device, |card| card.begin(routing, capture)).unwrap_or(true));
    if !has_begun {
        let message = "beginAllocateToPool: already recording to mempool_id".to_owned();
        // SAFETY: our caller lets exceptions pass; the guard has ended and the card is unlocked.
        unsafe { exception::throw(Kind::Error, message) };
    }
}

/// PyTorch reports that a capture of this thread's current stream begins or ends.
///
/// # Safety
/// As [`pool_of`].
pub unsafe fn mark_capture(device: i8, begins: bool) {
    let Some(torch) = foreign::torch().filter(|_| !process::is_forked()) else { return };
    // SAFETY: our caller lets exceptions pass, and no card is locked here.
    let stream = StreamHandle(unsafe { torch.current_stream(device) } as u64);
    guarded((), || {
        let mark = |card: &mut Card| card.mark_capture(stream, begins);
        let _: Result<(), CardError> = with_card(i32::from(device), mark);
    });
}

/// A capture or a memory pool takes no more requests. Throws if the pool has no routing, as PyTorch's own allocator
/// does.
///
/// # Safety
/// As [`pool_of`].
pub unsafe fn end(device: i32, id: MempoolId) {
    let has_ended = guarded(true, || with_card(device, |card| card.end(id.into())).unwrap_or(true));
    if !has_ended {
        let message = "endAllocatePool: not currently recording to mempool_id".to_owned();
        // SAFETY: our caller lets exceptions pass; the guard has ended and the card is unlocked.
        unsafe { exception::throw(Kind::Error, message) };
    }
}

/// A private pool has one user less. If it was the last, trackers hear of the memory before it goes. Throws if there
/// never was such a pool, as PyTorch's own allocator does.
///
/// # Safety
/// As [`pool_of`].
pub unsafe fn release(device: i32, id: MempoolId) {
    let pool = PoolKey::from(id);
    let is_known = guarded(true, || with_card(device, |card| card.uses_of(pool).is_some()).unwrap_or(true));
    if !is_known {
        let message =
            format!("releasePool: pool ({}, {}) was never used, or is released already", id.first, id.second);
        // SAFETY: our caller lets exceptions pass; the guard has ended and the card is unlocked.
        unsafe { exception::throw(Kind::Error, message) };
    }
    let is_unused = guarded(false, || with_card(device, |card| card.release(pool)).unwrap_or(false));
    if is_unused {
        // SAFETY: our caller lets exceptions pass; the guard has ended and the card is unlocked.
        unsafe { history::tell_trackers_first() };
        guarded((), || {
            let _: Result<(), CardError> = with_card(device, |card| card.let_go(pool));
        });
    }
}
