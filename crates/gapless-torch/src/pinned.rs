//! Pinned host memory that tensors hold: blocks of the host pool ([`crate::offload`]) that are used again only once no
//! work that was queued when they were given up can still copy from or to them.
//!
//! A block waits behind a fence over all streams of the card. Where a capture is open, which a fence would end, it
//! waits for a later look.

use crate::hooks::guarded;
use crate::offload::gapless_host_free;
use crate::state;
use gapless_cuda::locks::Lock;
use gapless_pool::{Device, EventHandle};
use std::ffi::c_void;

struct Waiting {
    device: i32,
    addr: u64,
    fence: Option<EventHandle>,
}

static WAITING: Lock<Vec<Waiting>> = Lock::new(Vec::new);

/// What becomes of a block now: whether it can be used again.
fn is_over(block: &mut Waiting) -> bool {
    let Some(mut card) = state::existing(block.device) else { return true };
    if block.fence.is_none() {
        if card.routings.has_capture() || card.pool.device().sees_capture(None) {
            return false;
        }
        match card.pool.device_mut().fence() {
            Ok(event) => block.fence = Some(event),
            // No fences, or a failed one: all work is waited for.
            Err(_) => return card.pool.device_mut().wait_for_all().is_ok(),
        }
    }
    let Some(event) = block.fence else { return false };
    let is_done = card.pool.device_mut().is_done(event).unwrap_or(true);
    if is_done {
        card.pool.device_mut().discard(event);
    }
    is_done
}

fn look() {
    let mut over = Vec::new();
    WAITING.lock().retain_mut(|block| {
        let is_over = is_over(block);
        if is_over {
            over.push(block.addr);
        }
        !is_over
    });
    for addr in over {
        gapless_host_free(addr as *mut c_void);
    }
}

/// A tensor gives a block of `gapless_host_alloc` up: it is free once work that is queued now is done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_pinned_free(device: i32, pointer: *mut c_void) {
    if state::is_forked() {
        return;
    }
    guarded((), || {
        let block = Waiting { device, addr: pointer as u64, fence: None };
        WAITING.lock().push(block);
        look();
    });
}

/// Looks which blocks that were given up are free now; how many still wait.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_pinned_look() -> usize {
    if state::is_forked() {
        return 0;
    }
    guarded(0, || {
        look();
        WAITING.lock().len()
    })
}
