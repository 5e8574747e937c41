//! The heap's geometry, driven by recorded events: segments cut into blocks, blocks split and merged as PyTorch does.
//!
//! It decides nothing about placement, which the events give; it follows the consequences for the blocks around.
//!
//! Invariants, for every run (a segment, or a maximal mapped stretch of an expandable one):
//!   its blocks, linked by `prev`/`next`, tile it: block.addr + block.size == next.addr;
//!   no two neighbours are both free; `at[block.addr]` is the block.
//! Cost: two or three hash look-ups an event; address order is built only when an event falls inside a block.

mod ahead;
mod arena;
mod blocks;
mod final_pools;
mod places;
mod rebuild;
mod repairs;
mod runs;
mod segments;

pub use self::ahead::{Ahead, Follower};
pub(crate) use self::runs::RunInfo;

use self::arena::Arena;
use self::final_pools::{FinalPool, final_pools};
use self::repairs::Repairs;
use crate::allocations::HistoryError;
use crate::curve::Curve;
use crate::events::{Action, Event};
use crate::history::History;
use crate::initial::{self, InitialState};
use crate::mapped::LargeRanges;
use crate::settings::AllocatorSettings;
use crate::trace::{BlockState, DeviceTrace, SizeClass, Trace};
use crate::usage::Usage;
use crate::words::{Bytes, DeviceAddr, EventIndex, Tick};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// The addresses of a run; its blocks are found by address.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    info: u32,
    /// The open span in `history.segments`; for mapped stretches the pieces have their own (`pieces`).
    span: u32,
}

/// `D` is the device while events are gone through, and `()` while more of them are to come (`ahead`).
#[derive(Debug)]
pub(crate) struct Heap<D> {
    device: D,
    settings: AllocatorSettings,
    torch_rules: bool,
    /// True if small and large requests are kept apart, as PyTorch and our own allocator do.
    two_classes: bool,
    /// True if everything is of the device's one stream, whose usage is then the device's.
    one_stream: bool,
    arena: Arena,
    runs: BTreeMap<u64, Run>,
    /// Shared data of runs, each with the index of the pool usage that its bytes count in.
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
    /// True if the setting of expandable segments has decided anything.
    asked_whether_expandable: bool,
    /// True if later events are not there yet.
    ahead: bool,
}

impl<'a> Heap<&'a DeviceTrace> {
    pub(crate) fn rebuild(trace: &Trace, device: &'a DeviceTrace) -> Result<History, HistoryError> {
        let finals = initial::final_state(device)?;
        // Most recordings begin with the process. Try that; if an event or the end contradicts it, find the beginning
        // by going backward from the end, and start again.
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

    /// Processes these events, the next ones.
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

    // ---- the end ----

    /// The number of blocks and segments of the final snapshot that differ from the state reached.
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
