//! Segments and mapped stretches: taken from the device, joined, cut and given back.

use super::arena::NONE;
use super::{Heap, Run, RunInfo};
use crate::allocations::{HistoryError, SegmentSpan};
use crate::events::Event;
use crate::history::PoolUsage;
use crate::stacks::StackId;
use crate::torch_rules;
use crate::trace::{BlockState, DeviceTrace, SizeClass};
use crate::usage::Usage;
use crate::words::{Bytes, DeviceAddr, EventIndex, Tick};

impl Heap<&DeviceTrace> {
    pub(super) fn segment_alloc(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.segment_event(index)?;
        if self.overlapped_run(event.addr.0, event.size.0).is_some() {
            if self.ahead {
                return Err(self.segment_mismatch(index));
            } else if self.begins_again(index) {
                self.close_everything(now);
                self.repairs.restarts += 1;
            } else {
                while let Some(start) = self.overlapped_run(event.addr.0, event.size.0) {
                    if self.runs[&start].span == NONE {
                        return Err(self.segment_mismatch(index));
                    }
                    self.close_run(start, now);
                    self.repairs.implied_segment_frees += 1;
                }
            }
        }
        let info = self.run_info(index, &event, false);
        self.add_segment(event.addr.0, event.size.0, info, now, event.stack);
        Ok(())
    }

    /// An event that takes memory: of at least a byte, and within the address space.
    fn segment_event(&self, index: EventIndex) -> Result<Event, HistoryError> {
        let event = self.device.events.get(index);
        match event.addr.0.checked_add(event.size.0) {
            Some(end) if end > event.addr.0 => Ok(event),
            _ => Err(self.segment_mismatch(index)),
        }
    }

    pub(super) fn segment_free(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        let start = event.addr.0;
        match self.runs.get(&start) {
            Some(run)
                if run.span != NONE && run.end - start == event.size.0 && self.is_free(start, run.end) =>
            {
                self.close_run(start, now);
                Ok(())
            }
            _ => Err(self.segment_mismatch(index)),
        }
    }

    pub(super) fn segment_map(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.segment_event(index)?;
        if self.overlapped_run(event.addr.0, event.size.0).is_some() {
            if self.ahead || !self.begins_again(index) {
                return Err(self.segment_mismatch(index));
            }
            self.close_everything(now);
            self.repairs.restarts += 1;
        }
        let info = self.run_info(index, &event, true);
        self.map(event.addr.0, event.size.0, info, now, event.stack);
        Ok(())
    }

    pub(super) fn segment_unmap(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        let (start, end) = (event.addr.0, event.addr.0.saturating_add(event.size.0));
        let inside = self
            .arena
            .containing(start)
            .map(|id| self.arena[id])
            .filter(|b| b.state == BlockState::Free && end <= b.addr + b.size && end > start)
            .filter(|b| self.infos[b.run as usize].0.expandable);
        let Some(block) = inside else { return Err(self.segment_mismatch(index)) };
        let id = self.arena.carve(start, end - start).ok_or_else(|| self.segment_mismatch(index))?;
        debug_assert_eq!(block.run, self.arena[id].run);
        self.unmap(id, now);
        Ok(())
    }

    /// Removes a free block of a mapped stretch, with the memory behind it; the stretch falls into two.
    fn unmap(&mut self, id: u32, now: Tick) {
        let block = self.arena[id];
        let (start, end) = (block.addr, block.addr + block.size);
        let (&run_start, &run) = self.runs.range(..=start).next_back().expect("a mapped block lies in a run");
        self.runs.remove(&run_start);
        if run_start < start {
            self.runs.insert(run_start, Run { end: start, ..run });
            self.arena.cut_after(block.prev);
        }
        if end < run.end {
            self.runs.insert(end, run);
            self.arena[block.next].prev = NONE;
        }
        self.reserve_change(run.info, block.size, false, now);
        self.arena.remove(id);
        self.close_pieces(start, end, now);
    }

    /// Ends the open pieces in `[start, end)`; one that sticks out is cut.
    fn close_pieces(&mut self, start: u64, end: u64, now: Tick) {
        let first = self.pieces.range(..=start).next_back().map_or(start, |(&addr, _)| addr);
        let touched: Vec<(u64, u32)> = self.pieces.range(first..end).map(|(&addr, &i)| (addr, i)).collect();
        for (addr, i) in touched {
            let piece = self.history.segments[i as usize];
            let piece_end = addr + piece.size.0;
            if piece_end <= start {
                continue;
            }
            self.pieces.remove(&addr);
            let (cut_start, cut_end) = (addr.max(start), piece_end.min(end));
            let span = &mut self.history.segments[i as usize];
            span.addr = DeviceAddr(cut_start);
            span.size = Bytes(cut_end - cut_start);
            span.end = now;
            for (from, to) in [(addr, cut_start), (cut_end, piece_end)] {
                if from < to {
                    self.pieces.insert(from, self.history.segments.len() as u32);
                    self.history.segments.push(SegmentSpan {
                        addr: DeviceAddr(from),
                        size: Bytes(to - from),
                        ..piece
                    });
                }
            }
        }
    }

    pub(super) fn add_segment(&mut self, addr: u64, size: u64, info: RunInfo, now: Tick, stack: StackId) {
        let run = self.info(info);
        let span = self.open_span(addr, size, info, now, stack);
        self.runs.insert(addr, Run { end: addr + size, info: run, span });
        self.arena.add(addr, size, run, false, NONE, NONE);
        self.reserve_change(run, size, true, now);
        self.native_segments += 1;
        self.history.segments_peak = self.history.segments_peak.max(self.native_segments);
    }

    /// Adds mapped memory, joining the stretches before and after it.
    pub(super) fn map(&mut self, addr: u64, size: u64, info: RunInfo, now: Tick, stack: StackId) {
        let run = self.info(info);
        let span = self.open_span(addr, size, info, now, stack);
        self.pieces.insert(addr, span);
        self.reserve_change(run, size, true, now);
        let end = addr + size;
        let before = self
            .runs
            .range(..addr)
            .next_back()
            .filter(|(_, r)| r.end == addr && r.span == NONE && r.info == run)
            .map(|(&start, _)| start);
        let after = self.runs.get(&end).filter(|r| r.span == NONE && r.info == run).copied();
        let prev = before.map_or(NONE, |_| self.arena.tail(addr));
        let next = after.and_then(|_| self.arena.starting_at(end)).unwrap_or(NONE);
        let id = self.arena.add(addr, size, run, true, prev, next);
        let run_start = before.unwrap_or(addr);
        let run_end = after.map_or(end, |r| r.end);
        if after.is_some() {
            self.runs.remove(&end);
        }
        self.runs.insert(run_start, Run { end: run_end, info: run, span: NONE });
        self.arena.merge(id);
    }

    fn open_span(&mut self, addr: u64, size: u64, info: RunInfo, now: Tick, stack: StackId) -> u32 {
        self.history.segments.push(SegmentSpan {
            addr: DeviceAddr(addr),
            size: Bytes(size),
            start: now,
            end: self.history.forever(),
            stream: info.stream,
            pool: info.pool,
            class: info.class,
            expandable: info.expandable,
            stack,
        });
        self.history.segments.len() as u32 - 1
    }

    /// Ends a segment with everything in it.
    fn close_run(&mut self, start: u64, now: Tick) {
        let Some(run) = self.runs.remove(&start) else { return };
        let mut id = self.arena.starting_at(start).unwrap_or(NONE);
        while id != NONE {
            let block = self.arena[id];
            if block.state == BlockState::Live {
                self.free_requested_block(id, now);
            }
            if block.state != BlockState::Free {
                self.history.allocations.ends[block.allocation as usize] = now.0;
                self.for_each_usage(&block, Usage::free_completed);
            }
            self.arena.remove(id);
            id = block.next;
        }
        self.reserve_change(run.info, run.end - start, false, now);
        if run.span == NONE {
            self.close_pieces(start, run.end, now);
        } else {
            self.history.segments[run.span as usize].end = now;
            self.native_segments -= 1;
        }
    }

    fn close_everything(&mut self, now: Tick) {
        let starts: Vec<u64> = self.runs.keys().copied().collect();
        for start in starts {
            self.close_run(start, now);
        }
    }

    /// True if the events from `index` on are those of the beginning over again: recordings of one process strung
    /// together, each from its first allocation on.
    fn begins_again(&self, index: EventIndex) -> bool {
        const WINDOW: u32 = 16;
        let events = &self.device.events;
        let left = events.len() as u32 - index.0;
        let same = |i: u32| {
            let (a, b) = (EventIndex(i), EventIndex(index.0 + i));
            (events.action(a), events.addr(a), events.size(a), events.stream(a))
                == (events.action(b), events.addr(b), events.size(b), events.stream(b))
        };
        index.0 > 0 && (0..left.min(WINDOW).min(index.0)).all(same)
    }

    fn run_info(&self, index: EventIndex, event: &Event, expandable: bool) -> RunInfo {
        let small = if expandable {
            self.large.is_small(event.addr.0, event.size)
        } else {
            event.size <= torch_rules::SMALL_SEGMENT
        };
        let pool = if self.device.events.has_pools() {
            event.pool
        } else {
            let at =
                self.final_pools.range(..=event.addr.0).next_back().filter(|(_, f)| event.addr.0 < f.end);
            // Addresses are used again: only the last segment there is the one that the end knows.
            let range = (event.stream, small);
            at.filter(|(_, f)| if expandable { f.range_of == Some(range) } else { f.taken_by == Some(index) })
                .map_or(0, |(_, f)| f.pool)
        };
        let class = if self.two_classes && small { SizeClass::Small } else { SizeClass::Large };
        RunInfo { stream: event.stream, pool, class, expandable }
    }

    /// The index of `info`, and with it of the pool that its bytes are counted in.
    pub(super) fn info(&mut self, info: RunInfo) -> u32 {
        if let Some(&id) = self.info_ids.get(&info) {
            return id;
        }
        let pools = &mut self.history.pools;
        let group = *self.group_ids.entry((info.pool, info.class)).or_insert_with(|| {
            pools.push(PoolUsage { pool: info.pool, class: info.class, usage: Usage::default() });
            pools.len() as u32 - 1
        });
        let id = self.infos.len() as u32;
        self.infos.push((info, group));
        self.info_ids.insert(info, id);
        id
    }

    fn reserve_change(&mut self, info: u32, size: u64, taken: bool, now: Tick) {
        let (info, group) = self.infos[info as usize];
        let stream = self.history.streams.get_mut(info.stream as usize).map(|u| &mut u.reserved);
        let meters = [
            Some(&mut self.history.usage.reserved),
            Some(&mut self.history.pools[group as usize].usage.reserved),
            stream,
        ];
        for meter in meters.into_iter().flatten() {
            if taken { meter.add(Bytes(size), now) } else { meter.sub(Bytes(size)) }
        }
    }

    fn overlapped_run(&self, addr: u64, size: u64) -> Option<u64> {
        let end = addr.saturating_add(size.max(1));
        self.runs.range(..end).next_back().filter(|(_, run)| run.end > addr).map(|(&start, _)| start)
    }

    fn is_free(&self, start: u64, end: u64) -> bool {
        self.arena.starting_at(start).is_some_and(|id| {
            let block = &self.arena[id];
            block.state == BlockState::Free && block.end() == end
        })
    }
}
