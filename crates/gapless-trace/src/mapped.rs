//! Which mapped memory is of large requests: its events do not say.
//!
//! PyTorch maps a range of small requests 2 MiB at a time and one of large requests by more, so one map tells. Another allocator may also map little
//! into a range of large requests; then a larger piece of the same range tells, or a large request in it, or what the snapshot says at the end. A
//! range is what was ever mapped side by side.

use crate::events::Action;
use crate::torch_rules;
use crate::trace::{DeviceTrace, SizeClass};

/// Ranges of large requests, by address, apart from each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct LargeRanges(Vec<(u64, u64)>);

impl LargeRanges {
    pub(crate) fn of(device: &DeviceTrace) -> LargeRanges {
        let events = &device.events;
        let mut pieces: Vec<(u64, u64, bool)> = Vec::new();
        for index in events.indices() {
            if matches!(events.action(index), Action::SegmentMap | Action::SegmentUnmap) {
                let event = events.get(index);
                let end = event.addr.0.saturating_add(event.size.0);
                pieces.push((event.addr.0, end, event.size > torch_rules::SMALL_SEGMENT));
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
        LargeRanges(ranges.into_iter().filter(|range| range.2).map(|(start, end, _)| (start, end)).collect())
    }

    /// Whether mapped memory at `addr` is of large requests.
    pub(crate) fn contain(&self, addr: u64) -> bool {
        let at = self.0.partition_point(|range| range.0 <= addr);
        at.checked_sub(1).is_some_and(|at| addr < self.0[at].1)
    }
}
