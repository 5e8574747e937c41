//! Histories against a naive twin: an allocator that keeps its segments as plain lists of blocks, splits and merges by
//! PyTorch's rules, and knows the truth. Random runs, whole and cut at the beginning, native and expandable, with
//! pending frees.

use gapless_trace::torch_rules::{is_small, round_size, splits};
use gapless_trace::{
    Action, AllocatorSettings, Block, BlockState, Bytes, DeviceAddr, DeviceTrace, Event, Figures, History,
    HistoryError, Moment, Segment, SizeClass, StackId, StreamId, Tick, Trace,
};

/// A small generator of numbers: the same runs on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[derive(Clone, Copy, Debug)]
struct TwinBlock {
    addr: u64,
    size: u64,
    requested: u64,
    state: BlockState,
}

#[derive(Clone, Debug)]
struct TwinSegment {
    addr: u64,
    stream: u16,
    small: bool,
    blocks: Vec<TwinBlock>,
}

impl TwinSegment {
    fn size(&self) -> u64 {
        self.blocks.iter().map(|b| b.size).sum()
    }

    fn merge(&mut self) {
        let free = |b: &TwinBlock| b.state == BlockState::Free;
        self.blocks.dedup_by(|next, block| {
            let both = free(block) && free(next);
            if both {
                block.size += next.size;
            }
            both
        });
    }
}

/// The allocator that knows the truth.
struct Twin {
    settings: AllocatorSettings,
    segments: Vec<TwinSegment>,
    events: Vec<Event>,
    /// Figures after each event, the first before any.
    figures: Vec<Figures>,
    /// The block size of each allocation, in order.
    sizes: Vec<u64>,
    next_addr: u64,
}

impl Twin {
    fn new(expandable: bool, divisions: u32) -> Twin {
        let settings = AllocatorSettings {
            expandable_segments: expandable,
            roundup_power2_divisions: [divisions; 16],
            ..Default::default()
        };
        let start = 1 << 40;
        Twin {
            settings,
            segments: Vec::new(),
            events: Vec::new(),
            figures: vec![Figures::default()],
            sizes: Vec::new(),
            next_addr: start,
        }
    }

    fn log(&mut self, action: Action, addr: u64, size: u64, stream: u16) {
        self.events.push(Event {
            action,
            addr: DeviceAddr(addr),
            size: Bytes(size),
            stream,
            ..Event::default()
        });
        let mut now = Figures::default();
        for segment in &self.segments {
            now.reserved += Bytes(segment.size());
            for b in segment.blocks.iter().filter(|b| b.state != BlockState::Free) {
                now.requested += Bytes(b.requested);
                now.active += Bytes(b.size);
                if b.state == BlockState::Live {
                    now.live += Bytes(b.requested);
                    now.allocated += Bytes(b.size);
                }
            }
        }
        self.figures.push(now);
    }

    fn alloc(&mut self, requested: u64, stream: u16, random: &mut Random) -> u64 {
        let size = round_size(Bytes(requested), &self.settings).0;
        let small = is_small(Bytes(size));
        let fits: Vec<(usize, usize)> = self
            .segments
            .iter()
            .enumerate()
            .filter(|(_, s)| s.stream == stream && s.small == small)
            .flat_map(|(i, s)| s.blocks.iter().enumerate().map(move |(j, b)| (i, j, *b)))
            .filter(|(_, _, b)| b.state == BlockState::Free && b.size >= size)
            .map(|(i, j, _)| (i, j))
            .collect();
        // Any block that fits: the history must follow whichever policy placed it.
        let (i, j) = if fits.is_empty() {
            self.grow(size, stream, small)
        } else {
            fits[random.next(fits.len() as u64) as usize]
        };
        let expandable = self.settings.expandable_segments;
        let block = self.segments[i].blocks[j];
        let taken = if splits(Bytes(block.size), Bytes(size), expandable, &self.settings) {
            size
        } else {
            block.size
        };
        let blocks = &mut self.segments[i].blocks;
        blocks[j] = TwinBlock { addr: block.addr, size: taken, requested, state: BlockState::Live };
        if taken < block.size {
            let rest = TwinBlock {
                addr: block.addr + taken,
                size: block.size - taken,
                requested: 0,
                state: BlockState::Free,
            };
            blocks.insert(j + 1, rest);
        }
        self.sizes.push(taken);
        self.log(Action::Alloc, block.addr, requested, stream);
        block.addr
    }

    /// More memory from the device: a new segment, or pages at the end of the pool's own range.
    fn grow(&mut self, size: u64, stream: u16, small: bool) -> (usize, usize) {
        let unit = if small { 2 << 20 } else { 20 << 20 };
        let free = |addr, size| TwinBlock { addr, size, requested: 0, state: BlockState::Free };
        let bytes = size.div_ceil(unit) * unit;
        let own = self.segments.iter().position(|s| s.stream == stream && s.small == small);
        if let Some(i) = own.filter(|_| self.settings.expandable_segments) {
            let end = self.segments[i].addr + self.segments[i].size();
            self.segments[i].blocks.push(free(end, bytes));
            self.segments[i].merge();
            self.log(Action::SegmentMap, end, bytes, stream);
            return (i, self.segments[i].blocks.len() - 1);
        }
        let addr = self.next_addr;
        // Native segments touch each other now and then; ranges of expandable ones never do.
        self.next_addr += if self.settings.expandable_segments { 1 << 40 } else { bytes };
        self.segments.push(TwinSegment { addr, stream, small, blocks: vec![free(addr, bytes)] });
        let action =
            if self.settings.expandable_segments { Action::SegmentMap } else { Action::SegmentAlloc };
        self.log(action, addr, bytes, stream);
        (self.segments.len() - 1, 0)
    }

    fn block(&mut self, addr: u64) -> (usize, &mut TwinBlock, u16) {
        for (i, segment) in self.segments.iter_mut().enumerate() {
            let stream = segment.stream;
            if let Some(block) = segment.blocks.iter_mut().find(|b| b.addr == addr) {
                return (i, block, stream);
            }
        }
        panic!("{addr:#x} is a block");
    }

    fn free_requested(&mut self, addr: u64) {
        let (_, block, stream) = self.block(addr);
        block.state = BlockState::Pending;
        let requested = block.requested;
        self.log(Action::FreeRequested, addr, requested, stream);
    }

    fn free_completed(&mut self, addr: u64) {
        let (i, block, stream) = self.block(addr);
        block.state = BlockState::Free;
        let requested = block.requested;
        self.segments[i].merge();
        self.log(Action::FreeCompleted, addr, requested, stream);
    }

    /// Gives wholly free native segments back.
    fn empty_cache(&mut self) {
        let mut i = 0;
        while i < self.segments.len() {
            let segment = &self.segments[i];
            if segment.blocks.len() == 1 && segment.blocks[0].state == BlockState::Free {
                let gone = self.segments.remove(i);
                let action = if self.settings.expandable_segments {
                    Action::SegmentUnmap
                } else {
                    Action::SegmentFree
                };
                self.log(action, gone.addr, gone.size(), gone.stream);
            } else {
                i += 1;
            }
        }
    }

    /// The trace without its first `dropped` events.
    fn trace(&self, dropped: usize) -> Trace {
        let mut device = DeviceTrace::new(0);
        for stream in 0..2 {
            device.stream_index(StreamId(stream));
        }
        for event in &self.events[dropped..] {
            device.events.push(*event);
        }
        let mut segments: Vec<&TwinSegment> = self.segments.iter().collect();
        segments.sort_by_key(|s| s.addr);
        for s in segments {
            device.segments.push(Segment {
                addr: DeviceAddr(s.addr),
                size: Bytes(s.size()),
                stream: s.stream,
                pool: 0,
                class: if s.small { SizeClass::Small } else { SizeClass::Large },
                expandable: self.settings.expandable_segments,
                stack: StackId::NONE,
                first_block: device.blocks.len() as u32,
                block_count: s.blocks.len() as u32,
            });
            device.blocks.extend(s.blocks.iter().map(|b| Block {
                addr: DeviceAddr(b.addr),
                size: Bytes(b.size),
                requested: Bytes(b.requested),
                state: b.state,
                stack: StackId::NONE,
            }));
        }
        let mut trace =
            Trace { devices: vec![device], settings: Some(self.settings.clone()), ..Trace::default() };
        trace.source.torch_rules = true;
        trace
    }
}

fn random_run(seed: u64, expandable: bool, divisions: u32, operations: usize) -> Twin {
    let mut random = Random(seed);
    let mut twin = Twin::new(expandable, divisions);
    let (mut live, mut pending): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    for _ in 0..operations {
        match random.next(100) {
            0..48 => {
                let size = match random.next(4) {
                    0 => 1 + random.next(4096),
                    1 => 1 + random.next(2 << 20),
                    2 => (1 << 20) + random.next(12 << 20),
                    _ => 512 * (1 + random.next(60_000)),
                };
                let stream = random.next(2) as u16;
                live.push(twin.alloc(size, stream, &mut random));
            }
            48..90 if !live.is_empty() => {
                let addr = live.swap_remove(random.next(live.len() as u64) as usize);
                twin.free_requested(addr);
                if random.next(4) == 0 { pending.push(addr) } else { twin.free_completed(addr) }
            }
            90..98 if !pending.is_empty() => {
                let addr = pending.swap_remove(random.next(pending.len() as u64) as usize);
                twin.free_completed(addr);
            }
            98.. => twin.empty_cache(),
            _ => {}
        }
    }
    twin
}

#[test]
fn histories_equal_the_twin_at_every_tick() {
    for seed in 0..40 {
        let twin = random_run(seed, seed % 2 == 1, [0, 4, 8][seed as usize % 3], 600);
        let trace = twin.trace(0);
        let history = History::rebuild(&trace, &trace.devices[0]).expect("a possible run");
        assert_eq!(history.notes, [], "seed {seed}");
        let sizes: Vec<u64> = history.allocations.iter().map(|a| a.block.0).collect();
        assert_eq!(sizes, twin.sizes, "seed {seed}");
        for (tick, truth) in twin.figures.iter().enumerate().step_by(7) {
            assert_eq!(Moment::at(&history, Tick(tick as u32)).figures, *truth, "seed {seed}, tick {tick}");
        }
        let peak = |of: fn(&Figures) -> Bytes| twin.figures.iter().map(of).max().unwrap_or_default();
        assert_eq!(history.usage.live.peak, peak(|f| f.live), "seed {seed}");
        assert_eq!(history.usage.allocated.peak, peak(|f| f.allocated), "seed {seed}");
        assert_eq!(history.usage.requested.peak, peak(|f| f.requested), "seed {seed}");
        assert_eq!(history.usage.active.peak, peak(|f| f.active), "seed {seed}");
        assert_eq!(history.usage.reserved.peak, peak(|f| f.reserved), "seed {seed}");
        let on_curve = history.curve.points.iter().map(|p| p.reserved).max().unwrap_or_default();
        assert_eq!(on_curve, history.usage.reserved.peak, "seed {seed}");
    }
}

#[test]
fn a_recording_that_began_late_is_rebuilt_as_it_went_on() {
    for seed in 0..30 {
        let twin = random_run(seed, seed % 2 == 1, [0, 4, 8][seed as usize % 3], 500);
        let dropped = 1 + (seed as usize * 37) % (twin.events.len() - 1);
        let trace = twin.trace(dropped);
        let history =
            History::rebuild(&trace, &trace.devices[0]).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let codes: Vec<&str> = history.notes.iter().map(|n| n.code).collect();
        let late = twin.figures[dropped].reserved > Bytes::ZERO;
        assert_eq!(codes.contains(&"recording-began-late"), late, "seed {seed}: {codes:?}");
        for (tick, truth) in twin.figures[dropped..].iter().enumerate().step_by(11) {
            let now = Moment::at(&history, Tick(tick as u32)).figures;
            // Expandable memory is always cut to the rounded size, so block sizes follow too. A native block may have
            // been handed out whole, which a recording that never saw it allocated cannot always tell.
            if twin.settings.expandable_segments {
                assert_eq!(now, *truth, "seed {seed}, tick {tick}");
            }
            assert_eq!(
                (now.live, now.requested, now.reserved),
                (truth.live, truth.requested, truth.reserved),
                "seed {seed}, tick {tick}"
            );
        }
        assert_eq!(history.usage.now(), *twin.figures.last().expect("some"), "seed {seed}");
    }
}

#[test]
fn a_large_block_may_lie_in_pieces_that_were_mapped_apart() {
    const MIB: u64 = 1 << 20;
    let at = |action, addr: u64, size: u64| Event {
        action,
        addr: DeviceAddr((1 << 40) + addr * MIB),
        size: Bytes(size * MIB),
        ..Event::default()
    };
    // The last piece is as small as those of small requests; a block ends in it, or lies beside it.
    let ends_in_it = [
        at(Action::SegmentMap, 0, 8),
        at(Action::Alloc, 0, 7),
        at(Action::SegmentMap, 8, 2),
        at(Action::Alloc, 7, 3),
        at(Action::FreeCompleted, 7, 3),
    ];
    let beside_it = [at(Action::SegmentMap, 0, 8), at(Action::SegmentMap, 8, 2), at(Action::Alloc, 0, 7)];
    for (producer, events) in
        [("gapless 1", &ends_in_it[..]), ("another", &ends_in_it[..]), ("gapless 1", &beside_it[..])]
    {
        let mut trace = random_run(1, true, 0, 1).trace(0);
        (trace.source.torch_rules, trace.source.producer) = (false, producer.to_owned());
        let device = &mut trace.devices[0];
        device.segments.clear();
        device.blocks.clear();
        device.events = Default::default();
        for event in events {
            device.events.push(*event);
        }
        let history =
            History::rebuild(&trace, &trace.devices[0]).unwrap_or_else(|e| panic!("{producer}: {e}"));
        assert_eq!(history.usage.reserved.peak, Bytes(10 * MIB), "{producer}");
        let small = history.segments.iter().filter(|s| s.class == SizeClass::Small);
        assert_eq!(small.count(), 0, "{producer}");
    }
}

#[test]
fn an_impossible_event_is_named() {
    let twin = random_run(3, false, 0, 300);
    let live = twin
        .segments
        .iter()
        .flat_map(|s| &s.blocks)
        .find(|b| b.state == BlockState::Live)
        .expect("a live block");
    let mut trace = twin.trace(0);
    let device = &mut trace.devices[0];
    let again = Event { addr: DeviceAddr(live.addr), size: Bytes(512), ..Event::default() };
    device.events.push(again);
    device.segments.clear();
    device.blocks.clear();
    let error = History::rebuild(&trace, &trace.devices[0]).expect_err("the block is in use");
    let HistoryError::Overlap { event, addr, .. } = error else { panic!("{error}") };
    assert_eq!((event.0 as usize, addr.0), (twin.events.len(), live.addr));
}
