//! What the process holds, for the C library's questions and for statistics files.

use crate::core::{self, BUDGET, LARGE};
use std::sync::atomic::Ordering;

/// All sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Large buffers in the program's hands, now and at most.
    pub large_live: u64,
    pub large_most: u64,
    /// Memory of freed large buffers that is kept for the next one.
    pub large_kept: u64,
    /// Memory of small objects, in use or not.
    pub small_held: u64,
    /// Large buffers that were allocated and freed.
    pub allocations: u64,
    pub frees: u64,
    /// Bytes of large buffers that were handed out, and those of them that needed no fresh memory.
    pub handed_out: u64,
    pub reused: u64,
    pub moved: u64,
    pub copied: u64,
    pub given_back: u64,
    pub huge_pages: bool,
    /// 0: none.
    pub limit: u64,
    /// What all relatives hold.
    pub total: u64,
    pub refused: u64,
}

/// As it is now.
#[must_use]
pub fn now() -> Stats {
    let held = LARGE.held();
    let counters = &LARGE.counters;
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let granule = crate::units::GRANULE as u64;
    Stats {
        large_live: held.live,
        large_most: read(&counters.most_live),
        large_kept: held.kept,
        small_held: core::small_held(),
        allocations: read(&counters.allocations),
        frees: read(&counters.frees),
        handed_out: read(&counters.granules) * granule,
        reused: read(&counters.reused) * granule,
        moved: read(&counters.moved),
        copied: read(&counters.copied),
        given_back: read(&counters.given_back),
        huge_pages: LARGE.has_huge_pages(),
        limit: BUDGET.limit(),
        total: BUDGET.total(),
        refused: BUDGET.refused(),
    }
}
