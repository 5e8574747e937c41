//! What the process holds, for the C library's questions and for statistics files.

use crate::core::{self, BUDGET, LARGE, OWN, PINNED};
use crate::small::own::classes::{CLASSES, WHOLE};
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
    /// Small objects in the program's hands; free in the lists of threads, all together and the most of one; threads
    /// that have such lists.
    pub small_live: u64,
    pub lists_kept: u64,
    pub lists_most: u64,
    pub threads: u64,
    /// Registered with a driver, or allocated by it; registered still, for the next buffer; registrations that needed
    /// no driver.
    pub pinned: u64,
    pub pinned_kept: u64,
    pub pinned_reused: u64,
}

/// Small objects in the program's hands, by class: the size of an object, and the bytes of all of them. Classes without
/// objects are left out. Objects above 256 KiB are told as those of 1 MiB, which none of them reaches.
pub fn each_class(mut visit: impl FnMut(u64, u64)) {
    let figures = OWN.figures();
    for (class, live) in figures.live.iter().enumerate().skip(1).filter(|(_, live)| **live > 0) {
        let size = if class == usize::from(WHOLE) {
            crate::units::LARGE as u64
        } else {
            u64::from(CLASSES[class].size)
        };
        visit(size, *live);
    }
}

/// As it is now.
#[must_use]
pub fn now() -> Stats {
    let held = LARGE.held();
    let counters = &LARGE.counters;
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let granule = crate::units::GRANULE as u64;
    let (allocations, frees, handed_out, reused) = LARGE.figures();
    let small = OWN.figures();
    let (registered, pinned_kept, pinned_reused) = LARGE.pinned.figures();
    Stats {
        large_live: held.live,
        large_most: read(&counters.most_live),
        large_kept: held.kept,
        small_held: core::small_held(),
        allocations,
        frees,
        handed_out: handed_out * granule,
        reused: reused * granule,
        moved: read(&counters.moved),
        copied: read(&counters.copied),
        given_back: read(&counters.given_back),
        huge_pages: LARGE.has_huge_pages(),
        limit: BUDGET.limit(),
        total: BUDGET.total(),
        refused: BUDGET.refused(),
        small_live: small.live.iter().sum(),
        lists_kept: small.kept.iter().sum(),
        lists_most: small.most_kept,
        threads: small.threads,
        pinned: registered + PINNED.figures().0,
        pinned_kept,
        pinned_reused,
    }
}
