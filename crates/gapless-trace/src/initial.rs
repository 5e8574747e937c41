//! The heap before the first event, found by going backward from the heap at the end.
//!
//! PyTorch keeps the newest events in a ring, so a recording may begin in the middle of a run: with frees of blocks
//! whose allocation it does not have. The final segments give the heap at the end; undoing the events one by one gives
//! the heap at the beginning.

use crate::allocations::HistoryError;
use crate::events::Action;
use crate::heap::RunInfo;
use crate::mapped::LargeRanges;
use crate::settings::AllocatorSettings;
use crate::stacks::StackId;
use crate::torch_rules;
use crate::trace::{BlockState, DeviceTrace, SizeClass};
use crate::words::{Bytes, DeviceAddr, EventIndex};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A segment, or a piece of mapped memory, that was there before the first event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialSegment {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) info: RunInfo,
    pub(crate) stack: StackId,
}

/// A block that was in use before the first event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialBlock {
    pub(crate) addr: u64,
    pub(crate) requested: u64,
    /// Its exact size, or 0 while only `requested` is known.
    pub(crate) size: u64,
    pub(crate) stream: Option<u16>,
    pub(crate) stack: StackId,
    /// Already given back by its caller.
    pub(crate) pending: bool,
    /// The event that freed it, if one did.
    pub(crate) freed_by: Option<EventIndex>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct InitialState {
    /// By address.
    pub(crate) segments: Vec<InitialSegment>,
    /// By address.
    pub(crate) blocks: Vec<InitialBlock>,
}

/// The heap at the end as the snapshot holds it.
///
/// # Errors
/// When segments overlap or blocks stick out of them.
pub(crate) fn final_state(device: &DeviceTrace) -> Result<InitialState, HistoryError> {
    let mut state = InitialState::default();
    for segment in &device.segments {
        let info = RunInfo {
            stream: segment.stream,
            pool: segment.pool,
            class: segment.class,
            expandable: segment.expandable,
        };
        let (addr, size) = (segment.addr.0, segment.size.0);
        state.segments.push(InitialSegment { addr, size, info, stack: segment.stack });
        let mut at = addr;
        for block in device.blocks_of(segment) {
            let end = block.addr.0.saturating_add(block.size.0);
            if block.addr.0 < at || end == block.addr.0 || end > addr.saturating_add(size) {
                return Err(HistoryError::SegmentsOverlap { device: device.device, addr: block.addr });
            }
            at = end;
            if block.state != BlockState::Free {
                state.blocks.push(InitialBlock {
                    addr: block.addr.0,
                    requested: block.requested.0.min(block.size.0),
                    size: block.size.0,
                    stream: Some(segment.stream),
                    stack: block.stack,
                    pending: block.state == BlockState::Pending,
                    freed_by: None,
                });
            }
        }
    }
    state.segments.sort_unstable_by_key(|s| s.addr);
    state.blocks.sort_unstable_by_key(|b| b.addr);
    check_disjoint(device, &state.segments)?;
    Ok(state)
}

/// The heap before the first event. `settings` are those by which PyTorch sized its blocks; `None`: other rules.
///
/// # Errors
/// When the events cannot lead from any heap to the final one: a block freed twice, a free outside every segment.
pub(crate) fn find(
    device: &DeviceTrace,
    finals: &InitialState,
    settings: Option<&AllocatorSettings>,
) -> Result<InitialState, HistoryError> {
    let mut undo = Undo {
        segments: finals.segments.iter().map(|s| (s.addr, *s)).collect(),
        blocks: finals.blocks.iter().map(|b| (b.addr, *b)).collect(),
    };
    let (events, large) = (&device.events, LargeRanges::of(device, false));
    let one_free = events.count(Action::FreeCompleted) == 0 || events.count(Action::FreeRequested) == 0;
    for index in events.indices().rev() {
        let event = events.get(index);
        let (addr, size) = (event.addr.0, event.size.0);
        let no_such = || HistoryError::FreeWithoutAlloc {
            device: device.device,
            event: index,
            action: event.action.name(),
            addr: event.addr,
        };
        match event.action {
            Action::Alloc => {
                undo.blocks.remove(&addr);
            }
            Action::FreeRequested if !one_free => match undo.blocks.get_mut(&addr) {
                Some(block) if block.pending => {
                    block.pending = false;
                    block.freed_by = Some(index);
                }
                // Its completion was not recorded.
                None => undo.insert(&event, index, false),
                Some(block) => return Err(later_free(device, block, no_such())),
            },
            Action::FreeRequested | Action::FreeCompleted => match undo.blocks.get(&addr) {
                None => undo.insert(&event, index, !one_free),
                Some(block) => return Err(later_free(device, block, no_such())),
            },
            Action::SegmentAlloc => {
                undo.segments.remove(&addr);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let expandable = event.action == Action::SegmentUnmap;
                let small = if expandable {
                    large.is_small(addr, event.size)
                } else {
                    event.size <= torch_rules::SMALL_SEGMENT
                };
                let small = settings.is_some() && small;
                let class = if small { SizeClass::Small } else { SizeClass::Large };
                let info = RunInfo { stream: event.stream, pool: event.pool, class, expandable };
                undo.segments.insert(addr, InitialSegment { addr, size, info, stack: event.stack });
            }
            Action::SegmentMap => undo.unmap(addr, size),
            Action::Oom | Action::Snapshot => {}
        }
    }
    let mut state = InitialState {
        segments: undo.segments.into_values().collect(),
        blocks: undo.blocks.into_values().collect(),
    };
    state.blocks.sort_unstable_by_key(|b| b.addr);
    join_pieces(&mut state.segments);
    check_disjoint(device, &state.segments)?;
    find_sizes(device, &mut state, settings)?;
    Ok(state)
}

struct Undo {
    segments: BTreeMap<u64, InitialSegment>,
    blocks: FxHashMap<u64, InitialBlock>,
}

impl Undo {
    fn insert(&mut self, event: &crate::events::Event, index: EventIndex, pending: bool) {
        self.blocks.insert(
            event.addr.0,
            InitialBlock {
                addr: event.addr.0,
                requested: event.size.0,
                size: 0,
                stream: Some(event.stream),
                stack: event.stack,
                pending,
                freed_by: Some(index),
            },
        );
    }

    /// Takes `[addr, addr + size)` out of the mapped memory.
    fn unmap(&mut self, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        let first = self.segments.range(..=addr).next_back().map_or(addr, |(&start, _)| start);
        let touched: Vec<InitialSegment> = self.segments.range(first..end).map(|(_, s)| *s).collect();
        for segment in touched {
            let segment_end = segment.addr.saturating_add(segment.size);
            if segment_end <= addr || !segment.info.expandable {
                continue;
            }
            self.segments.remove(&segment.addr);
            for (from, to) in [(segment.addr, addr), (end, segment_end)] {
                if from < to {
                    self.segments.insert(from, InitialSegment { addr: from, size: to - from, ..segment });
                }
            }
        }
    }
}

/// Of two frees without an allocation between them the later is the wrong one.
fn later_free(device: &DeviceTrace, block: &InitialBlock, at_earlier: HistoryError) -> HistoryError {
    match block.freed_by {
        Some(event) => HistoryError::FreeWithoutAlloc {
            device: device.device,
            event,
            action: device.events.action(event).name(),
            addr: DeviceAddr(block.addr),
        },
        None => at_earlier,
    }
}

/// Joins neighbouring pieces of mapped memory, so that a block across their border fits.
fn join_pieces(segments: &mut Vec<InitialSegment>) {
    segments.dedup_by(|next, run| {
        let joins =
            run.info == next.info && run.info.expandable && run.addr.saturating_add(run.size) == next.addr;
        if joins {
            run.size += next.size;
        }
        joins
    });
}

fn check_disjoint(device: &DeviceTrace, segments: &[InitialSegment]) -> Result<(), HistoryError> {
    for pair in segments.windows(2) {
        if pair[0].addr.saturating_add(pair[0].size) > pair[1].addr {
            return Err(HistoryError::SegmentsOverlap {
                device: device.device,
                addr: DeviceAddr(pair[1].addr),
            });
        }
    }
    Ok(())
}

/// Gives blocks of which only the request is known their size. A large native segment never holds a free block of
/// 1 MiB or less (nothing that small is split off or handed out there), so a shorter gap behind a block is part of it.
fn find_sizes(
    device: &DeviceTrace,
    state: &mut InitialState,
    settings: Option<&AllocatorSettings>,
) -> Result<(), HistoryError> {
    let mut segment_at = 0;
    for i in 0..state.blocks.len() {
        let block = state.blocks[i];
        while segment_at < state.segments.len()
            && state.segments[segment_at].addr.saturating_add(state.segments[segment_at].size) <= block.addr
        {
            segment_at += 1;
        }
        let segment = state.segments.get(segment_at).filter(|s| s.addr <= block.addr);
        let Some(segment) = segment else {
            return Err(HistoryError::FreeWithoutAlloc {
                device: device.device,
                event: block.freed_by.unwrap_or_default(),
                action: block.freed_by.map_or("a final block", |e| device.events.action(e).name()),
                addr: DeviceAddr(block.addr),
            });
        };
        if block.size > 0 {
            continue;
        }
        let rounded = match settings {
            Some(settings) => torch_rules::round_size(Bytes(block.requested), settings).0,
            None => block.requested.max(1),
        };
        let segment_end = segment.addr.saturating_add(segment.size);
        let limit =
            state.blocks.get(i + 1).map_or(segment_end, |next| next.addr.min(segment_end)) - block.addr;
        let gap = limit.saturating_sub(rounded);
        let swallows = settings.is_some_and(|settings| !settings.expandable_segments)
            && segment.info.class == SizeClass::Large
            && !segment.info.expandable
            && gap <= torch_rules::SMALL_LIMIT.0;
        state.blocks[i].size = if swallows { limit } else { rounded.min(limit) };
    }
    Ok(())
}
