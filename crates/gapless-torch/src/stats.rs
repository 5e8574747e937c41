//! Statistics as JSON, under the names of `torch.cuda.memory_stats`.

use crate::state::Card;
use gapless_pool::Gauge;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// The statistics of a card as one JSON object.
#[must_use]
pub fn json(card: &Card) -> String {
    let stats = *card.pool.stats();
    let mut out = String::from("{");
    let mut gauge = |name: &str, gauge: Gauge| {
        let _ = write!(out, "\"{name}.all.current\":{},\"{name}.all.peak\":{},", gauge.current, gauge.peak);
    };
    gauge("allocation", stats.allocations);
    gauge("allocated_bytes", stats.allocated);
    gauge("requested_bytes", stats.requested);
    gauge("active", stats.active_blocks);
    gauge("active_bytes", stats.active);
    gauge("reserved_bytes", stats.reserved);
    gauge("segment", Gauge::default());
    gauge("inactive_split", Gauge::default());
    gauge("inactive_split_bytes", Gauge::default());
    let device = card.pool.device();
    let requests = card.requests.load(Ordering::Relaxed);
    for (name, value) in [
        ("allocation.all.allocated", requests),
        ("num_alloc_retries", stats.retries),
        ("num_ooms", stats.ooms),
        ("num_device_alloc", stats.device_allocs),
        ("num_device_free", stats.device_frees),
        ("gapless.pages_created", device.creates),
        ("gapless.pages_mapped", device.maps),
        ("gapless.windows_made", stats.windows_made),
        ("gapless.window_hits", stats.window_hits),
        ("gapless.pages_harvested", stats.harvested),
        ("gapless.pages_lent", stats.lent),
        ("gapless.driver_ns", device.driver_ns),
    ] {
        let _ = write!(out, "\"{name}\":{value},");
    }
    out.pop();
    out.push('}');
    out
}
