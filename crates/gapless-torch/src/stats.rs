//! The statistics of a card in the sense of `torch.cuda.memory_stats`: as PyTorch's structure through the table, and as
//! JSON for Python.
//!
//! Segments, and free blocks beside others in one (inactive and split), are counted as the snapshot shows them, so the
//! two agree. The pool counts them as they change, so no question walks over blocks. They are read only when the
//! program asks, so their peaks and totals cover only those moments. Nothing is oversize.

use crate::budgets;
use crate::checked;
use crate::hooks::guarded;
use crate::overlay::layout::{self, DeviceStats, Stat, StatArray};
use crate::overlay::{self, This, answer};
use crate::regions;
use crate::sharing;
use crate::state::{self, Card, Since};
use gapless_pool::{ClassStats, Gauge, PoolKey, Rung, SegmentCounts, Stats};
use std::fmt::Write;

/// A quantity, with its totals counted from `since`.
fn stat(now: Gauge, since: Gauge) -> Stat {
    let freed = |gauge: Gauge| gauge.total - gauge.current;
    Stat {
        current: now.current as i64,
        peak: now.peak as i64,
        allocated: (now.total - since.total) as i64,
        freed: (freed(now) - freed(since)) as i64,
    }
}

fn array(
    (now, since): (&Stats, &Stats),
    all: fn(&Stats) -> Gauge,
    class: fn(&ClassStats) -> Gauge,
) -> StatArray {
    let of = |at: usize| stat(class(&now.classes[at]), class(&since.classes[at]));
    [stat(all(now), all(since)), of(0), of(1)]
}

/// Counts of the card as a snapshot shows it: in all, small, large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    segments: [Gauge; 3],
    /// Free blocks in segments of several blocks, and their bytes.
    split: [Gauge; 3],
    split_bytes: [Gauge; 3],
}

impl Shown {
    /// Looks at a card's segments.
    fn look(&mut self, counts: SegmentCounts) {
        settle(&mut self.segments, counts.segments);
        settle(&mut self.split, counts.split);
        settle(&mut self.split_bytes, counts.split_bytes);
    }

    fn restart_peaks(&mut self) {
        for gauge in self.segments.iter_mut().chain(&mut self.split).chain(&mut self.split_bytes) {
            gauge.peak = gauge.current;
        }
    }
}

/// Sets small and large to what was seen. The first gauge is their sum.
fn settle([all, small, large]: &mut [Gauge; 3], seen: [u64; 2]) {
    let seen = [(small, seen[0]), (large, seen[1])];
    // Decreases before increases: a segment that changed its kind must not count twice in the peak.
    for (gauge, now) in &seen {
        all.sub(gauge.current.saturating_sub(*now));
    }
    for (gauge, now) in seen {
        let more = now.saturating_sub(gauge.current);
        gauge.sub(gauge.current.saturating_sub(now));
        gauge.add(more);
        all.add(more);
    }
}

/// Reserved bytes of each private pool that ever existed, as the segments of a snapshot show them.
#[derive(Clone, Debug, Default)]
pub struct ByPool {
    pools: Vec<OnePool>,
}

/// Reserved bytes of a pool, now and when totals were last reset: in all, small, large.
#[derive(Clone, Copy, Debug)]
struct OnePool {
    key: PoolKey,
    reserved: [Gauge; 3],
    since: [Gauge; 3],
}

impl ByPool {
    fn look(&mut self, reserved: &[(PoolKey, [u64; 2])]) {
        for &(key, bytes) in reserved {
            if bytes != [0, 0] && self.pools.iter().all(|pool| pool.key != key) {
                let none = [Gauge::default(); 3];
                self.pools.push(OnePool { key, reserved: none, since: none });
            }
        }
        for pool in &mut self.pools {
            let seen = reserved.iter().find(|(key, _)| *key == pool.key);
            settle(&mut pool.reserved, seen.map_or([0, 0], |(_, bytes)| *bytes));
        }
    }

    fn restart_peaks(&mut self) {
        for gauge in self.pools.iter_mut().flat_map(|pool| &mut pool.reserved) {
            gauge.peak = gauge.current;
        }
    }

    fn restart_totals(&mut self) {
        for pool in &mut self.pools {
            pool.since = pool.reserved;
        }
    }

    fn stats(&self) -> Vec<([u64; 2], StatArray)> {
        let of = |pool: &OnePool| [0, 1, 2].map(|at| stat(pool.reserved[at], pool.since[at]));
        self.pools.iter().map(|pool| ([pool.key.0, pool.key.1], of(pool))).collect()
    }
}

/// The statistics of a card.
#[must_use]
pub fn of(card: &mut Card) -> DeviceStats {
    card.pool.catch_up();
    card.shown.look(card.pool.segment_counts());
    let looked_up = |of: fn(&Shown) -> &[Gauge; 3]| {
        let (now, since) = (of(&card.shown), of(&card.since.shown));
        [0, 1, 2].map(|at| stat(now[at], since[at]))
    };
    let (now, Since { stats: since, failed, .. }) = (card.pool.stats_shown(), card.since);
    let both = (&now, &since);
    DeviceStats {
        allocation: array(both, |s| s.allocations, |c| c.allocations),
        segment: looked_up(|shown| &shown.segments),
        active: array(both, |s| s.active_blocks, |c| c.active_blocks),
        inactive_split: looked_up(|shown| &shown.split),
        allocated_bytes: array(both, |s| s.allocated, |c| c.allocated),
        reserved_bytes: array(both, |s| s.reserved, |c| c.reserved),
        active_bytes: array(both, |s| s.active, |c| c.active),
        inactive_split_bytes: looked_up(|shown| &shown.split_bytes),
        requested_bytes: array(both, |s| s.requested, |c| c.requested),
        num_alloc_retries: (now.retries - since.retries) as i64,
        num_ooms: (card.failed - failed) as i64,
        oversize_allocations: Stat::default(),
        oversize_segments: Stat::default(),
        num_sync_all_streams: (now.waits - since.waits) as i64,
        num_device_alloc: (now.device_allocs - since.device_allocs) as i64,
        num_device_free: (now.device_frees - since.device_frees) as i64,
        num_oom_rejections: 0,
        max_split_size: -1,
    }
}

/// Totals start again from 0.
fn restart_totals(card: &mut Card) {
    card.shown.look(card.pool.segment_counts());
    card.since = Since { stats: card.pool.stats_shown(), shown: card.shown, failed: card.failed };
    card.by_pool.look(&card.pool.reserved_by_pool());
    card.by_pool.restart_totals();
}

/// The most bytes that were allocated and reserved since the start, including peaks before a reset.
fn peaks_of_the_run(card: &Card) -> (u64, u64) {
    let ((allocated, reserved), now) = (card.peaks_before, card.pool.stats());
    (allocated.max(now.allocated.peak), reserved.max(now.reserved.peak))
}

/// Peaks start again from the present values.
pub fn restart_peaks(card: &mut Card) {
    card.peaks_before = peaks_of_the_run(card);
    card.pool.reset_peaks();
    card.shown.look(card.pool.segment_counts());
    card.shown.restart_peaks();
    card.by_pool.look(&card.pool.reserved_by_pool());
    card.by_pool.restart_peaks();
    budgets::restart_peaks(card.device);
}

fn on_existing(device: i32, work: impl FnOnce(&mut Card)) {
    guarded((), || {
        if let Some(mut card) = state::existing(device) {
            work(&mut card);
        }
    });
}

// ---- entries of the table ----

/// `getDeviceStats(device)`.
pub(crate) unsafe extern "C-unwind" fn device_stats(
    out: *mut DeviceStats,
    _: This,
    device: i8,
) -> *mut DeviceStats {
    // SAFETY: PyTorch's C++ called through the table and handles exceptions; no card is locked.
    unsafe { answer((), || overlay::must_be_valid(device)) };
    // A card that was not used has zeros, as with PyTorch's allocator.
    let mut stats = DeviceStats { max_split_size: -1, ..DeviceStats::default() };
    let mut pools = Vec::new();
    on_existing(i32::from(device), |card| {
        stats = of(card);
        card.by_pool.look(&card.pool.reserved_by_pool());
        pools = card.by_pool.stats();
    });
    // SAFETY: C++ passes `out` as the place for the result, with room for this build's structure.
    unsafe { layout::write_stats(out, &stats, &pools, layout::layouts()) };
    out
}

/// `resetAccumulatedStats(device)`.
pub(crate) unsafe extern "C-unwind" fn reset_accumulated(_: This, device: i8) {
    // SAFETY: PyTorch's C++ called through the table and handles exceptions; no card is locked.
    unsafe { answer((), || overlay::must_be_valid(device)) };
    on_existing(i32::from(device), restart_totals);
}

/// `resetPeakStats(device)`.
pub(crate) unsafe extern "C-unwind" fn reset_peak(_: This, device: i8) {
    // SAFETY: PyTorch's C++ called through the table and handles exceptions; no card is locked.
    unsafe { answer((), || overlay::must_be_valid(device)) };
    on_existing(i32::from(device), restart_peaks);
}

// ---- as JSON ----

/// The statistics of a card as one JSON object. Totals are those of the whole run.
#[must_use]
pub fn json(card: &mut Card) -> String {
    let since = std::mem::take(&mut card.since);
    let stats = of(card);
    card.since = since;
    let mut out = String::from("{");
    checked::write_json(&mut out, card.device);
    sharing::write_json(&mut out);
    regions::write_json(&mut out, card.device, card);
    for (name, array) in [
        ("allocation", stats.allocation),
        ("segment", stats.segment),
        ("active", stats.active),
        ("inactive_split", stats.inactive_split),
        ("allocated_bytes", stats.allocated_bytes),
        ("reserved_bytes", stats.reserved_bytes),
        ("active_bytes", stats.active_bytes),
        ("inactive_split_bytes", stats.inactive_split_bytes),
        ("requested_bytes", stats.requested_bytes),
    ] {
        for (class, Stat { current, peak, allocated, freed }) in
            ["all", "small_pool", "large_pool"].iter().zip(array)
        {
            let _ = write!(
                out,
                "\"{name}.{class}.current\":{current},\"{name}.{class}.peak\":{peak},\"{name}.{class}.allocated\":{allocated},\
                 \"{name}.{class}.freed\":{freed},"
            );
        }
    }
    let plans = card.pool.plan_stats();
    let (peak_allocated, peak_reserved) = peaks_of_the_run(card);
    let stranded = card.pool.stranded();
    let (pool, device) = (*card.pool.stats(), card.pool.device());
    for (name, value) in [
        ("num_alloc_retries", stats.num_alloc_retries as u64),
        ("num_ooms", stats.num_ooms as u64),
        ("num_sync_all_streams", stats.num_sync_all_streams as u64),
        ("num_device_alloc", stats.num_device_alloc as u64),
        ("num_device_free", stats.num_device_free as u64),
        ("gapless.peak_allocated", peak_allocated),
        ("gapless.peak_reserved", peak_reserved),
        ("gapless.pages_created", device.creates),
        ("gapless.pages_mapped", device.maps),
        ("gapless.windows_made", pool.windows_made),
        ("gapless.graph_windows_made", pool.private_windows),
        ("gapless.window_hits", pool.window_hits),
        ("gapless.pages_harvested", pool.harvested),
        ("gapless.pages_lent", pool.lent),
        ("gapless.stranded_bytes", stranded),
        ("gapless.host_waits", pool.waits),
        ("gapless.plans", plans.plans),
        ("gapless.plan.steps", plans.steps),
        ("gapless.plan.requests", plans.requests),
        ("gapless.plan.served", plans.served),
        ("gapless.plan.served_bytes", plans.served_bytes),
        ("gapless.plan.missed", plans.missed),
        ("gapless.driver_ns", device.driver_ns),
        ("gapless.ladder.handlers", card.helped),
    ] {
        let _ = write!(out, "\"{name}\":{value},");
    }
    for (rung, count) in Rung::ALL.iter().zip(pool.ladder) {
        let _ = write!(out, "\"gapless.ladder.{}\":{count},", rung.name());
    }
    card.write_shares(&mut out);
    out.pop();
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(segments: [u64; 2], split: [u64; 2]) -> SegmentCounts {
        SegmentCounts { segments, split, split_bytes: split.map(|blocks| 512 * blocks) }
    }

    #[test]
    fn what_is_looked_up_has_totals_and_peaks_that_fit_what_is_there() {
        let mut shown = Shown::default();
        let pictures = [
            counts([1, 2], [0, 2]),
            counts([2, 0], [1, 0]),
            SegmentCounts::default(),
            counts([0, 1], [0, 0]),
        ];
        for (at, picture) in pictures.iter().enumerate() {
            shown.look(*picture);
            for [all, small, large] in [shown.segments, shown.split, shown.split_bytes] {
                assert_eq!(all.current, small.current + large.current, "{at}");
                assert_eq!(all.total, small.total + large.total, "{at}");
                assert!([all, small, large].iter().all(|gauge| gauge.peak >= gauge.current), "{at}");
            }
            assert_eq!(shown.segments[0].current, picture.segments.iter().sum::<u64>());
        }
        assert_eq!((shown.segments[0].peak, shown.segments[0].total), (3, 5));
        assert_eq!((shown.split[2].peak, shown.split_bytes[2].peak, shown.split[1].peak), (2, 1024, 1));
        shown.restart_peaks();
        assert_eq!((shown.segments[0].peak, shown.split[2].peak), (1, 0));
    }
}
