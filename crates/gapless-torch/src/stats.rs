//! The statistics of a card as `torch.cuda.memory_stats` means them: as PyTorch's structure through the table, and as JSON for Python.
//!
//! A segment is a page, which is what is taken from the device. Inactive and split is what is free in pages that others use, and could not be
//! given back; it is looked up when asked for, so its peak is the most that was seen then. Nothing is oversize.

use crate::budgets;
use crate::checked;
use crate::hooks::guarded;
use crate::overlay::This;
use crate::overlay::layout::{DeviceStats, Stat, StatArray};
use crate::state::{self, Card, Since};
use gapless_pool::{ClassStats, Gauge, Rung, Stats};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// What is counted of a card.
#[must_use]
pub fn of(card: &mut Card) -> DeviceStats {
    let small_and_large = card.pool.stranded();
    let [small, large] = small_and_large;
    let stranded = [(small.0 + large.0, small.1 + large.1), small, large];
    for (most, now) in card.most_stranded.iter_mut().zip(stranded) {
        *most = (most.0.max(now.0), most.1.max(now.1));
    }
    let split = |of: fn((u64, u64)) -> u64| {
        let mut array = StatArray::default();
        for (at, stat) in array.iter_mut().enumerate() {
            *stat = Stat {
                current: of(stranded[at]) as i64,
                peak: of(card.most_stranded[at]) as i64,
                ..Stat::default()
            };
        }
        array
    };
    let (now, Since { stats: since, failed, .. }) = (*card.pool.stats(), card.since);
    let both = (&now, &since);
    DeviceStats {
        allocation: array(both, |s| s.allocations, |c| c.allocations),
        segment: array(both, |s| s.pages, |c| c.pages),
        active: array(both, |s| s.active_blocks, |c| c.active_blocks),
        inactive_split: split(|(blocks, _)| blocks),
        allocated_bytes: array(both, |s| s.allocated, |c| c.allocated),
        reserved_bytes: array(both, |s| s.reserved, |c| c.reserved),
        active_bytes: array(both, |s| s.active, |c| c.active),
        inactive_split_bytes: split(|(_, bytes)| bytes),
        requested_bytes: array(both, |s| s.requested, |c| c.requested),
        num_alloc_retries: (now.retries - since.retries) as i64,
        num_ooms: (card.failed - failed) as i64,
        oversize_allocations: Stat::default(),
        oversize_segments: Stat::default(),
        num_sync_all_streams: now.waits as i64,
        num_device_alloc: now.device_allocs as i64,
        num_device_free: now.device_frees as i64,
        max_split_size: -1,
    }
}

/// Totals start again from 0.
fn restart_totals(card: &mut Card) {
    card.since = Since { stats: *card.pool.stats(), failed: card.failed };
}

/// Peaks start again from what is there now.
pub fn restart_peaks(card: &mut Card) {
    card.pool.reset_peaks();
    card.most_stranded = [(0, 0); 3];
    budgets::restart_peaks(card.device);
}

fn on_existing(device: i32, work: impl FnOnce(&mut Card)) {
    guarded((), || {
        if let Some(mut card) = state::existing(device) {
            work(&mut card);
        }
    });
}

// ---- through the table ----

/// Whether PyTorch's structure has one number more, of requests that were refused beforehand: before its last one.
static COUNTS_REFUSALS: AtomicBool = AtomicBool::new(false);

pub(crate) fn prepare(counts_refusals: bool) {
    COUNTS_REFUSALS.store(counts_refusals, Ordering::Relaxed);
}

/// `getDeviceStats(device)`.
pub(crate) unsafe extern "C-unwind" fn device_stats(
    out: *mut DeviceStats,
    _: This,
    device: i8,
) -> *mut DeviceStats {
    // A card that was not used has nothing, as PyTorch shows it.
    let mut stats = DeviceStats { max_split_size: -1, ..DeviceStats::default() };
    on_existing(i32::from(device), |card| stats = of(card));
    // SAFETY: the place for the result, which is a number longer where refusals are counted.
    unsafe {
        if COUNTS_REFUSALS.load(Ordering::Relaxed) {
            out.write(DeviceStats { max_split_size: 0, ..stats });
            out.add(1).cast::<i64>().write(stats.max_split_size);
        } else {
            out.write(stats);
        }
    }
    out
}

/// `resetAccumulatedStats(device)`.
pub(crate) unsafe extern "C-unwind" fn reset_accumulated(_: This, device: i8) {
    on_existing(i32::from(device), restart_totals);
}

/// `resetPeakStats(device)`.
pub(crate) unsafe extern "C-unwind" fn reset_peak(_: This, device: i8) {
    on_existing(i32::from(device), restart_peaks);
}

// ---- as JSON ----

/// The statistics of a card as one JSON object, with totals of the whole run.
#[must_use]
pub fn json(card: &mut Card) -> String {
    let since = std::mem::take(&mut card.since);
    let stats = of(card);
    card.since = since;
    let mut out = String::from("{");
    checked::write_json(&mut out, card.device);
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
    let (pool, device) = (*card.pool.stats(), card.pool.device());
    for (name, value) in [
        ("num_alloc_retries", stats.num_alloc_retries as u64),
        ("num_ooms", stats.num_ooms as u64),
        ("num_sync_all_streams", stats.num_sync_all_streams as u64),
        ("num_device_alloc", stats.num_device_alloc as u64),
        ("num_device_free", stats.num_device_free as u64),
        ("gapless.pages_created", device.creates),
        ("gapless.pages_mapped", device.maps),
        ("gapless.windows_made", pool.windows_made),
        ("gapless.window_hits", pool.window_hits),
        ("gapless.pages_harvested", pool.harvested),
        ("gapless.pages_lent", pool.lent),
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
    card.write_rations(&mut out);
    out.pop();
    out.push('}');
    out
}
