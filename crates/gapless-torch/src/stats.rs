//! The statistics of a card in the sense of `torch.cuda.memory_stats`: as PyTorch's structure, and as JSON for Python.
//!
//! Segments, and free blocks beside others in one (inactive and split), are counted as the snapshot shows them, so the
//! two agree. The pool counts them as they change, so no question walks over blocks. They are read only when the
//! program asks, so their peaks and totals cover only those moments. Nothing is oversize.

pub mod counters;

use crate::budgets;
use crate::card::{Card, Since};
use crate::checked;
use crate::overlay::layout::{DeviceStats, Stat, StatArray};
use crate::regions;
use crate::sharing;
use counters::{Shown, stat};
use gapless_pool::{ClassStats, Gauge, Rung, Stats};
use std::fmt::Write;

fn array(
    (now, since): (&Stats, &Stats),
    all: fn(&Stats) -> Gauge,
    class: fn(&ClassStats) -> Gauge,
) -> StatArray {
    let of = |at: usize| stat(class(&now.classes[at]), class(&since.classes[at]));
    [stat(all(now), all(since)), of(0), of(1)]
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

/// Reserved bytes of each private pool that ever existed.
pub fn of_pools(card: &mut Card) -> Vec<([u64; 2], StatArray)> {
    card.by_pool.look(&card.pool.reserved_by_pool());
    card.by_pool.stats()
}

/// Totals start again from 0.
pub fn restart_totals(card: &mut Card) {
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

/// Active and reserved bytes, and the limit (0: none). If `is_new`, also the most that was active since the last such
/// call, and the stranded bytes.
pub fn usage(card: &mut Card, is_new: bool) -> [u64; 5] {
    let (crest, stranded) = if is_new { (card.pool.take_crest(), card.pool.stranded()) } else { (0, 0) };
    let stats = card.pool.stats();
    // An open scope allows the rest of its budget, beside what is in use now.
    let scope = budgets::left_on(card.device).map(|left| stats.active.current + left);
    let limit = card.most().into_iter().chain(scope).min().unwrap_or(0);
    [stats.active.current, stats.reserved.current, limit, crest, stranded]
}
