//! The pools of segments, by the segments that are there at the end: events before torch 2.12 do not name theirs.

use crate::events::Action;
use crate::mapped::LargeRanges;
use crate::trace::{DeviceTrace, SizeClass};
use crate::words::EventIndex;
use std::collections::BTreeMap;

/// The pool of a segment that is there at the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinalPool {
    pub(super) end: u64,
    pub(super) pool: u16,
    /// The event that took it from the device.
    pub(super) taken_by: Option<EventIndex>,
    /// Of mapped memory, the owner of its range: stream, and true for the small half.
    pub(super) range_of: Option<(u16, bool)>,
}

/// The segments at the end by address; empty if there is only the default pool.
pub(super) fn final_pools(device: &DeviceTrace, large: &LargeRanges) -> BTreeMap<u64, FinalPool> {
    let mut pools = BTreeMap::new();
    if device.pools.len() <= 1 || device.events.has_pools() {
        return pools;
    }
    for s in &device.segments {
        pools.insert(
            s.addr.0,
            FinalPool {
                end: s.addr.0.saturating_add(s.size.0),
                pool: s.pool,
                taken_by: None,
                range_of: s.expandable.then_some((s.stream, s.class == SizeClass::Small)),
            },
        );
    }
    widen_to_ranges(device, large, &mut pools);
    for index in device.events.indices().filter(|&i| device.events.action(i) == Action::SegmentAlloc) {
        if let Some(pool) = pools.get_mut(&device.events.addr(index).0) {
            pool.taken_by = Some(index);
        }
    }
    pools
}

/// A range is one pool's as a whole, and at the end may have less memory behind it than before: its pool counts for all
/// addresses that were ever mapped in one piece with those of the end. Otherwise one block could lie in two pools.
fn widen_to_ranges(device: &DeviceTrace, large: &LargeRanges, pools: &mut BTreeMap<u64, FinalPool>) {
    let maps = device.events.indices().filter(|&i| device.events.action(i) == Action::SegmentMap);
    let mut pieces: Vec<((u16, bool), u64, u64)> = maps
        .map(|i| device.events.get(i))
        .map(|e| {
            let small = large.is_small(e.addr.0, e.size);
            ((e.stream, small), e.addr.0, e.addr.0.saturating_add(e.size.0))
        })
        .collect();
    pieces.sort_unstable();
    pieces.dedup();
    let mut ranges: Vec<((u16, bool), u64, u64)> = Vec::new();
    for (key, start, end) in pieces {
        match ranges.last_mut() {
            Some(last) if last.0 == key && start <= last.2 => last.2 = last.2.max(end),
            _ => ranges.push((key, start, end)),
        }
    }
    for (key, start, end) in ranges {
        let inside: Vec<(u64, FinalPool)> = pools.range(start..end).map(|(&addr, &f)| (addr, f)).collect();
        let Some(&(_, first)) = inside.first() else { continue };
        if inside.iter().any(|(_, f)| f.range_of != Some(key) || f.pool != first.pool) {
            continue;
        }
        let end = inside.iter().map(|(_, f)| f.end).fold(end, u64::max);
        for (addr, _) in inside {
            pools.remove(&addr);
        }
        pools.insert(start, FinalPool { end, ..first });
    }
}
