//! The process's memory in figures, for the C library's questions and for statistics files.

use crate::core::{self, BUDGET, LARGE, OWN, PINNED};
use crate::small::own::classes::{CLASSES, WHOLE};
use std::sync::atomic::Ordering;

/// All sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Large buffers that the program has, now and at most.
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
    /// 0 if there is none.
    pub limit: u64,
    /// Bytes that all relatives hold.
    pub total: u64,
    pub refused: u64,
    /// Small objects that the program has; free ones in the lists of threads, of all and of the largest list owner; and
    /// the number of threads that have such lists.
    pub small_live: u64,
    pub lists_kept: u64,
    pub lists_most: u64,
    pub threads: u64,
    /// Bytes that a driver has registered or allocated itself; bytes that stay registered for the next buffer; and the
    /// number of registrations that needed no driver.
    pub pinned: u64,
    pub pinned_kept: u64,
    pub pinned_reused: u64,
}

/// Small objects that the program has, by class: the size of an object, and the bytes of all of them. Classes without
/// objects are left out. Objects above 256 KiB are reported as objects of 1 MiB, a size that none of them reaches.
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

/// The present figures.
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
