//! Pinned host memory that tensors hold: blocks of the host pool ([`crate::offload`]). A block is used again only after
//! all work that was queued when it was given up, because that work may copy from it or to it.
//!
//! A thread waits for that work ([`crate::queued`]).

use crate::hooks::guarded;
use crate::offload::gapless_host_free;
use crate::queued::{self, Queued};
use crate::state;
use gapless_cuda::locks::Lock;
use std::ffi::c_void;

struct Waiting {
    device: i32,
    addr: u64,
    queued: Option<Queued>,
}

static WAITING: Lock<Vec<Waiting>> = Lock::new(Vec::new);

/// True if a block can be used again.
fn is_over(block: &mut Waiting) -> bool {
    if state::existing(block.device).is_none() {
        return true;
    }
    if block.queued.is_none() {
        block.queued = queued::now(block.device);
    }
    block.queued.is_some_and(|queued| queued::is_done(block.device, queued))
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

/// A tensor gives up a block of `gapless_host_alloc`. The block is free once the work that is queued now is done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_pinned_free(device: i32, pointer: *mut c_void) {
    if state::is_forked() {
        return;
    }
    guarded((), || {
        let block = Waiting { device, addr: pointer as u64, queued: None };
        WAITING.lock().push(block);
        look();
    });
}

/// Frees the blocks that can be used again. Returns the number of those that still wait.
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
