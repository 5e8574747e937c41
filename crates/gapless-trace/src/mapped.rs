//! Finds mapped memory of large requests, which its events do not name.
//!
//! PyTorch maps a range of small requests 2 MiB at a time and one of large requests by more, so the map itself tells.
//! Another allocator may also map little into a range of large requests: it is known by a large request that lies in
//! such a piece, in part or whole. Then a larger piece of the same range tells, or a large request in it, or the
//! snapshot at the end; a range is all memory that was ever mapped side by side.

use crate::events::Action;
use crate::torch_rules;
use crate::trace::{DeviceTrace, SizeClass};
use crate::words::Bytes;
use std::collections::BTreeMap;

/// Ranges of large requests, by address, apart from each other; `None` if each map tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct LargeRanges(Option<Vec<(u64, u64)>>);

/// True if a large request lies, in part or whole, in a piece that PyTorch would have mapped for small ones.
fn maps_little_for_large(device: &DeviceTrace) -> bool {
    let events = &device.events;
    if events.count(Action::SegmentMap) == 0 {
        return false;
    }
    // The last map at an address counts: addresses are used again.
    let mut pieces: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    for index in events.indices() {
        let addr = events.addr(index).0;
        match events.action(index) {
            Action::SegmentMap => {
                let size = events.size(index);
                let end = addr.saturating_add(size.0);
                let gone: Vec<u64> = pieces.range(addr..end).map(|(&start, _)| start).collect();
                for start in gone {
                    pieces.remove(&start);
                }
                pieces.insert(addr, (end, size <= torch_rules::SMALL_SEGMENT));
            }
            Action::Alloc if events.size(index) > torch_rules::SMALL_LIMIT => {
                let end = addr.saturating_add(events.size(index).0);
                let mut touched = pieces.range(..end).rev().take_while(|(_, (end, _))| *end > addr);
                if touched.any(|(_, &(_, little))| little) {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

impl LargeRanges {
    /// `ours`: our own allocator made the maps, so one of them alone tells nothing.
    pub(crate) fn of(device: &DeviceTrace, ours: bool) -> LargeRanges {
        if !ours && !maps_little_for_large(device) {
            return LargeRanges(None);
        }
        let events = &device.events;
        let mut pieces: Vec<(u64, u64, bool)> = Vec::new();
        for index in events.indices() {
            if matches!(events.action(index), Action::SegmentMap | Action::SegmentUnmap) {
                let event = events.get(index);
                let end = event.addr.0.saturating_add(event.size.0);
                // Several pieces of a small range are unmapped at once: that tells nothing.
                let large = event.action == Action::SegmentMap && event.size > torch_rules::SMALL_SEGMENT;
                pieces.push((event.addr.0, end, large));
            }
        }
        for s in device.segments.iter().filter(|s| s.expandable) {
            pieces.push((s.addr.0, s.addr.0.saturating_add(s.size.0), s.class == SizeClass::Large));
        }
        pieces.sort_unstable();
        let mut ranges: Vec<(u64, u64, bool)> = Vec::new();
        for (start, end, large) in pieces {
            match ranges.last_mut() {
                Some(last) if start <= last.1 => *last = (last.0, last.1.max(end), last.2 || large),
                _ => ranges.push((start, end, large)),
            }
        }
        if ranges.iter().any(|range| !range.2) {
            let large =
                |&i: &_| events.action(i) == Action::Alloc && events.size(i) > torch_rules::SMALL_LIMIT;
            for index in events.indices().filter(large) {
                let addr = events.addr(index).0;
                let at = ranges.partition_point(|range| range.0 <= addr);
                if let Some(range) = at.checked_sub(1).and_then(|at| ranges.get_mut(at)) {
                    range.2 |= addr < range.1;
                }
            }
        }
        let large = ranges.into_iter().filter(|range| range.2);
        LargeRanges(Some(large.map(|(start, end, _)| (start, end)).collect()))
    }

    /// True if the size of each map tells the class of its requests.
    pub(crate) fn each_map_tells(&self) -> bool {
        self.0.is_none()
    }

    /// True if memory that is mapped or unmapped at `addr` is of small requests.
    pub(crate) fn is_small(&self, addr: u64, size: Bytes) -> bool {
        let Some(large) = &self.0 else { return size <= torch_rules::SMALL_SEGMENT };
        let at = large.partition_point(|range| range.0 <= addr);
        at.checked_sub(1).is_none_or(|at| addr >= large[at].1)
    }
}
