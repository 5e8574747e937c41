//! `torch.cuda.memory_stats` through the table.

use super::layout::{DeviceStats, layouts, write_stats};
use super::{This, answer, must_be_valid};
use crate::card::Card;
use crate::guard::guarded;
use crate::{cards, stats};

fn on_existing(device: i32, work: impl FnOnce(&mut Card)) {
    guarded((), || {
        if let Some(mut card) = cards::existing(device) {
            work(&mut card);
        }
    });
}

/// `getDeviceStats(device)`.
pub(super) unsafe extern "C-unwind" fn device_stats(
    out: *mut DeviceStats,
    _: This,
    device: i8,
) -> *mut DeviceStats {
    // SAFETY: PyTorch's C++ called through the table and handles exceptions; no card is locked.
    unsafe { answer((), || must_be_valid(device)) };
    // A card that was not used has zeros, as with PyTorch's allocator.
    let mut found = DeviceStats { max_split_size: -1, ..DeviceStats::default() };
    let mut pools = Vec::new();
    on_existing(i32::from(device), |card| {
        found = stats::of(card);
        pools = stats::of_pools(card);
    });
    // SAFETY: C++ passes `out` as the place for the result, with room for this build's structure.
    unsafe { write_stats(out, &found, &pools, layouts()) };
    out
}

/// `resetAccumulatedStats(device)`.
pub(super) unsafe extern "C-unwind" fn reset_accumulated(_: This, device: i8) {
    // SAFETY: PyTorch's C++ called through the table and handles exceptions; no card is locked.
    unsafe { answer((), || must_be_valid(device)) };
    on_existing(i32::from(device), stats::restart_totals);
}

/// `resetPeakStats(device)`.
pub(super) unsafe extern "C-unwind" fn reset_peak(_: This, device: i8) {
    // SAFETY: PyTorch's C++ called through the table and handles exceptions; no card is locked.
    unsafe { answer((), || must_be_valid(device)) };
    on_existing(i32::from(device), stats::restart_peaks);
}
