//! From a trace to a script: separates the actions of the program from those of the allocator.
//!
//! Allocations and frees follow from the history. It remains to decide why memory went back to the device: because the
//! program emptied the cache, or because a request could not be served otherwise. The rules, in order:
//!   * nothing was taken from the device right after: the program's;
//!   * all of it was memory of private pools, or the request is a private pool's and some was not: the program's;
//!   * collection is on, and only large segments went: the allocator's;
//!   * the bytes held before plus the new segment are within the run's peak: there was room, so the program's;
//!   * otherwise the allocator's.

use super::{DeviceCall, DeviceCallKind, InitialBlock, InitialSegment, Op, Recorded, Script};
use crate::allocator::{Lane, LaneIndex, Slot};
use crate::torch::TorchVersion;
use gapless_trace::{
    Action, Allocation, Bytes, DeviceAddr, DeviceTrace, EventIndex, History, Moment, PoolId, SizeClass, Tick,
    Trace,
};
use rustc_hash::FxHashMap;

const NONE: u32 = u32::MAX;

impl Script {
    /// The requests that `device` of `trace` recorded; `history` is its history.
    #[must_use]
    pub fn of(trace: &Trace, device: &DeviceTrace, history: &History) -> Script {
        Script::with_pools(trace, device, history, None)
    }

    /// The same with other pools than the history's.
    pub(super) fn with_pools(
        trace: &Trace,
        device: &DeviceTrace,
        history: &History,
        pools: Option<&Pools>,
    ) -> Script {
        let mut builder = Builder::new(trace, device, history, pools);
        builder.run();
        builder.script
    }
}

/// Pools for the blocks and segments of a history, in the place of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    pub(super) ids: Vec<PoolId>,
    /// For each allocation, and for each segment span, an index into `ids`.
    pub(super) allocations: Vec<u16>,
    pub(super) segments: Vec<u16>,
}

struct Builder<'a> {
    device: &'a DeviceTrace,
    history: &'a History,
    script: Script,
    lanes: FxHashMap<(u16, u16), LaneIndex>,
    collects: bool,
    version: TorchVersion,
    /// For each tick, the slot that was given back, and the one that became free.
    freed_at: Vec<u32>,
    end_at: Vec<u32>,
    /// Pool of the segment that went back to the device at a tick.
    released_pool: FxHashMap<u32, u16>,
    /// Device calls since the last op, with the tick of each.
    burst: Vec<(DeviceCall, Tick)>,
    /// Completions since the last op.
    completed: Vec<(Slot, Tick)>,
    reserved: u64,
    pools_released: Vec<bool>,
    inferred: Option<&'a Pools>,
}

impl<'a> Builder<'a> {
    fn new(
        trace: &Trace,
        device: &'a DeviceTrace,
        history: &'a History,
        inferred: Option<&'a Pools>,
    ) -> Builder<'a> {
        let ticks = history.forever().0 as usize + 1;
        let (mut freed_at, mut end_at) = (vec![NONE; ticks], vec![NONE; ticks]);
        let forever = history.forever();
        for (slot, allocation) in history.allocations.iter().enumerate() {
            // Ticks 0 and beyond the end name no event.
            if allocation.freed > Tick(0) && allocation.freed < forever {
                freed_at[allocation.freed.0 as usize] = slot as u32;
            }
            if allocation.end > Tick(0) && allocation.end < forever {
                end_at[allocation.end.0 as usize] = slot as u32;
            }
        }
        let pool_of = |i: usize, known: u16| inferred.map_or(known, |pools| pools.segments[i]);
        let segments = history.segments.iter().enumerate();
        let released_pool = segments.map(|(i, s)| (s.end.0, pool_of(i, s.pool))).collect();
        let pools = match inferred {
            Some(pools) => pools.ids.clone(),
            None if device.pools.is_empty() => vec![PoolId::DEFAULT],
            None => device.pools.clone(),
        };
        let settings = trace.settings.as_ref();
        Builder {
            device,
            history,
            lanes: FxHashMap::default(),
            collects: settings.is_some_and(|s| s.garbage_collection_threshold > 0.0),
            version: TorchVersion::of_producer(&trace.source.producer),
            freed_at,
            end_at,
            released_pool,
            burst: Vec::new(),
            completed: Vec::new(),
            reserved: 0,
            pools_released: vec![false; pools.len()],
            inferred,
            script: Script {
                ops: Vec::with_capacity(2 * history.allocations.len()),
                ticks: Vec::with_capacity(2 * history.allocations.len()),
                pools,
                slots: history.allocations.len() as u32,
                events: device.events.len() as u32,
                recorded: Recorded {
                    addrs: history.allocations.iter().map(|a| a.addr).collect(),
                    has_segments: history.has_segments,
                    ..Recorded::default()
                },
                ..Script::default()
            },
        }
    }

    fn lane(&mut self, stream: u16, pool: u16) -> LaneIndex {
        let (device, script) = (self.device, &mut self.script);
        *self.lanes.entry((stream, pool)).or_insert_with(|| {
            let stream = device.streams.get(stream as usize).copied().unwrap_or_default();
            let pool = script.pools.get(pool as usize).copied().unwrap_or_default();
            // Two indices may name one lane; models compare its contents.
            script.lanes.push(Lane { stream, pool });
            (script.lanes.len() - 1) as LaneIndex
        })
    }

    fn push(&mut self, op: Op, tick: Tick) {
        self.script.ops.push(op);
        self.script.ticks.push(tick);
    }

    fn alloc_op(&mut self, slot: Slot, allocation: &Allocation) -> Op {
        let pool = self.inferred.map_or(allocation.pool, |pools| pools.allocations[slot as usize]);
        Op::Alloc { slot, size: allocation.requested, lane: self.lane(allocation.stream, pool) }
    }

    fn run(&mut self) {
        let (device, history) = (self.device, self.history);
        self.begin();
        let events = &device.events;
        let mut next_slot = history.preexisting;
        for index in events.indices() {
            let now = index.after();
            match events.action(index) {
                Action::Alloc => {
                    let slot = next_slot;
                    next_slot += 1;
                    let allocation = history.allocations.get(gapless_trace::AllocationId(slot));
                    let op = self.alloc_op(slot, &allocation);
                    if device.exact.binary_search(&index).is_ok() {
                        self.script.recorded.exact.push(slot);
                    }
                    self.request(op, now);
                }
                Action::Oom => {
                    let event = events.get(index);
                    let op = Op::Failed { size: event.size, lane: self.lane(event.stream, event.pool) };
                    self.request(op, now);
                }
                Action::FreeRequested | Action::FreeCompleted => self.free(now),
                Action::SegmentAlloc => self.call(index, DeviceCallKind::Malloc),
                Action::SegmentFree => self.call(index, DeviceCallKind::Free),
                Action::SegmentMap => self.call(index, DeviceCallKind::Map),
                Action::SegmentUnmap => self.call(index, DeviceCallKind::Unmap),
                Action::Snapshot => {}
            }
        }
        self.flush(history.last_tick);
    }

    /// Memory from before the first event: as the heap it was, and as requests for allocators that lay it out anew.
    fn begin(&mut self) {
        let history = self.history;
        let before = Moment::at(history, Tick(0));
        let mut inferred: FxHashMap<DeviceAddr, u16> = FxHashMap::default();
        if let Some(pools) = self.inferred {
            let first = history.segments.iter().zip(&pools.segments).filter(|(s, _)| s.start == Tick(0));
            inferred.extend(first.map(|(s, &pool)| (s.addr, pool)));
        }
        for segment in &before.segments {
            let span = &segment.span;
            let pool = inferred.get(&span.addr).copied().unwrap_or(span.pool);
            self.reserved += span.size.0;
            let blocks = segment.active.iter().map(|&id| {
                let a = history.allocations.get(id);
                let pending = a.freed == Tick(0);
                InitialBlock { slot: id.0, addr: a.addr, size: a.block, requested: a.requested, pending }
            });
            let initial = InitialSegment {
                addr: span.addr,
                size: span.size,
                lane: Lane {
                    stream: self.device.streams.get(span.stream as usize).copied().unwrap_or_default(),
                    pool: self.script.pools.get(pool as usize).copied().unwrap_or_default(),
                },
                small: span.class == SizeClass::Small,
                expandable: span.expandable,
                blocks: blocks.collect(),
            };
            self.script.recorded.initial.push(initial);
        }
        for slot in 0..history.preexisting {
            let allocation = history.allocations.get(gapless_trace::AllocationId(slot));
            let op = self.alloc_op(slot, &allocation);
            self.push(op, Tick(0));
            if allocation.freed == Tick(0) {
                self.push(Op::FreeRequested { slot }, Tick(0));
            }
        }
        self.script.preexisting = self.script.ops.len() as u32;
    }

    fn free(&mut self, now: Tick) {
        let (freed, ended) = (self.freed_at[now.0 as usize], self.end_at[now.0 as usize]);
        if freed != NONE {
            self.flush(now);
            let end = self.history.allocations.get(gapless_trace::AllocationId(freed)).end;
            // Completed at once, with nothing in between: no other stream used it.
            if end.0 <= now.0 + 1 {
                self.push(Op::Free { slot: freed }, now);
            } else {
                self.push(Op::FreeRequested { slot: freed }, now);
            }
        } else if ended != NONE {
            let requested = self.history.allocations.get(gapless_trace::AllocationId(ended)).freed;
            // Given back before the recording, or longer ago than the event before this one.
            if requested == Tick(0) || requested.0 + 1 < now.0 {
                self.completed.push((ended, now));
            }
        }
    }

    fn call(&mut self, index: EventIndex, kind: DeviceCallKind) {
        let event = self.device.events.get(index);
        self.burst.push((DeviceCall { kind, addr: event.addr, size: event.size }, index.after()));
    }

    /// A request, with everything that led to it.
    fn request(&mut self, op: Op, now: Tick) {
        let gives = |call: &DeviceCall| matches!(call.kind, DeviceCallKind::Free | DeviceCallKind::Unmap);
        if !self.burst.iter().any(|(call, _)| gives(call)) || self.program_gave_back(op) {
            // The program's releases come before; calls that took memory belong to the request.
            let taken = self.burst.iter().rposition(|(call, _)| gives(call)).map_or(0, |last| last + 1);
            let after = self.burst.split_off(taken);
            self.flush(now);
            self.burst = after;
        }
        if self.burst.iter().any(|(call, _)| gives(call)) && !self.collects {
            let taken = self.burst.iter().filter(|(call, _)| !gives(call)).map(|(call, _)| call.size).sum();
            if taken > Bytes::ZERO {
                self.script.recorded.refused.push(Bytes(self.reserved) + taken);
            }
        }
        let at = self.script.ops.len() as u32;
        self.push(op, now);
        self.attach(at);
        // A retry waits for all streams: these completions came of it, or did not help this request.
        self.push_completed();
    }

    /// True if the program made the releases before a request.
    fn program_gave_back(&self, op: Op) -> bool {
        if matches!(op, Op::Failed { .. }) {
            return false;
        }
        let taken: Option<u64> = self
            .burst
            .iter()
            .rev()
            .take_while(|(call, _)| matches!(call.kind, DeviceCallKind::Malloc | DeviceCallKind::Map))
            .map(|(call, _)| call.size.0)
            .reduce(|a, b| a + b);
        let Some(taken) = taken else { return true };
        // A request that makes room for itself gives the default pool's cache back first.
        let pools = self.pools_given_back();
        if !pools.is_empty() && !pools.contains(&0) {
            return true;
        }
        // And only requests that do not hold back do so.
        let lane = if let Op::Alloc { lane, .. } = op { lane } else { 0 };
        if self.version.holds_back_in(self.script.lanes[lane as usize].pool) && pools.contains(&0) {
            return true;
        }
        let small = Bytes(2 << 20);
        let collected =
            self.burst.iter().all(|(call, _)| call.kind != DeviceCallKind::Free || call.size > small);
        if self.collects && collected {
            return false;
        }
        self.reserved + taken <= self.history.usage.reserved.peak.0
    }

    /// Writes the actions of the program since the last op: completions, then the cache emptied if memory went back.
    fn flush(&mut self, now: Tick) {
        self.push_completed();
        if self.burst.is_empty() {
            return;
        }
        let mut pools = self.pools_given_back();
        for &pool in &pools {
            if pool != 0 && !std::mem::replace(&mut self.pools_released[pool as usize], true) {
                self.push(Op::ReleasePool { pool }, now);
            }
        }
        // If all of the cache is emptied, the default pool's is; pools that went alone went one by one.
        if pools.is_empty() || pools.contains(&0) {
            pools.clear();
            self.push_empty_cache(None, now);
        }
        for pool in pools {
            let (own, others) = std::mem::take(&mut self.burst)
                .into_iter()
                .partition(|(_, tick)| self.released_pool.get(&tick.0) == Some(&pool));
            self.burst = own;
            self.push_empty_cache(Some(pool), now);
            self.burst = others;
        }
        self.burst.clear();
    }

    fn push_empty_cache(&mut self, pool: Option<u16>, now: Tick) {
        let at = self.script.ops.len() as u32;
        self.push(Op::EmptyCache { pool }, now);
        self.attach(at);
    }

    /// The pools whose memory went back to the device since the last op, each once.
    fn pools_given_back(&self) -> Vec<u16> {
        let mut pools: Vec<u16> =
            self.burst.iter().filter_map(|(_, tick)| self.released_pool.get(&tick.0).copied()).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    fn push_completed(&mut self) {
        for (slot, tick) in std::mem::take(&mut self.completed) {
            self.push(Op::FreeCompleted { slot }, tick);
        }
    }

    /// The calls of the burst belong to op `at`.
    fn attach(&mut self, at: u32) {
        if self.burst.is_empty() {
            return;
        }
        for (call, _) in self.burst.drain(..) {
            match call.kind {
                DeviceCallKind::Malloc | DeviceCallKind::Map => self.reserved += call.size.0,
                DeviceCallKind::Free | DeviceCallKind::Unmap => {
                    self.reserved = self.reserved.saturating_sub(call.size.0);
                }
            }
            self.script.recorded.calls.push(call);
        }
        self.script.recorded.by_op.push((at, self.script.recorded.calls.len() as u32));
    }
}
