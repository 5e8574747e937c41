//! The heap's geometry, driven by recorded events: segments cut into blocks, blocks split and merged as PyTorch does.
//!
//! It decides nothing about placement, the events say where; it follows what that means for the blocks around.
//!
//! Invariants, for every run (a segment, or a maximal mapped stretch of an expandable one):
//!   its blocks, linked by `prev`/`next`, tile it: block.addr + block.size == next.addr;
//!   no two neighbours are both free; `at[block.addr]` is the block.
//! Cost: two or three hash look-ups an event; address order is built only when an event falls inside a block.

mod ahead;
mod arena;
mod places;
mod repairs;

pub use self::ahead::{Ahead, Follower};

use self::arena::{Arena, HeapBlock, NONE};
use self::repairs::Repairs;
use crate::curve::Curve;
use crate::events::{Action, Event};
use crate::history::{Allocation, History, HistoryError, PoolUsage, SegmentSpan};
use crate::initial::{self, InitialState};
use crate::mapped::LargeRanges;
use crate::settings::AllocatorSettings;
use crate::stacks::StackId;
use crate::torch_rules;
use crate::trace::{BlockState, DeviceTrace, SizeClass, Trace};
use crate::usage::Usage;
use crate::words::{Bytes, DeviceAddr, EventIndex, Tick};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// What all blocks of a segment, or of a mapped stretch, have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunInfo {
    pub(crate) stream: u16,
    pub(crate) pool: u16,
    pub(crate) class: SizeClass,
    pub(crate) expandable: bool,
}

/// The addresses of a run; its blocks are found by address.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    info: u32,
    /// The open span in `history.segments`; for mapped stretches the pieces have their own (`pieces`).
    span: u32,
}

/// The pool of a segment that is there at the end.
#[derive(Clone, Copy, Debug)]
struct FinalPool {
    end: u64,
    pool: u16,
    /// The event that took it from the device.
    taken_by: Option<EventIndex>,
    /// Of mapped memory, whose range it is: stream, and whether of the small half.
    range_of: Option<(u16, bool)>,
}

/// The segments at the end by address; empty where there is only the default pool.
fn final_pools(device: &DeviceTrace, large: &LargeRanges) -> BTreeMap<u64, FinalPool> {
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

/// `D` is the device while events are gone through, and nothing while more of them are waited for (`ahead`).
#[derive(Debug)]
pub(crate) struct Heap<D> {
    device: D,
    settings: AllocatorSettings,
    torch_rules: bool,
    /// Whether small and large requests are kept apart, as PyTorch and our own allocator do.
    two_classes: bool,
    /// Whether everything is of the device's one stream, whose usage is then the device's.
    one_stream: bool,
    arena: Arena,
    runs: BTreeMap<u64, Run>,
    /// What runs have in common, each with the index of the pool usage that its bytes count in.
    infos: Vec<(RunInfo, u32)>,
    info_ids: FxHashMap<RunInfo, u32>,
    group_ids: FxHashMap<(u16, SizeClass), u32>,
    /// Open pieces of mapped stretches: address to index in `history.segments`.
    pieces: BTreeMap<u64, u32>,
    /// Pools of the segments in the final snapshot: events before torch 2.12 do not name theirs.
    final_pools: BTreeMap<u64, FinalPool>,
    large: LargeRanges,
    history: History,
    native_segments: u32,
    repairs: Repairs,
    /// Whether the setting of expandable segments has decided anything.
    asked_whether_expandable: bool,
    /// Whether later events are not there yet.
    ahead: bool,
}

impl<'a> Heap<&'a DeviceTrace> {
    pub(crate) fn rebuild(trace: &Trace, device: &'a DeviceTrace) -> Result<History, HistoryError> {
        let finals = initial::final_state(device)?;
        // Most recordings begin with the process. Try that; where an event or the end contradicts it, find the
        // beginning by going backward from the end, and start again.
        let mut heap = Heap::new(trace, device);
        let from_nothing = heap.run().is_ok() && heap.compare_with_final() == 0;
        if from_nothing {
            return Ok(heap.finish());
        }
        let rules = heap.torch_rules.then_some(&heap.settings);
        let initial = initial::find(device, &finals, rules)?;
        let mut heap = Heap::new(trace, device);
        heap.begin(&initial)?;
        heap.run()?;
        heap.repairs.final_differences = heap.compare_with_final();
        heap.repairs.began_late = !initial.segments.is_empty() || !initial.blocks.is_empty();
        Ok(heap.finish())
    }

    fn new(trace: &Trace, device: &'a DeviceTrace) -> Heap<&'a DeviceTrace> {
        let events = &device.events;
        let forever = Tick(events.len() as u32 + 1);
        let mut history = History {
            last_tick: Tick(events.len() as u32),
            curve: Curve::for_ticks(Tick(events.len() as u32)),
            streams: vec![Usage::default(); device.streams.len()],
            has_segments: !device.segments.is_empty()
                || events.count(Action::SegmentAlloc) + events.count(Action::SegmentMap) > 0
                || events.count(Action::SegmentFree) + events.count(Action::SegmentUnmap) > 0,
            ..History::default()
        };
        history.allocations.reserve(events.count(Action::Alloc));
        debug_assert_eq!(history.forever(), forever);
        let large = LargeRanges::of(device, trace.source.is_gapless());
        Heap {
            device,
            settings: trace.settings.clone().unwrap_or_default(),
            torch_rules: trace.source.torch_rules,
            two_classes: trace.source.torch_rules || trace.source.is_gapless(),
            one_stream: device.streams.len() == 1
                && events.has_one_stream()
                && device.segments.iter().all(|segment| segment.stream == 0),
            arena: Arena::default(),
            runs: BTreeMap::new(),
            infos: Vec::new(),
            info_ids: FxHashMap::default(),
            group_ids: FxHashMap::default(),
            pieces: BTreeMap::new(),
            final_pools: final_pools(device, &large),
            large,
            history,
            native_segments: 0,
            repairs: Repairs::default(),
            asked_whether_expandable: false,
            ahead: false,
        }
    }

    /// Sets the heap to the state before the first event.
    fn begin(&mut self, initial: &InitialState) -> Result<(), HistoryError> {
        for s in &initial.segments {
            if s.info.expandable {
                self.map(s.addr, s.size, s.info, Tick(0), s.stack);
            } else {
                self.add_segment(s.addr, s.size, s.info, Tick(0), s.stack);
            }
        }
        for b in &initial.blocks {
            let taken =
                self.arena.carve(b.addr, b.size).filter(|&id| self.arena[id].state == BlockState::Free);
            let Some(id) = taken else {
                return Err(self.no_such(b.freed_by.unwrap_or_default(), b.addr));
            };
            let stream = self.infos[self.arena[id].run as usize].0.stream;
            let event = Event { stream: b.stream.unwrap_or(stream), stack: b.stack, ..Event::default() };
            self.occupy(id, Bytes(b.requested), event, Tick(0));
            self.history.preexisting += 1;
            if b.pending {
                self.free_requested_block(id, Tick(0));
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), HistoryError> {
        let events = &self.device.events;
        self.history.curve.record(Tick(0), &self.history.usage);
        // A recording can be told to skip kinds of events: then one free stands for both.
        let one_free = events.count(Action::FreeCompleted) == 0 || events.count(Action::FreeRequested) == 0;
        self.go_through(0..events.len() as u32, one_free)
    }

    /// Takes in these events, the next ones.
    fn go_through(&mut self, indices: Range<u32>, one_free: bool) -> Result<(), HistoryError> {
        let device = self.device;
        let events = &device.events;
        let geometry = self.history.has_segments;
        // The block that the event before asked to free: most are free with the next event.
        let mut asked: Option<u32> = None;
        for index in indices.map(EventIndex) {
            let now = index.after();
            let before = asked.take();
            match events.action(index) {
                Action::Alloc if geometry => self.alloc(index, now)?,
                Action::Alloc => self.alloc_anywhere(index, now)?,
                Action::FreeRequested | Action::FreeCompleted if one_free => {
                    let id = self.block_to_free(index)?;
                    self.free_requested_block(id, now);
                    self.free_completed_block(id, now);
                    self.history.curve.record_no_growth(now, &self.history.usage);
                    continue;
                }
                Action::FreeRequested => {
                    let id = self.block_to_free(index)?;
                    if self.arena[id].state != BlockState::Live {
                        return Err(self.no_such(index, events.addr(index).0));
                    }
                    self.free_requested_block(id, now);
                    self.history.curve.record_no_growth(now, &self.history.usage);
                    asked = Some(id);
                    continue;
                }
                Action::FreeCompleted => {
                    let same = before.filter(|&id| self.arena[id].addr == events.addr(index).0);
                    let id = match same {
                        Some(id) => id,
                        None => self.block_to_free(index)?,
                    };
                    if self.arena[id].state == BlockState::Live {
                        self.free_requested_block(id, now);
                    }
                    self.free_completed_block(id, now);
                    self.history.curve.record_no_growth(now, &self.history.usage);
                    continue;
                }
                Action::SegmentAlloc => self.segment_alloc(index, now)?,
                Action::SegmentFree => self.segment_free(index, now)?,
                Action::SegmentMap => self.segment_map(index, now)?,
                Action::SegmentUnmap => self.segment_unmap(index, now)?,
                Action::Oom | Action::Snapshot => {}
            }
            self.history.curve.record(now, &self.history.usage);
        }
        Ok(())
    }

    // ---- allocation and free ----

    /// The least that a request takes.
    #[inline]
    fn block_size(&self, asked: Bytes) -> u64 {
        if self.torch_rules {
            torch_rules::round_size(asked, &self.settings).0
        } else if self.two_classes {
            // Our own allocator's unit is PyTorch's, and no setting changes it.
            asked.0.max(1).next_multiple_of(torch_rules::MIN_BLOCK.0)
        } else {
            asked.0.max(1)
        }
    }

    #[inline]
    fn alloc(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.placement(index);
        let rounded = self.block_size(event.size);
        let found = self.arena.starting_at(event.addr.0);
        let id = match found {
            Some(id) if self.arena[id].state == BlockState::Free => id,
            Some(id) => return Err(self.overlap(index, id)),
            None => self.block_inside(index, &event)?,
        };
        let block = self.arena[id];
        if block.size < event.size.0 {
            let other = if block.next == NONE { id } else { block.next };
            return Err(self.overlap(index, other));
        }
        let info = self.infos[block.run as usize].0;
        let expandable = info.expandable || self.settings.expandable_segments;
        self.asked_whether_expandable |= !info.expandable && block.size > rounded;
        if block.size > rounded
            && (!self.torch_rules
                || torch_rules::splits(Bytes(block.size), Bytes(rounded), expandable, &self.settings))
        {
            self.arena.split(id, rounded);
        }
        self.occupy(id, event.size, event, now);
        Ok(())
    }

    /// The source has no segments: a block is where the event says, as long as nothing else is there.
    fn alloc_anywhere(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        let size = self.block_size(event.size);
        let start = event.addr.0;
        let Some(end) = start.checked_add(size) else { return Err(self.segment_mismatch(index)) };
        if let Some(id) = self.arena.touching(start, end) {
            return Err(self.overlap(index, id));
        }
        let info = RunInfo {
            stream: event.stream,
            pool: event.pool,
            class: if self.two_classes && torch_rules::is_small(Bytes(size)) {
                SizeClass::Small
            } else {
                SizeClass::Large
            },
            expandable: false,
        };
        let run = self.info(info);
        let id = self.arena.add(start, size, run, false, NONE, NONE);
        self.occupy(id, event.size, event, now);
        Ok(())
    }

    /// The event falls inside a block, or outside everything: cut a free block open, or trim the slack of a live
    /// one whose size was taken too large (settings changed while the run went on).
    #[cold]
    fn block_inside(&mut self, index: EventIndex, event: &Event) -> Result<u32, HistoryError> {
        let addr = event.addr.0;
        let Some(id) = self.arena.containing(addr) else {
            return Err(HistoryError::SegmentMismatch {
                device: self.device.device,
                event: index,
                action: "alloc",
                addr: event.addr,
                size: event.size,
            });
        };
        let block = self.arena[id];
        if block.state != BlockState::Free {
            let asked = self.history.allocations.requested[block.allocation as usize];
            if block.addr + asked > addr {
                return Err(self.overlap(index, id));
            }
            return Ok(self.trim(id, addr - block.addr));
        }
        Ok(self.arena.split(id, addr - block.addr))
    }

    #[inline]
    fn block_to_free(&self, index: EventIndex) -> Result<u32, HistoryError> {
        let addr = self.device.events.addr(index).0;
        match self.arena.starting_at(addr) {
            Some(id) if self.arena[id].state != BlockState::Free => Ok(id),
            _ => Err(self.no_such(index, addr)),
        }
    }

    /// Marks a free block as taken by a new allocation.
    #[inline]
    fn occupy(&mut self, id: u32, requested: Bytes, event: Event, now: Tick) {
        let block = self.arena[id];
        let (info, group) = self.infos[block.run as usize];
        let size = Bytes(block.size);
        let forever = self.history.forever();
        let allocation = self.history.allocations.push(&Allocation {
            addr: DeviceAddr(block.addr),
            requested,
            block: size,
            start: now,
            freed: forever,
            end: forever,
            stream: event.stream,
            pool: info.pool,
            class: info.class,
            stack: event.stack,
        });
        self.history.usage.alloc(requested, size, now);
        self.history.pools[group as usize].usage.alloc(requested, size, now);
        if !self.one_stream
            && let Some(usage) = self.history.streams.get_mut(event.stream as usize)
        {
            usage.alloc(requested, size, now);
        }
        let block = &mut self.arena[id];
        block.state = BlockState::Live;
        block.allocation = allocation.0;
    }

    #[inline]
    fn free_requested_block(&mut self, id: u32, now: Tick) {
        let block = self.arena[id];
        self.arena[id].state = BlockState::Pending;
        self.history.allocations.freed[block.allocation as usize] = now.0;
        self.for_each_usage(&block, Usage::free_requested);
    }

    #[inline]
    fn free_completed_block(&mut self, id: u32, now: Tick) {
        let block = self.arena[id];
        self.history.allocations.ends[block.allocation as usize] = now.0;
        self.for_each_usage(&block, Usage::free_completed);
        self.arena[id].state = BlockState::Free;
        if !self.history.has_segments {
            self.arena.remove(id);
            return;
        }
        self.arena.merge(id);
    }

    #[inline]
    fn for_each_usage(&mut self, block: &HeapBlock, apply: impl Fn(&mut Usage, Bytes, Bytes)) {
        let id = block.allocation as usize;
        let allocations = &self.history.allocations;
        let (requested, size) = (Bytes(allocations.requested[id]), Bytes(allocations.blocks[id]));
        let stream = allocations.streams[id] as usize;
        let group = self.infos[block.run as usize].1 as usize;
        apply(&mut self.history.usage, requested, size);
        apply(&mut self.history.pools[group].usage, requested, size);
        if !self.one_stream
            && let Some(usage) = self.history.streams.get_mut(stream)
        {
            apply(usage, requested, size);
        }
    }

    // ---- segments ----

    fn segment_alloc(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
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

    fn segment_free(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
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

    fn segment_map(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
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

    fn segment_unmap(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
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

    fn add_segment(&mut self, addr: u64, size: u64, info: RunInfo, now: Tick, stack: StackId) {
        let run = self.info(info);
        let span = self.open_span(addr, size, info, now, stack);
        self.runs.insert(addr, Run { end: addr + size, info: run, span });
        self.arena.add(addr, size, run, false, NONE, NONE);
        self.reserve_change(run, size, true, now);
        self.native_segments += 1;
        self.history.segments_peak = self.history.segments_peak.max(self.native_segments);
    }

    /// Adds mapped memory, joining the stretches before and after it.
    fn map(&mut self, addr: u64, size: u64, info: RunInfo, now: Tick, stack: StackId) {
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

    /// Whether the events from `index` on are those of the beginning over again: recordings of one
    /// process strung together, each from its first allocation on.
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
    fn info(&mut self, info: RunInfo) -> u32 {
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

    /// Takes slack away from a live block: `size` bytes stay, the rest is returned as a free block.
    fn trim(&mut self, id: u32, size: u64) -> u32 {
        let block = self.arena[id];
        let slack = Bytes(block.size - size);
        let rest = self.arena.split(id, size);
        self.history.allocations.blocks[block.allocation as usize] = size;
        let pending = block.state == BlockState::Pending;
        self.for_each_usage(&block, |usage, _, _| {
            usage.active.sub(slack);
            if !pending {
                usage.allocated.sub(slack);
            }
        });
        self.repairs.trimmed_blocks += 1;
        rest
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

    // ---- the end ----

    /// How many blocks and segments of the final snapshot differ from the state reached.
    fn compare_with_final(&self) -> u32 {
        let mut differ = 0;
        let mut active = 0;
        for segment in &self.device.segments {
            let held = self
                .runs
                .range(..=segment.addr.0)
                .next_back()
                .is_some_and(|(_, run)| run.end >= segment.addr.0 + segment.size.0);
            differ += u32::from(!held);
            for block in self.device.blocks_of(segment).iter().filter(|b| b.state != BlockState::Free) {
                active += 1;
                let same = self.arena.starting_at(block.addr.0).is_some_and(|id| {
                    let own = &self.arena[id];
                    own.state == block.state && own.size == block.size.0
                });
                differ += u32::from(!same);
            }
        }
        if !self.device.segments.is_empty() {
            let own = self.arena.iter().filter(|own| own.state != BlockState::Free).count() as u32;
            differ += own.saturating_sub(active);
        }
        differ
    }

    fn finish(mut self) -> History {
        if self.one_stream
            && let Some(stream) = self.history.streams.first_mut()
        {
            *stream = self.history.usage;
        }
        self.history.notes = self.repairs.notes(&self.history);
        self.history
    }

    // ---- errors ----

    #[cold]
    fn overlap(&self, index: EventIndex, other: u32) -> HistoryError {
        let other = &self.arena[other];
        HistoryError::Overlap {
            device: self.device.device,
            event: index,
            addr: self.device.events.addr(index),
            size: self.device.events.size(index),
            other_addr: DeviceAddr(other.addr),
            other_size: Bytes(other.size),
        }
    }

    #[cold]
    fn no_such(&self, index: EventIndex, addr: u64) -> HistoryError {
        HistoryError::FreeWithoutAlloc {
            device: self.device.device,
            event: index,
            action: if self.device.events.is_empty() {
                "a block"
            } else {
                self.device.events.action(index).name()
            },
            addr: DeviceAddr(addr),
        }
    }

    #[cold]
    fn segment_mismatch(&self, index: EventIndex) -> HistoryError {
        let event = self.device.events.get(index);
        HistoryError::SegmentMismatch {
            device: self.device.device,
            event: index,
            action: event.action.name(),
            addr: event.addr,
            size: event.size,
        }
    }
}
