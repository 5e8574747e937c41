//! The heap's geometry, driven by recorded events: segments cut into blocks, blocks split and merged as PyTorch does.
//!
//! It decides nothing about placement, the events say where; it follows what that means for the blocks around.
//!
//! Invariants, for every run (a segment, or a maximal mapped stretch of an expandable one):
//!   its blocks, linked by `prev`/`next`, tile it: block.addr + block.size == next.addr;
//!   no two neighbours are both free; `at[block.addr]` is the block.
//! Cost: two or three hash look-ups an event; address order is built only when an event falls inside a block.

use crate::events::{Action, Event};
use crate::history::{Allocation, AllocationId, History, HistoryError, PoolUsage, SegmentSpan};
use crate::initial::{self, InitialState};
use crate::settings::AllocatorSettings;
use crate::stacks::StackId;
use crate::torch_rules;
use crate::trace::{BlockState, DeviceTrace, Note, SizeClass, Trace};
use crate::usage::Usage;
use crate::words::{Bytes, DeviceAddr, EventIndex, Tick};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

const NONE: u32 = u32::MAX;

/// A range of addresses, in use or free. 40 bytes: a cache line holds most of two neighbours.
#[derive(Clone, Copy, Debug)]
struct HeapBlock {
    addr: u64,
    size: u64,
    prev: u32,
    next: u32,
    run: u32,
    /// The allocation that holds it; meaningless when free.
    allocation: u32,
    state: BlockState,
}

/// What all blocks of a segment, or of a mapped stretch, have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunInfo {
    pub(crate) stream: u16,
    pub(crate) pool: u16,
    pub(crate) class: SizeClass,
    pub(crate) expandable: bool,
}

/// The addresses of a run. `last` is its last block; the first is found by its address.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    info: u32,
    /// The open span in `history.segments`; for mapped stretches the pieces have their own (`pieces`).
    span: u32,
}

pub(crate) struct Heap<'a> {
    device: &'a DeviceTrace,
    settings: AllocatorSettings,
    torch_rules: bool,
    blocks: Vec<HeapBlock>,
    spare: Vec<u32>,
    at: FxHashMap<u64, u32>,
    order: Option<BTreeMap<u64, u32>>,
    runs: BTreeMap<u64, Run>,
    infos: Vec<(RunInfo, u16)>,
    /// Open pieces of mapped stretches: address to index in `history.segments`.
    pieces: BTreeMap<u64, u32>,
    /// Pools of the segments in the final snapshot: events before torch 2.12 do not name theirs.
    final_pools: FxHashMap<u64, u16>,
    history: History,
    native_segments: u32,
    repairs: Repairs,
}

/// What had to be inferred on the way; becomes notes.
#[derive(Clone, Copy, Debug, Default)]
struct Repairs {
    restarts: u32,
    implied_segment_frees: u32,
    trimmed_blocks: u32,
    final_differences: u32,
}

impl<'a> Heap<'a> {
    pub(crate) fn rebuild(trace: &Trace, device: &'a DeviceTrace) -> Result<History, HistoryError> {
        let finals = initial::final_state(device)?;
        // Most recordings begin with the process. Try that; where an event or the end contradicts it, find the
        // beginning by going backward from the end, and start again.
        let mut heap = Heap::new(trace, device);
        let from_nothing = heap.run().is_ok() && heap.compare_with_final() == 0;
        if from_nothing {
            return Ok(heap.finish(false));
        }
        let initial = initial::find(device, &finals, trace.source.torch_rules)?;
        let mut heap = Heap::new(trace, device);
        heap.begin(&initial)?;
        heap.run()?;
        heap.repairs.final_differences = heap.compare_with_final();
        let began_late = !initial.segments.is_empty() || !initial.blocks.is_empty();
        Ok(heap.finish(began_late))
    }

    fn new(trace: &Trace, device: &'a DeviceTrace) -> Heap<'a> {
        let events = &device.events;
        let forever = Tick(events.len() as u32 + 1);
        let mut history = History {
            last_tick: Tick(events.len() as u32),
            streams: vec![Usage::default(); device.streams.len()],
            has_segments: !device.segments.is_empty()
                || events.count(Action::SegmentAlloc) + events.count(Action::SegmentMap) > 0
                || events.count(Action::SegmentFree) + events.count(Action::SegmentUnmap) > 0,
            ..History::default()
        };
        history.allocations.reserve(events.count(Action::Alloc));
        debug_assert_eq!(history.forever(), forever);
        Heap {
            device,
            settings: trace.settings.clone().unwrap_or_default(),
            torch_rules: trace.source.torch_rules,
            blocks: Vec::new(),
            spare: Vec::new(),
            at: FxHashMap::default(),
            order: None,
            runs: BTreeMap::new(),
            infos: Vec::new(),
            pieces: BTreeMap::new(),
            final_pools: device.segments.iter().map(|s| (s.addr.0, s.pool)).collect(),
            history,
            native_segments: 0,
            repairs: Repairs::default(),
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
            let taken = self
                .carve(b.addr, b.size.max(1))
                .filter(|&id| self.blocks[id as usize].state == BlockState::Free);
            let Some(id) = taken else {
                return Err(self.no_such(b.freed_by.unwrap_or_default(), b.addr));
            };
            let stream = self.infos[self.blocks[id as usize].run as usize].0.stream;
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
        let device = self.device;
        let events = &device.events;
        // A recording can be told to skip kinds of events: then one free stands for both.
        let one_free = events.count(Action::FreeCompleted) == 0 || events.count(Action::FreeRequested) == 0;
        let geometry = self.history.has_segments;
        for index in events.indices() {
            let now = index.after();
            match events.action(index) {
                Action::Alloc if geometry => self.alloc(index, now)?,
                Action::Alloc => self.alloc_anywhere(index, now)?,
                Action::FreeRequested | Action::FreeCompleted if one_free => {
                    let id = self.block_to_free(index)?;
                    self.free_requested_block(id, now);
                    self.free_completed_block(id, now);
                }
                Action::FreeRequested => {
                    let id = self.block_to_free(index)?;
                    if self.blocks[id as usize].state != BlockState::Live {
                        return Err(self.no_such(index, events.addr(index).0));
                    }
                    self.free_requested_block(id, now);
                }
                Action::FreeCompleted => {
                    let id = self.block_to_free(index)?;
                    if self.blocks[id as usize].state == BlockState::Live {
                        self.free_requested_block(id, now);
                    }
                    self.free_completed_block(id, now);
                }
                Action::SegmentAlloc => self.segment_alloc(index, now)?,
                Action::SegmentFree => self.segment_free(index, now)?,
                Action::SegmentMap => self.segment_map(index, now)?,
                Action::SegmentUnmap => self.segment_unmap(index, now)?,
                Action::Oom | Action::Snapshot => {}
            }
        }
        Ok(())
    }

    // ---- allocation and free ----

    #[inline]
    fn alloc(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        let rounded = if self.torch_rules {
            torch_rules::round_size(event.size, &self.settings).0
        } else {
            event.size.0.max(1)
        };
        let found = self.at.get(&event.addr.0).copied();
        let id = match found {
            Some(id) if self.blocks[id as usize].state == BlockState::Free => id,
            Some(id) => return Err(self.overlap(index, id)),
            None => self.block_inside(index, &event)?,
        };
        let block = self.blocks[id as usize];
        if block.size < event.size.0 {
            let other = if block.next == NONE { id } else { block.next };
            return Err(self.overlap(index, other));
        }
        let info = self.infos[block.run as usize].0;
        let expandable = info.expandable || self.settings.expandable_segments;
        if block.size > rounded
            && (!self.torch_rules
                || torch_rules::splits(Bytes(block.size), Bytes(rounded), expandable, &self.settings))
        {
            self.split(id, rounded);
        }
        self.occupy(id, event.size, event, now);
        Ok(())
    }

    /// The source has no segments: a block is where the event says, as long as nothing else is there.
    fn alloc_anywhere(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        let size = if self.torch_rules {
            torch_rules::round_size(event.size, &self.settings).0
        } else {
            event.size.0.max(1)
        };
        let (start, end) = (event.addr.0, event.addr.0.saturating_add(size));
        let order = self.ordered();
        let neighbour = order
            .range(..=start)
            .next_back()
            .map(|(_, &id)| id)
            .into_iter()
            .chain(order.range(start..).next().map(|(_, &id)| id))
            .find(|&id| {
                let other = &self.blocks[id as usize];
                other.addr < end && start < other.addr + other.size
            });
        if let Some(id) = neighbour {
            return Err(self.overlap(index, id));
        }
        let info = RunInfo {
            stream: event.stream,
            pool: event.pool,
            class: if self.torch_rules && torch_rules::is_small(Bytes(size)) {
                SizeClass::Small
            } else {
                SizeClass::Large
            },
            expandable: false,
        };
        let run = self.info(info);
        let id = self.add_block(start, size, run, NONE, NONE);
        self.occupy(id, event.size, event, now);
        Ok(())
    }

    /// The event falls inside a block, or outside everything: cut a free block open, or trim the slack of a live
    /// one whose size was taken too large (settings changed while the run went on).
    #[cold]
    fn block_inside(&mut self, index: EventIndex, event: &Event) -> Result<u32, HistoryError> {
        let addr = event.addr.0;
        let Some(id) = self.containing(addr) else {
            return Err(HistoryError::SegmentMismatch {
                device: self.device.device,
                event: index,
                action: "alloc",
                addr: event.addr,
                size: event.size,
            });
        };
        let block = self.blocks[id as usize];
        if block.state != BlockState::Free {
            let asked = self.history.allocations.requested[block.allocation as usize];
            if block.addr + asked > addr {
                return Err(self.overlap(index, id));
            }
            self.trim(id, addr - block.addr);
            return Ok(self.blocks[id as usize].next);
        }
        self.split(id, addr - block.addr);
        Ok(self.blocks[id as usize].next)
    }

    #[inline]
    fn block_to_free(&self, index: EventIndex) -> Result<u32, HistoryError> {
        let addr = self.device.events.addr(index).0;
        match self.at.get(&addr) {
            Some(&id) if self.blocks[id as usize].state != BlockState::Free => Ok(id),
            _ => Err(self.no_such(index, addr)),
        }
    }

    /// Marks a free block as taken by a new allocation.
    #[inline]
    fn occupy(&mut self, id: u32, requested: Bytes, event: Event, now: Tick) {
        let block = self.blocks[id as usize];
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
        if let Some(usage) = self.history.streams.get_mut(event.stream as usize) {
            usage.alloc(requested, size, now);
        }
        let block = &mut self.blocks[id as usize];
        block.state = BlockState::Live;
        block.allocation = allocation.0;
    }

    #[inline]
    fn free_requested_block(&mut self, id: u32, now: Tick) {
        let block = self.blocks[id as usize];
        self.blocks[id as usize].state = BlockState::Pending;
        self.history.allocations.freed[block.allocation as usize] = now.0;
        self.for_each_usage(&block, Usage::free_requested);
    }

    #[inline]
    fn free_completed_block(&mut self, id: u32, now: Tick) {
        let block = self.blocks[id as usize];
        self.history.allocations.ends[block.allocation as usize] = now.0;
        self.for_each_usage(&block, Usage::free_completed);
        self.blocks[id as usize].state = BlockState::Free;
        if !self.history.has_segments {
            self.drop_block(id);
            return;
        }
        let mut id = id;
        if block.prev != NONE && self.blocks[block.prev as usize].state == BlockState::Free {
            self.merge(block.prev);
            id = block.prev;
        }
        let next = self.blocks[id as usize].next;
        if next != NONE && self.blocks[next as usize].state == BlockState::Free {
            self.merge(id);
        }
    }

    #[inline]
    fn for_each_usage(&mut self, block: &HeapBlock, apply: impl Fn(&mut Usage, Bytes, Bytes)) {
        let allocation = self.history.allocations.get(AllocationId(block.allocation));
        let group = self.infos[block.run as usize].1;
        apply(&mut self.history.usage, allocation.requested, allocation.block);
        apply(&mut self.history.pools[group as usize].usage, allocation.requested, allocation.block);
        if let Some(usage) = self.history.streams.get_mut(allocation.stream as usize) {
            apply(usage, allocation.requested, allocation.block);
        }
    }

    // ---- segments ----

    fn segment_alloc(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        if self.overlapped_run(event.addr.0, event.size.0).is_some() {
            if self.begins_again(index) {
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
        let info = self.run_info(&event, false);
        self.add_segment(event.addr.0, event.size.0, info, now, event.stack);
        Ok(())
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
        let event = self.device.events.get(index);
        if self.overlapped_run(event.addr.0, event.size.0).is_some() {
            if !self.begins_again(index) {
                return Err(self.segment_mismatch(index));
            }
            self.close_everything(now);
            self.repairs.restarts += 1;
        }
        let info = self.run_info(&event, true);
        self.map(event.addr.0, event.size.0, info, now, event.stack);
        Ok(())
    }

    fn segment_unmap(&mut self, index: EventIndex, now: Tick) -> Result<(), HistoryError> {
        let event = self.device.events.get(index);
        let (start, end) = (event.addr.0, event.addr.0.saturating_add(event.size.0));
        let inside = self
            .containing(start)
            .map(|id| self.blocks[id as usize])
            .filter(|b| b.state == BlockState::Free && end <= b.addr + b.size && end > start)
            .filter(|b| self.infos[b.run as usize].0.expandable);
        let Some(block) = inside else { return Err(self.segment_mismatch(index)) };
        let mut id = self.at[&block.addr];
        if start > block.addr {
            self.split(id, start - block.addr);
            id = self.blocks[id as usize].next;
        }
        if end - start < self.blocks[id as usize].size {
            self.split(id, end - start);
        }
        self.unmap(id, now);
        Ok(())
    }

    /// Removes a free block of a mapped stretch, with the memory behind it; the stretch falls into two.
    fn unmap(&mut self, id: u32, now: Tick) {
        let block = self.blocks[id as usize];
        let (start, end) = (block.addr, block.addr + block.size);
        let (&run_start, &run) = self.runs.range(..=start).next_back().expect("a mapped block lies in a run");
        self.runs.remove(&run_start);
        if run_start < start {
            self.runs.insert(run_start, Run { end: start, ..run });
            self.blocks[block.prev as usize].next = NONE;
        }
        if end < run.end {
            self.runs.insert(end, run);
            self.blocks[block.next as usize].prev = NONE;
        }
        self.reserve_change(run.info, block.size, false, now);
        self.drop_block(id);
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
        self.add_block(addr, size, run, NONE, NONE);
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
        let prev = before.map_or(NONE, |_| self.block_before(addr));
        let next = after.map_or(NONE, |_| self.at[&end]);
        let id = self.add_block(addr, size, run, prev, next);
        let run_start = before.unwrap_or(addr);
        let run_end = after.map_or(end, |r| r.end);
        if after.is_some() {
            self.runs.remove(&end);
        }
        self.runs.insert(run_start, Run { end: run_end, info: run, span: NONE });
        let mut id = id;
        if prev != NONE && self.blocks[prev as usize].state == BlockState::Free {
            self.merge(prev);
            id = prev;
        }
        if next != NONE && self.blocks[next as usize].state == BlockState::Free {
            self.merge(id);
        }
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
        let mut id = self.at[&start];
        while id != NONE {
            let block = self.blocks[id as usize];
            if block.state == BlockState::Live {
                self.free_requested_block(id, now);
            }
            if block.state != BlockState::Free {
                self.history.allocations.ends[block.allocation as usize] = now.0;
                self.for_each_usage(&block, Usage::free_completed);
            }
            self.drop_block(id);
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

    fn run_info(&self, event: &Event, expandable: bool) -> RunInfo {
        let pool = if self.device.events.has_pools() {
            event.pool
        } else {
            self.final_pools.get(&event.addr.0).copied().unwrap_or(0)
        };
        let small = self.torch_rules && event.size <= torch_rules::SMALL_SEGMENT;
        let class = if small { SizeClass::Small } else { SizeClass::Large };
        RunInfo { stream: event.stream, pool, class, expandable }
    }

    /// The index of `info`, and with it of the pool that its bytes are counted in.
    fn info(&mut self, info: RunInfo) -> u32 {
        if let Some(at) = self.infos.iter().position(|(known, _)| *known == info) {
            return at as u32;
        }
        let pools = &mut self.history.pools;
        let group =
            pools.iter().position(|p| (p.pool, p.class) == (info.pool, info.class)).unwrap_or_else(|| {
                pools.push(PoolUsage { pool: info.pool, class: info.class, usage: Usage::default() });
                pools.len() - 1
            });
        self.infos.push((info, group as u16));
        self.infos.len() as u32 - 1
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

    // ---- blocks ----

    fn add_block(&mut self, addr: u64, size: u64, run: u32, prev: u32, next: u32) -> u32 {
        let block = HeapBlock { addr, size, prev, next, run, allocation: NONE, state: BlockState::Free };
        let id = match self.spare.pop() {
            Some(id) => {
                self.blocks[id as usize] = block;
                id
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        };
        if prev != NONE {
            self.blocks[prev as usize].next = id;
        }
        if next != NONE {
            self.blocks[next as usize].prev = id;
        }
        self.at.insert(addr, id);
        if let Some(order) = &mut self.order {
            order.insert(addr, id);
        }
        id
    }

    fn drop_block(&mut self, id: u32) {
        let addr = self.blocks[id as usize].addr;
        self.at.remove(&addr);
        if let Some(order) = &mut self.order {
            order.remove(&addr);
        }
        self.spare.push(id);
    }

    /// Cuts a block: the front keeps its identity and `size` bytes, a new free block takes the rest.
    #[inline]
    fn split(&mut self, id: u32, size: u64) {
        let block = self.blocks[id as usize];
        self.blocks[id as usize].size = size;
        self.add_block(block.addr + size, block.size - size, block.run, id, block.next);
    }

    /// Joins a free block with its free successor.
    #[inline]
    fn merge(&mut self, id: u32) {
        let next = self.blocks[id as usize].next;
        let eaten = self.blocks[next as usize];
        self.drop_block(next);
        let block = &mut self.blocks[id as usize];
        block.size += eaten.size;
        block.next = eaten.next;
        if eaten.next != NONE {
            self.blocks[eaten.next as usize].prev = id;
        }
    }

    /// Takes slack away from a live block: `size` bytes stay.
    fn trim(&mut self, id: u32, size: u64) {
        let block = self.blocks[id as usize];
        let slack = Bytes(block.size - size);
        self.split(id, size);
        self.history.allocations.blocks[block.allocation as usize] = size;
        let pending = block.state == BlockState::Pending;
        self.for_each_usage(&block, |usage, _, _| {
            usage.active.sub(slack);
            if !pending {
                usage.allocated.sub(slack);
            }
        });
        self.repairs.trimmed_blocks += 1;
    }

    /// Cuts a free block so that one begins at `addr` with `size` bytes; `None` where that is not free.
    fn carve(&mut self, addr: u64, size: u64) -> Option<u32> {
        let mut id = self.containing(addr)?;
        let block = self.blocks[id as usize];
        if block.state != BlockState::Free || addr.checked_add(size)? > block.addr + block.size {
            return None;
        }
        if addr > block.addr {
            self.split(id, addr - block.addr);
            id = self.blocks[id as usize].next;
        }
        if size < self.blocks[id as usize].size {
            self.split(id, size);
        }
        Some(id)
    }

    fn ordered(&mut self) -> &BTreeMap<u64, u32> {
        let at = &self.at;
        self.order.get_or_insert_with(|| at.iter().map(|(&addr, &id)| (addr, id)).collect())
    }

    /// The block, free or not, that holds `addr`.
    fn containing(&mut self, addr: u64) -> Option<u32> {
        if let Some(&id) = self.at.get(&addr) {
            return Some(id);
        }
        let (_, &id) = self.ordered().range(..=addr).next_back()?;
        let block = &self.blocks[id as usize];
        (addr < block.addr + block.size).then_some(id)
    }

    /// The block that ends at `addr`, where a run does.
    fn block_before(&mut self, addr: u64) -> u32 {
        self.ordered().range(..addr).next_back().map_or(NONE, |(_, &id)| id)
    }

    fn overlapped_run(&self, addr: u64, size: u64) -> Option<u64> {
        let end = addr.saturating_add(size.max(1));
        self.runs.range(..end).next_back().filter(|(_, run)| run.end > addr).map(|(&start, _)| start)
    }

    fn is_free(&self, start: u64, end: u64) -> bool {
        self.at.get(&start).is_some_and(|&id| {
            let block = &self.blocks[id as usize];
            block.state == BlockState::Free && block.addr + block.size == end
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
                let same = self.at.get(&block.addr.0).is_some_and(|&id| {
                    let own = &self.blocks[id as usize];
                    own.state == block.state && own.size == block.size.0
                });
                differ += u32::from(!same);
            }
        }
        if !self.device.segments.is_empty() {
            let own =
                self.at.values().filter(|&&id| self.blocks[id as usize].state != BlockState::Free).count()
                    as u32;
            differ += own.saturating_sub(active);
        }
        differ
    }

    fn finish(mut self, began_late: bool) -> History {
        let mut notes = Vec::new();
        let mut note = |code, text| notes.push(Note { code, text });
        if began_late {
            note(
                "recording-began-late",
                format!(
                    "the recording begins with {} in {} allocations already held; they were rebuilt from the final \
                     segments, and peaks before the recording are not known",
                    self.history
                        .allocations
                        .iter()
                        .take_while(|a| a.start == Tick(0))
                        .map(|a| a.block)
                        .sum::<Bytes>(),
                    self.history.preexisting
                ),
            );
        }
        let repairs = self.repairs;
        if repairs.restarts > 0 {
            note(
                "recording-restarts",
                format!(
                    "the recording begins again {} time(s) at the addresses of its first events: what was held before \
                     is taken as released there",
                    repairs.restarts
                ),
            );
        }
        if repairs.implied_segment_frees > 0 {
            note(
                "segment-frees-missing",
                format!(
                    "{} segment(s) were taken again without a recorded release; the release is taken as implied",
                    repairs.implied_segment_frees
                ),
            );
        }
        if repairs.trimmed_blocks > 0 {
            note(
                "blocks-trimmed",
                format!(
                    "{} block(s) were smaller than the recorded settings say (were they changed during the run?)",
                    repairs.trimmed_blocks
                ),
            );
        }
        if repairs.final_differences > 0 {
            note(
                "final-state-differs",
                format!(
                    "{} block(s) or segment(s) of the final snapshot differ from what the events lead to: figures may be off \
                     by their sizes",
                    repairs.final_differences
                ),
            );
        }
        self.history.notes = notes;
        self.history
    }

    // ---- errors ----

    #[cold]
    fn overlap(&self, index: EventIndex, other: u32) -> HistoryError {
        let other = &self.blocks[other as usize];
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
