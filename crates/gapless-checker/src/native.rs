//! The memory that PyTorch's own allocator would hold, simulated beside the checked one. If native PyTorch serves a
//! request from its stream's cache, or from new memory, the checked allocator must not refuse it, and must not wait.
//!
//! The simulation has less of the card than the allocator has, because pages are coarser than blocks, and lie where
//! they were first mapped.

use gapless_pool::device::StreamHandle;
use gapless_pool::pool::PoolKey;
use gapless_pool::supplied::{Owner, Supplied};
use rustc_hash::FxHashMap;

/// The simulation's part of the card.
const PART: u64 = 4;
const OF_PARTS: u64 = 3;

#[derive(Debug, Default)]
pub(crate) struct Native {
    memory: Supplied,
    next: u64,
    live: FxHashMap<u32, u64>,
    /// Bytes that private pools held when it began.
    beside: u64,
    /// True once it had to give back what streams had cached, which the allocator may not need: no comparison is fair
    /// then.
    is_over: bool,
    /// Freed blocks that other streams may still use, free after the next wait for all work.
    late: Vec<u64>,
}

impl Native {
    /// An empty simulation, beside `beside` bytes that private pools hold.
    pub(crate) fn beside(beside: u64) -> Native {
        Native { beside, ..Native::default() }
    }

    /// Requests `size` bytes, with a limit of `most` for all. True if it is served without a wait for a stream.
    pub(crate) fn alloc(&mut self, id: u32, size: u64, stream: u64, pool: PoolKey, most: u64) -> bool {
        self.memory.set_pool(pool, false);
        let owner = Owner::of(pool, StreamHandle(stream), size);
        let most = (most / PART * OF_PARTS).saturating_sub(self.beside);
        self.is_over |= self.memory.held() > most;
        if let Some(bytes) = self.memory.missing(owner, size) {
            self.is_over |= self.memory.held() + bytes > most;
            let addr = self.next.max(1 << 40);
            self.next = addr + bytes;
            self.memory.add(owner, addr, bytes);
        }
        self.live.extend(self.memory.take(owner, size).map(|(addr, _)| (id, addr)));
        !self.is_over
    }

    /// Frees an allocation; `is_used` is true if other streams may still use it.
    pub(crate) fn free(&mut self, id: u32, is_used: bool) {
        match self.live.remove(&id) {
            Some(addr) if is_used => self.late.push(addr),
            Some(addr) => self.memory.release(addr),
            None => {}
        }
    }

    /// Gives back all free memory, after a wait for all work, as the program asked. Private pools keep theirs.
    pub(crate) fn empty(&mut self) {
        for addr in std::mem::take(&mut self.late) {
            self.memory.release(addr);
        }
        self.memory.give_back(|pool| !pool.is_private());
        self.memory.returned.clear();
    }
}
