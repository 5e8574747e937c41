//! The units that belong to one pool as a whole: a segment, or a reserved range of expandable memory from its first
//! page to its last.
//!
//! A range is mapped from its beginning on, and every later page begins where memory is or was mapped. So the addresses
//! that it ever had memory behind are in one piece, and a gap between addresses is a border between ranges. A range
//! ends when nothing of it is mapped; later memory at its addresses is another one.

use gapless_trace::{AllocationId, History, SizeClass, Tick};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Names a unit.
pub(super) type Unit = u32;

#[derive(Clone, Copy, Debug)]
pub(super) struct UnitSpan {
    pub(super) addr: u64,
    /// One past the last address that it ever had memory behind.
    pub(super) end_addr: u64,
    pub(super) start: Tick,
    pub(super) end: Tick,
    pub(super) expandable: bool,
    /// The pool that the history knows; certain only if the unit is there at the end.
    pub(super) pool: u16,
}

/// The units of a history, and the unit of each span and each allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Units {
    pub(super) spans: Vec<UnitSpan>,
    pub(super) of_segment: Vec<Unit>,
    pub(super) of_allocation: Vec<Option<Unit>>,
}

/// A span that opens or closes.
struct Change {
    tick: Tick,
    opens: bool,
    segment: u32,
}

impl Units {
    pub(super) fn of(history: &History) -> Units {
        let areas = areas(history);
        let forever = history.forever();
        let segments = &history.segments;
        let mut changes: Vec<Change> = Vec::with_capacity(2 * segments.len());
        for (i, span) in segments.iter().enumerate() {
            let segment = i as u32;
            changes.push(Change { tick: span.start, opens: true, segment });
            if span.end < forever {
                changes.push(Change { tick: span.end, opens: false, segment });
            }
        }
        // Spans that close at a tick make room for those that open at it.
        changes.sort_by_key(|c| (c.tick, c.opens));
        let mut units = Units {
            spans: Vec::new(),
            of_segment: vec![0; segments.len()],
            of_allocation: Vec::with_capacity(history.allocations.len()),
        };
        let mut open: BTreeMap<u64, (u64, Unit)> = BTreeMap::new();
        // The open range of each area, and the number of its mapped pieces.
        let mut ranges: FxHashMap<u32, (Unit, u32)> = FxHashMap::default();
        let mut changes = changes.into_iter().peekable();
        for id in 0..history.allocations.len() as u32 {
            let allocation = history.allocations.get(AllocationId(id));
            while let Some(change) = changes.next_if(|c| c.tick <= allocation.start) {
                units.apply(history, &areas, &change, &mut open, &mut ranges);
            }
            let addr = allocation.addr.0;
            let unit = open.range(..=addr).next_back().filter(|(_, (end, _))| addr < *end);
            units.of_allocation.push(unit.map(|(_, &(_, unit))| unit));
        }
        for change in changes {
            units.apply(history, &areas, &change, &mut open, &mut ranges);
        }
        units
    }

    fn apply(
        &mut self,
        history: &History,
        areas: &[u32],
        change: &Change,
        open: &mut BTreeMap<u64, (u64, Unit)>,
        ranges: &mut FxHashMap<u32, (Unit, u32)>,
    ) {
        let span = &history.segments[change.segment as usize];
        let (addr, end) = (span.addr.0, span.addr.0.saturating_add(span.size.0));
        let area = areas[change.segment as usize];
        if !change.opens {
            open.remove(&addr);
            let unit = self.of_segment[change.segment as usize];
            let mut closed = true;
            if span.expandable
                && let Some((_, mapped)) = ranges.get_mut(&area)
            {
                *mapped -= 1;
                closed = *mapped == 0;
                if closed {
                    ranges.remove(&area);
                }
            }
            if closed {
                self.spans[unit as usize].end = span.end;
            }
            return;
        }
        let open_range = if span.expandable { ranges.get_mut(&area) } else { None };
        let unit = if let Some((unit, mapped)) = open_range {
            *mapped += 1;
            let known = &mut self.spans[*unit as usize];
            known.addr = known.addr.min(addr);
            known.end_addr = known.end_addr.max(end);
            if span.end == history.forever() {
                known.pool = span.pool;
            }
            *unit
        } else {
            let unit = self.spans.len() as Unit;
            self.spans.push(UnitSpan {
                addr,
                end_addr: end,
                start: span.start,
                end: history.forever(),
                expandable: span.expandable,
                pool: span.pool,
            });
            if span.expandable {
                ranges.insert(area, (unit, 1));
            }
            unit
        };
        self.of_segment[change.segment as usize] = unit;
        open.insert(addr, (end, unit));
    }

    /// The unit that has `addr` at some instant in `[from, to]`: of several the one that was there first. Addresses of
    /// a range without memory behind them are its own too.
    pub(super) fn at(&self, addr: u64, from: Tick, to: Tick) -> Option<Unit> {
        let there = self.spans.iter().enumerate().filter(|(_, s)| {
            s.addr <= addr && (s.expandable || addr < s.end_addr) && s.start <= to && s.end >= from
        });
        let nearest = there.min_by_key(|(_, s)| (std::cmp::Reverse(s.addr), s.start))?;
        Some(nearest.0 as Unit)
    }
}

/// For each segment span of expandable memory, the stretch of addresses that it belongs to; others have none.
fn areas(history: &History) -> Vec<u32> {
    let mut areas = vec![u32::MAX; history.segments.len()];
    let mut by_addr: Vec<u32> =
        (0..areas.len() as u32).filter(|&i| history.segments[i as usize].expandable).collect();
    by_addr.sort_by_key(|&i| history.segments[i as usize].addr);
    // Ranges of different streams or size classes may touch.
    let mut ends: FxHashMap<(u16, SizeClass), (u64, u32)> = FxHashMap::default();
    let mut count = 0;
    for i in by_addr {
        let span = &history.segments[i as usize];
        let end = span.addr.0.saturating_add(span.size.0);
        let entry = ends.entry((span.stream, span.class)).or_insert((0, u32::MAX));
        if entry.1 == u32::MAX || span.addr.0 > entry.0 {
            *entry = (end, count);
            count += 1;
        }
        entry.0 = entry.0.max(end);
        areas[i as usize] = entry.1;
    }
    areas
}
