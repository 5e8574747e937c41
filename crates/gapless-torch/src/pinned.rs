//! Pinned host memory that tensors hold: blocks of the host pool ([`crate::offload`]). A block is used again only after
//! all work that was queued when it was given up, because that work may copy from it or to it.
//!
//! A thread waits for that work ([`crate::queued`]).

use crate::cards;
use crate::offload;
use crate::queued::{self, Queued};
use gapless_cuda::locks::Lock;

struct Waiting {
    device: i32,
    addr: u64,
    queued: Option<Queued>,
}

static WAITING: Lock<Vec<Waiting>> = Lock::new(Vec::new);

/// True if a block can be used again.
fn is_over(block: &mut Waiting) -> bool {
    if cards::existing(block.device).is_none() {
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
        offload::free(addr);
    }
}

/// A tensor gives up a block. It is free once the work that is queued now is done.
pub(crate) fn give_up(device: i32, addr: u64) {
    WAITING.lock().push(Waiting { device, addr, queued: None });
    look();
}

/// Number of blocks that still wait, after those that can be used again are freed.
pub(crate) fn still_waiting() -> usize {
    look();
    WAITING.lock().len()
}
