//! Our model of the allocator, with the library's own state of streams: uses, events, deferred frees, routings.

use crate::ops::Pool;
use crate::subject::{Block, Entry, FIELDS, Filter, GROUPS, PoolStats, Segment, Stats, Subject};
use gapless_replay::torch::{NoteKind, Torch, TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Gauge, Lane, LaneIndex, SimDevice, Slot};
use gapless_trace::{Bytes, DeviceAddr, PoolId, StreamId, torch_rules};
use std::collections::{HashMap, HashSet, VecDeque};

/// A fresh model of torch 2.`minor` with these settings, over a card of `capacity` bytes; `None` for versions that are
/// not modelled.
pub(crate) fn open(minor: u32, settings: &str, capacity: u64) -> Option<Box<dyn Subject>> {
    let version = TorchVersion(2, minor);
    if !(TorchVersion::OLDEST..=TorchVersion::NEWEST).contains(&version) {
        return None;
    }
    let settings = TorchSettings::parse(settings, version).unwrap_or_else(|e| panic!("{settings}: {e}"));
    let mut torch = Torch::new(settings.clone(), version, SimDevice::new(capacity), &[]);
    torch.keep_notes();
    Some(Box::new(Model { torch, settings, version, ..Model::empty(capacity) }))
}

struct Model {
    torch: Torch<SimDevice>,
    settings: TorchSettings,
    version: TorchVersion,
    lanes: HashMap<(u64, Pool), LaneIndex>,
    slots: HashMap<u64, Slot>,
    next_slot: Slot,
    live: HashMap<Slot, Live>,
    /// Pools that requests are routed to, in order of their beginning.
    routings: Vec<(Pool, Filter)>,
    uses_of_pool: HashMap<Pool, u32>,
    /// Events that were recorded, by stream.
    events: HashMap<u64, VecDeque<Event>>,
    /// Freed during a capture and used by other streams.
    deferred: Vec<Slot>,
    /// Uses that were recorded during a capture, by block object.
    noted: HashMap<u64, HashSet<u64>>,
    /// The thread's stream, the streams that capture, and the number of captures that the allocator was told of.
    current: u64,
    captures: HashSet<u64>,
    marks: u32,
    operation: u64,
    order: Vec<Entry>,
    trace: Vec<Entry>,
}

struct Live {
    addr: u64,
    requested: u64,
    stream: u64,
    uses: Vec<u64>,
    /// Events to wait for, once it was freed.
    waits: u32,
}

#[derive(Clone, Copy)]
struct Event {
    operation: u64,
    slot: Slot,
    done: bool,
}

const ALLOC: u64 = 0;
const FREE_REQUESTED: u64 = 1;
const OOM: u64 = 8;
const ANNOTATE: u64 = 9;

impl Model {
    fn empty(capacity: u64) -> Model {
        let version = TorchVersion::DEFAULT;
        Model {
            torch: Torch::new(TorchSettings::default(), version, SimDevice::new(capacity), &[]),
            settings: TorchSettings::default(),
            version,
            lanes: HashMap::new(),
            slots: HashMap::new(),
            next_slot: 0,
            live: HashMap::new(),
            routings: Vec::new(),
            uses_of_pool: HashMap::new(),
            events: HashMap::new(),
            deferred: Vec::new(),
            noted: HashMap::new(),
            current: 0,
            captures: HashSet::new(),
            marks: 0,
            operation: 0,
            order: Vec::new(),
            trace: Vec::new(),
        }
    }

    fn lane(&mut self, stream: u64, pool: Pool) -> LaneIndex {
        let torch = &mut self.torch;
        *self.lanes.entry((stream, pool)).or_insert_with(|| {
            torch.add_lane(Lane { stream: StreamId(stream), pool: PoolId(pool.0, pool.1) })
        })
    }

    /// True if the allocator takes this thread to be in a capture, by the rule of the release.
    fn capturing(&self) -> bool {
        if self.version.only_captures_hold_back() {
            self.marks > 0 && self.captures.contains(&self.current)
        } else {
            !self.routings.is_empty()
        }
    }

    /// The steps before every request.
    fn begin_request(&mut self) {
        self.operation += 1;
        if !self.capturing() {
            self.work_off_deferred();
            self.poll();
        }
        self.prepare();
    }

    fn born(&mut self, slot: Slot, addr: u64, requested: u64, stream: u64) {
        self.next_slot += 1;
        self.slots.insert(addr, slot);
        self.live.insert(slot, Live { addr, requested, stream, uses: Vec::new(), waits: 0 });
    }

    /// The pool for a request on `stream`.
    fn route(&self, stream: u64) -> Pool {
        let accepts = |(_, filter): &&(Pool, Filter)| filter.as_ref().is_none_or(|f| f.contains(&stream));
        let found = if self.version.newest_routing_wins() {
            self.routings.iter().rev().find(accepts)
        } else {
            self.routings.iter().find(accepts)
        };
        found.map_or((0, 0), |(pool, _)| *pool)
    }

    /// Place of the real library's completion of the free at this address, among those of the operation that comes now.
    fn rank(&self, addr: u64) -> usize {
        let completed = |e: &Entry| e.action == Entry::FREE_COMPLETED && e.address == addr;
        self.order.iter().position(completed).unwrap_or(usize::MAX)
    }

    fn record_events(&mut self, slot: Slot) {
        let Some(live) = self.live.get_mut(&slot) else { return };
        for stream in std::mem::take(&mut live.uses) {
            live.waits += 1;
            let event = Event { operation: self.operation, slot, done: false };
            self.events.entry(stream).or_default().push_back(event);
        }
        if live.waits == 0 {
            self.complete_free(slot);
        }
    }

    fn complete_free(&mut self, slot: Slot) {
        self.torch.free_completed(slot);
        self.live.remove(&slot);
    }

    /// Memory freed during a capture records its events now; uses that were recorded meanwhile do not count.
    fn work_off_deferred(&mut self) {
        let mut deferred = std::mem::take(&mut self.deferred);
        deferred.sort_by_key(|slot| self.live.get(slot).map_or(usize::MAX, |l| self.rank(l.addr)));
        for slot in deferred {
            if let Some(noted) = self.torch.object(slot).and_then(|object| self.noted.remove(&object))
                && let Some(live) = self.live.get_mut(&slot)
            {
                live.uses.retain(|stream| !noted.contains(stream));
            }
            self.record_events(slot);
        }
    }

    fn poll(&mut self) {
        let mut streams: Vec<u64> = Vec::new();
        for entry in self.order.iter().filter(|e| e.action == Entry::POLL) {
            if !streams.contains(&entry.stream) {
                streams.push(entry.stream);
            }
        }
        let mut others: Vec<u64> = self.events.keys().copied().filter(|s| !streams.contains(s)).collect();
        others.sort_unstable();
        streams.extend(others);
        for stream in streams {
            while let Some(event) = self.events.get(&stream).and_then(VecDeque::front).copied() {
                if !event.done {
                    break;
                }
                self.events.entry(stream).or_default().pop_front();
                self.passed(event.slot);
            }
        }
    }

    fn passed(&mut self, slot: Slot) {
        let Some(live) = self.live.get_mut(&slot) else { return };
        live.waits -= 1;
        if live.waits == 0 {
            self.complete_free(slot);
        }
    }

    /// Before an operation that may wait for streams: pending blocks complete in the real one's order.
    fn prepare(&mut self) {
        let ranks: HashMap<u64, usize> = self
            .order
            .iter()
            .enumerate()
            .filter(|(_, e)| e.action == Entry::FREE_COMPLETED)
            .map(|(at, e)| (e.address, at))
            .collect();
        self.torch.order_pending(|torch, slot| {
            torch.block(slot).and_then(|(addr, _)| ranks.get(&addr).copied()).unwrap_or(usize::MAX)
        });
        self.torch.set_capturing(Some(self.capturing()));
    }

    /// After one: events that the allocator waited for are done, and so are those that it synchronised on the way.
    fn tidy(&mut self) {
        for note in self.torch.take_notes() {
            let action = match note.kind {
                NoteKind::FreeCompleted => Entry::FREE_COMPLETED,
                NoteKind::SegmentAlloc => 3,
                NoteKind::SegmentFree => Entry::SEGMENT_FREE,
                NoteKind::SegmentMap => 5,
                NoteKind::SegmentUnmap => Entry::SEGMENT_UNMAP,
            };
            if note.kind == NoteKind::SegmentUnmap
                && let Some(queue) = self.events.get_mut(&note.stream)
            {
                queue.iter_mut().for_each(|event| event.done = true);
            }
            self.trace.push(Entry { action, address: note.addr, size: note.size, stream: note.stream });
        }
        let torch = &self.torch;
        let gone: HashSet<Slot> =
            self.live.keys().copied().filter(|&slot| torch.block(slot).is_none()).collect();
        if gone.is_empty() {
            return;
        }
        for queue in self.events.values_mut() {
            // Waiting for an event waits for everything before it on its stream, and for all that the same operation
            // recorded.
            let last = queue.iter().filter(|e| gone.contains(&e.slot)).map(|e| e.operation).max();
            queue.iter_mut().filter(|e| last.is_some_and(|l| e.operation <= l)).for_each(|e| e.done = true);
            queue.retain(|e| !gone.contains(&e.slot));
        }
        self.deferred.retain(|slot| !gone.contains(slot));
        self.live.retain(|slot, _| !gone.contains(slot));
    }
}

impl Subject for Model {
    fn malloc(&mut self, size: u64, stream: u64) -> Option<u64> {
        self.begin_request();
        let pool = self.route(stream);
        let lane = self.lane(stream, pool);
        let slot = self.next_slot;
        let served = self.torch.alloc(slot, Bytes(size), lane);
        self.tidy();
        match served {
            Ok(addr) => {
                self.born(slot, addr.0, size, stream);
                self.trace.push(Entry { action: ALLOC, address: addr.0, size, stream });
                Some(addr.0)
            }
            Err(_) => {
                let free = gapless_replay::Device::available(self.torch.device());
                let rounded = torch_rules::round_size(Bytes(size), &self.settings.base).0;
                self.trace.push(Entry { action: OOM, address: free, size: rounded, stream });
                None
            }
        }
    }

    fn free(&mut self, addr: u64) {
        self.operation += 1;
        let Some(slot) = self.slots.remove(&addr) else { return };
        let live = &self.live[&slot];
        let (requested, stream, used) = (live.requested, live.stream, !live.uses.is_empty());
        self.trace.push(Entry { action: FREE_REQUESTED, address: addr, size: requested, stream });
        if used {
            self.torch.free_requested(slot);
            if self.capturing() {
                self.deferred.push(slot);
            } else {
                self.record_events(slot);
            }
        } else {
            self.torch.free(slot);
            self.live.remove(&slot);
        }
        self.tidy();
    }

    fn record_stream(&mut self, addr: u64, stream: u64) {
        self.operation += 1;
        let capturing = self.capturing();
        let Some(&slot) = self.slots.get(&addr) else { return };
        let Some(live) = self.live.get_mut(&slot).filter(|live| live.stream != stream) else { return };
        if !live.uses.contains(&stream) {
            live.uses.push(stream);
        }
        if capturing && let Some(object) = self.torch.object(slot) {
            self.noted.entry(object).or_default().insert(stream);
        }
    }

    fn complete(&mut self, stream: u64, count: u64) {
        let Some(queue) = self.events.get_mut(&stream) else { return };
        let mut operations: Vec<u64> = queue.iter().filter(|e| !e.done).map(|e| e.operation).collect();
        operations.dedup();
        let Some(&last) = operations.iter().take(count as usize).next_back() else { return };
        queue.iter_mut().filter(|e| e.operation <= last).for_each(|e| e.done = true);
    }

    fn set_current(&mut self, stream: u64) {
        self.current = stream;
    }

    fn set_captures(&mut self, stream: u64, on: bool) {
        if on {
            self.captures.insert(stream);
        } else {
            self.captures.remove(&stream);
        }
    }

    fn mark_capture(&mut self, begins: bool) -> bool {
        let counts = begins || self.marks > 0;
        if counts {
            self.marks = if begins { self.marks + 1 } else { self.marks - 1 };
        }
        counts
    }

    fn malloc_at(&mut self, size: u64, addr: u64) -> Option<u64> {
        // Refused before the allocator is asked.
        if !addr.is_multiple_of(512) {
            return None;
        }
        self.begin_request();
        self.tidy();
        let stream = self.current;
        let pool = self.route(stream);
        let lane = self.lane(stream, pool);
        let slot = self.next_slot;
        let placed = self.torch.alloc_at(slot, Bytes(size), lane, DeviceAddr(addr));
        if let Some(exact) = placed {
            self.born(slot, addr, size, stream);
            let Bytes(before) = exact.before;
            let front = |action| Entry { action, address: addr - before, size: before, stream };
            self.trace.extend((before > 0).then(|| front(ALLOC)));
            self.trace.push(Entry { action: ALLOC, address: addr, size, stream });
            self.trace.extend((before > 0).then(|| front(FREE_REQUESTED)));
        }
        self.tidy();
        placed.map(|_| addr)
    }

    fn annotate(&mut self, addr: u64) {
        let Some(live) = self.slots.get(&addr).and_then(|slot| self.live.get(slot)) else { return };
        let entry = Entry { action: ANNOTATE, address: addr, size: live.requested, stream: live.stream };
        self.trace.push(entry);
    }

    fn set_reserve_class(&mut self, stream: u64, class: &str) {
        self.torch.set_reserve_class(stream, class);
    }

    fn begin_pool(&mut self, pool: Pool, accepts: Filter) {
        *self.uses_of_pool.entry(pool).or_default() += 1;
        self.torch.use_pool(PoolId(pool.0, pool.1));
        self.routings.push((pool, accepts));
    }

    fn end_pool(&mut self, pool: Pool) {
        if let Some(at) = self.routings.iter().position(|(p, _)| *p == pool) {
            self.routings.remove(at);
        }
    }

    fn release_pool(&mut self, pool: Pool) {
        let Some(uses) = self.uses_of_pool.get_mut(&pool).filter(|uses| **uses > 0) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.torch.release_pool(PoolId(pool.0, pool.1));
        }
    }

    fn empty_cache(&mut self, pool: Pool) {
        self.operation += 1;
        // Calls that wait for streams work off deferred frees first, also if they are about one pool.
        let waits = pool == (0, 0) || self.torch.is_freeable(PoolId(pool.0, pool.1));
        if !self.capturing() && waits {
            self.work_off_deferred();
        }
        self.prepare();
        self.torch.empty_cache((pool != (0, 0)).then_some(PoolId(pool.0, pool.1)));
        self.tidy();
    }

    fn set_fraction(&mut self, fraction: f64) {
        self.torch.set_fraction(fraction);
    }

    fn reset_peak(&mut self) {
        self.torch.reset_peaks();
    }

    fn reset_accumulated(&mut self) {
        self.torch.reset_counts();
    }

    fn fields(&self) -> Vec<usize> {
        let kept = |field: &usize| {
            let name = Stats::name(*field);
            // The free pieces that came and went within one operation depend on the order of a hash table.
            let gauge =
                name.ends_with(".current") || (name.ends_with(".peak") && !name.starts_with("inactive"));
            let counter = name.starts_with("num_") || name == "device_used";
            (gauge && (name.contains(".all.") || name.starts_with("oversize"))) || counter
        };
        (0..FIELDS).filter(kept).collect()
    }

    fn stats(&self, out: &mut Stats) {
        let s = self.torch.stats();
        let groups = [
            s.allocations,
            s.segments,
            s.active_blocks,
            s.inactive_split_blocks,
            s.allocated,
            s.reserved,
            s.active,
            s.inactive_split,
            s.requested,
        ];
        let singles = [s.oversize_allocations, s.oversize_segments];
        let mut put = |at: usize, gauge: &Gauge| {
            out.0[at] = gauge.current;
            out.0[at + 1] = gauge.peak;
        };
        groups.iter().enumerate().for_each(|(i, gauge)| put(12 * i, gauge));
        singles.iter().enumerate().for_each(|(i, gauge)| put(12 * GROUPS.len() + 4 * i, gauge));
        let used = {
            let device = self.torch.device();
            gapless_replay::Device::total(device) - gapless_replay::Device::available(device)
        };
        let counters = [s.retries, s.ooms, s.syncs, s.device_allocs, s.device_frees, used];
        let first = Stats::position("num_alloc_retries");
        out.0[first..first + counters.len()].copy_from_slice(&counters);
    }

    fn pool_stats(&self, out: &mut PoolStats) {
        for (PoolId(a, b), reserved) in self.torch.reserved_by_private_pools() {
            let mut row = [0; 12];
            for (at, account) in [reserved.all, reserved.small, reserved.large].iter().enumerate() {
                let parts = [account.current, account.peak, account.allocated, account.freed];
                row[4 * at..4 * at + 4].copy_from_slice(&parts);
            }
            out.insert((a, b), row);
        }
    }

    fn take_trace(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.trace)
    }

    fn snapshot(&mut self) -> Vec<Segment> {
        let views = self.torch.segments();
        let segment = |view: gapless_replay::torch::view::SegmentView| Segment {
            address: view.addr,
            total: view.size,
            requested: view.blocks.iter().map(|b| b.requested).sum(),
            allocated: view.blocks.iter().filter(|b| b.allocated).map(|b| b.size).sum(),
            active: view.blocks.iter().filter(|b| b.active).map(|b| b.size).sum(),
            stream: view.stream.0,
            pool: (view.pool.0, view.pool.1),
            large: !view.small,
            expandable: view.expandable,
            blocks: view
                .blocks
                .iter()
                .map(|b| Block {
                    size: b.size,
                    requested: b.requested,
                    allocated: b.allocated,
                    active: b.active,
                })
                .collect(),
        };
        views.into_iter().map(segment).collect()
    }

    fn order_of(&mut self, real: &[Entry]) {
        self.order.clear();
        self.order.extend_from_slice(real);
    }
}
