//! Ranks made from a recorded run: its requests, perturbed, served again by the model of PyTorch's allocator. So every
//! trace is one that a run could have left, with its own addresses, segments and failures.

use gapless_replay::device::{Placement, SimDevice};
use gapless_replay::torch::{NoteKind, Torch, TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Lane, Op, Script};
use gapless_report::Analysis;
use gapless_trace::kinds::Kind;
use gapless_trace::stacks::Frame;
use gapless_trace::{
    Action, AllocationId, Bytes, DeviceAddr, DeviceTrace, Event, Micros, StackId, Stacks, Tick, Trace,
};
use std::path::Path;

/// Random numbers: splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`.
    pub(crate) fn real(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// The fault of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Bytes that stay behind in every step.
    Leak(u64),
    /// A factor on the transient sizes of one step, or of all.
    Batch { factor: f64, step: Option<usize> },
    /// A buffer that is taken in the second step and kept.
    Buffer(u64),
    /// A buffer that is taken and given back within every step.
    Scratch(u64),
    /// Another configuration of the allocator.
    Settings(&'static str),
    /// A card of this share of the run's need.
    SmallCard(f64),
    /// Steps last this many times as long.
    Slow(f64),
}

/// Small differences between all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    /// Transient sizes of a step, as a share up or down.
    pub(crate) sizes: f64,
    /// The size of every single request, as a share up or down.
    pub(crate) each: f64,
    /// Durations, as a share up or down.
    pub(crate) times: f64,
    /// Bytes that rank 0 takes and gives back after every step.
    pub(crate) logging: u64,
    /// A factor on all transient sizes of a rank: stages of a pipeline keep different numbers of micro-batches.
    pub(crate) stage: f64,
    /// True if annotations, which tell the steps, are left out.
    pub(crate) bare: bool,
}

/// A recorded run to make ranks from.
pub(crate) struct Base {
    trace: Trace,
    script: Script,
    version: TorchVersion,
    settings: TorchSettings,
    /// For each slot: true if its size follows the batch, its step, and its stack.
    slots: Vec<(bool, Option<usize>, StackId)>,
    /// Ticks at which steps begin and end.
    pub(crate) steps: Vec<(u32, u32)>,
    /// Peak allocated.
    pub(crate) peak: u64,
}

impl Base {
    pub(crate) fn open(path: &Path) -> Base {
        let trace = gapless_ingest::open(path, &gapless_ingest::ReadOptions::default()).expect("a trace");
        let version = TorchVersion::of_producer(&trace.source.producer);
        let settings = TorchSettings::recorded(&trace.settings.clone().unwrap_or_default(), version);
        let (script, slots, steps, peak) = {
            let analysis = Analysis::of(&trace).expect("a history");
            let d = &analysis.devices[0];
            let script = Script::refined(&trace, d.device, &d.history, &settings, version);
            let mut steps: Vec<(u32, u32)> = d.steps.spans.iter().map(|s| (s.start.0, s.end.0)).collect();
            if steps.is_empty() {
                // A run without steps: faults are planted into four parts of it as if those were steps.
                let part = d.history.last_tick.0 / 4;
                steps = (0..4).map(|i| (i * part, (i + 1) * part)).collect();
            }
            let of = |id: AllocationId| {
                let a = d.history.allocations.get(id);
                let step = d.steps.step_at(a.start);
                let in_step =
                    d.steps.spans.is_empty() || step.is_some_and(|s| a.freed <= d.steps.spans[s].end);
                let follows =
                    matches!(d.kinds.of(id), Kind::Activations | Kind::Temporaries | Kind::Unexplained);
                let part = steps.iter().position(|&(start, end)| start <= a.start.0 && a.start.0 < end);
                (in_step && follows && a.freed <= d.history.last_tick, part, a.stack)
            };
            let slots = d.history.allocations.ids().map(of).collect();
            (script, slots, steps, d.history.usage.allocated.peak.0)
        };
        Base { trace, script, version, settings, slots, steps, peak }
    }

    pub(crate) fn is_expandable(&self) -> bool {
        self.settings.base.expandable_segments
    }

    /// Times of ticks, since the first event.
    fn time(&self, tick: Tick) -> u64 {
        let events = &self.trace.devices[0].events;
        events.time_at(tick).since(events.time_at(Tick(0))).0
    }

    /// One rank of the run, as a trace. `stacks` keeps the stacks.
    pub(crate) fn rank(
        &self,
        rank: u32,
        seed: u64,
        noise: Noise,
        fault: Option<Fault>,
        stacks: bool,
    ) -> Trace {
        self.rounds(rank, seed, noise, fault, stacks, 1)
    }

    /// The same, run several times over.
    pub(crate) fn rounds(
        &self,
        rank: u32,
        seed: u64,
        noise: Noise,
        fault: Option<Fault>,
        stacks: bool,
        rounds: u64,
    ) -> Trace {
        let mut random = Random::new(seed ^ u64::from(rank).wrapping_mul(0xd1b5_4a32_d192_ed03));
        let spans = &self.steps;
        let steps = spans.len().max(1);
        let mut factors: Vec<f64> =
            (0..steps).map(|_| noise.stage * (1.0 + random.real(-noise.sizes, noise.sizes))).collect();
        if let Some(Fault::Batch { factor, step }) = fault {
            let is_larger = |at: usize| step.is_none_or(|step| step.min(steps - 1) == at);
            (0..steps).filter(|&at| is_larger(at)).for_each(|at| factors[at] *= factor);
        }
        let pace = 1.0 + random.real(-noise.times, noise.times);
        let slow = if let Some(Fault::Slow(factor)) = fault { factor } else { 1.0 };
        let start = 1_700_000_000_000_000 + random.next() % 50_000;
        let begins = spans.first().map_or(0, |s| self.time(Tick(s.0)));
        let time = |tick: Tick| {
            let t = self.time(tick) as f64;
            let (before, within) = (t.min(begins as f64), (t - begins as f64).max(0.0));
            start + ((before + within * slow) * pace) as u64
        };

        let mut settings = self.settings.clone();
        let mut recorded = self.trace.settings.clone();
        if let Some(Fault::Settings(conf)) = fault {
            settings = TorchSettings::parse(conf, self.version).expect("settings");
            recorded = Some(settings.base.clone());
            if let Some(recorded) = &mut recorded {
                recorded.conf = conf.to_owned();
            }
        }
        let card = match fault {
            Some(Fault::SmallCard(share)) => (self.peak as f64 * share) as u64,
            _ => 1 << 42,
        };
        let placement = if random.below(2) == 0 { Placement::Lowest } else { Placement::Highest };
        let device = SimDevice::placing(card, placement);

        let mut trace = Trace {
            source: self.trace.source.clone(),
            strings: self.trace.strings.clone(),
            frames: self.trace.frames.clone(),
            stacks: if stacks { self.trace.stacks.clone() } else { Stacks::default() },
            settings: recorded,
            ..Trace::default()
        };
        let mut planted = StackId::NONE;
        if stacks && !self.trace.stacks.is_empty() {
            let (name, file) = (trace.strings.intern("remember"), trace.strings.intern("/app/extra.py"));
            let frame = trace.frames.intern(Frame { name, file, line: 12 });
            planted = trace.stacks.intern(&[frame]);
        }
        let length = ((self.time(Tick(u32::MAX - 1)) as f64) * slow * pace) as u64 + 1000;
        for (round, annotation) in (0..rounds)
            .flat_map(|r| self.trace.annotations.iter().map(move |a| (r, a)))
            .filter(|_| !noise.bare)
        {
            let mut moved = *annotation;
            let events = &self.trace.devices[0].events;
            let t = annotation.time.since(events.time_at(Tick(0))).0 as f64;
            let (before, within) = (t.min(begins as f64), (t - begins as f64).max(0.0));
            moved.time = Micros(start + round * length + ((before + within * slow) * pace) as u64);
            trace.annotations.push(moved);
        }

        let torch = Torch::new(settings, self.version, device, &self.script.lanes);
        let mut writer = Writer::new(self.trace.devices[0].device, torch, start, &self.script.lanes);
        let mut extra = self.script.slots;
        let mut scratch = None;
        let mut step = 0;
        let repeated = (0..rounds)
            .flat_map(|round| self.script.ops.iter().enumerate().map(move |(i, op)| (round, i, op)));
        for (round, i, op) in repeated {
            let tick = self.script.ticks[i];
            if i == 0 && round > 0 {
                step = 0;
                for slot in 0..writer.slots.len() as u32 {
                    writer.free(slot);
                }
            }
            writer.now = time(tick) + round * length;
            // Faults act in the middle of a step and at its end.
            if step < spans.len() && tick.0 >= u32::midpoint(spans[step].0, spans[step].1) {
                let index = step;
                step += 1;
                let lane = 0;
                if let Some(slot) = scratch.take() {
                    writer.free(slot);
                }
                if rank == 0 && noise.logging > 0 {
                    writer.alloc(extra, noise.logging, lane, StackId::NONE);
                    writer.free(extra);
                    extra += 1;
                }
                match fault {
                    Some(Fault::Leak(bytes)) => {
                        writer.alloc(extra, bytes + 512 * (random.next() % 64), lane, planted);
                        extra += 1;
                    }
                    Some(Fault::Buffer(bytes)) if index == usize::from(spans.len() > 1) => {
                        writer.alloc(extra, bytes, lane, planted);
                        extra += 1;
                    }
                    _ => {}
                }
            }
            if let (Some(Fault::Scratch(bytes)), None) = (fault, scratch)
                && spans.get(step).is_some_and(|s| tick.0 > s.0 && tick.0 < u32::midpoint(s.0, s.1))
            {
                writer.alloc(extra, bytes, 0, planted);
                scratch = Some(extra);
                extra += 1;
            }
            match *op {
                Op::Alloc { slot, size, lane } => {
                    let (follows, step, stack) = self.slots.get(slot as usize).copied().unwrap_or_default();
                    let each = 1.0 + random.real(-noise.each, noise.each);
                    let factor = each * if follows { factors[step.unwrap_or(0).min(steps - 1)] } else { 1.0 };
                    // Small requests are counters and scalars, whose sizes do not follow the batch.
                    let size = if size.0 >= 4096 {
                        ((size.0 as f64 * factor) as u64).div_ceil(512) * 512
                    } else {
                        size.0
                    };
                    writer.alloc(slot, size, lane, if stacks { stack } else { StackId::NONE });
                }
                Op::Free { slot } => writer.free(slot),
                Op::FreeRequested { slot } => writer.requested(slot),
                Op::FreeCompleted { slot } => writer.completed(slot),
                Op::EmptyCache { pool } => {
                    writer.torch.empty_cache(pool.map(|p| self.script.pools[p as usize]));
                    writer.notes();
                }
                Op::ReleasePool { pool } => {
                    writer.torch.release_pool(self.script.pools[pool as usize]);
                    writer.notes();
                }
                Op::Failed { .. } => {}
            }
            if writer.failed {
                break;
            }
        }
        trace.devices.push(writer.out);
        trace
    }
}

/// The allocator, and the recording of its work.
pub(crate) struct Writer {
    pub(crate) out: DeviceTrace,
    torch: Torch<SimDevice>,
    pub(crate) now: u64,
    pub(crate) failed: bool,
    /// The stream and the pool of each lane, as the trace numbers them.
    lanes: Vec<(u16, u16)>,
    /// Size, lane and stack of each slot.
    slots: Vec<(u64, u16, StackId)>,
}

impl Writer {
    pub(crate) fn new(device: u32, torch: Torch<SimDevice>, now: u64, lanes: &[Lane]) -> Writer {
        let out = DeviceTrace::new(device);
        let mut writer = Writer { out, torch, now, failed: false, lanes: Vec::new(), slots: Vec::new() };
        writer.torch.keep_notes();
        for lane in lanes {
            let stream = writer.out.stream_index(lane.stream).unwrap_or(0);
            writer.lanes.push((stream, writer.out.pool_index(lane.pool).unwrap_or(0)));
        }
        writer
    }

    pub(crate) fn push(
        &mut self,
        action: Action,
        addr: u64,
        size: u64,
        (stream, pool): (u16, u16),
        stack: StackId,
    ) {
        self.out.events.push(Event {
            action,
            addr: DeviceAddr(addr),
            size: Bytes(size),
            stream,
            pool,
            time: Micros(self.now),
            stack,
            ..Event::default()
        });
    }

    /// Records the allocator's device calls.
    fn notes(&mut self) {
        for note in self.torch.take_notes() {
            let action = match note.kind {
                NoteKind::FreeCompleted => Action::FreeCompleted,
                NoteKind::SegmentAlloc => Action::SegmentAlloc,
                NoteKind::SegmentFree => Action::SegmentFree,
                NoteKind::SegmentMap => Action::SegmentMap,
                NoteKind::SegmentUnmap => Action::SegmentUnmap,
            };
            let stream = self.out.streams.iter().position(|s| s.0 == note.stream).unwrap_or(0) as u16;
            self.push(action, note.addr, note.size, (stream, 0), StackId::NONE);
        }
    }

    pub(crate) fn alloc(&mut self, slot: u32, size: u64, lane: u16, stack: StackId) {
        let served = self.torch.alloc(slot, Bytes(size), lane);
        self.notes();
        match served {
            Ok(addr) => {
                let at = slot as usize;
                if self.slots.len() <= at {
                    self.slots.resize(at + 1, (0, 0, StackId::NONE));
                }
                self.slots[at] = (size, lane, stack);
                self.push(Action::Alloc, addr.0, size, self.lanes[lane as usize], stack);
            }
            Err(oom) => {
                self.push(Action::Oom, oom.free.0, oom.asked.0, self.lanes[lane as usize], stack);
                self.failed = true;
            }
        }
    }

    pub(crate) fn free(&mut self, slot: u32) {
        self.requested(slot);
        self.completed(slot);
    }

    fn requested(&mut self, slot: u32) {
        if let Some((addr, _)) = self.torch.block(slot) {
            let (size, lane, stack) = self.slots[slot as usize];
            self.push(Action::FreeRequested, addr, size, self.lanes[lane as usize], stack);
            self.torch.free_requested(slot);
            self.notes();
        }
    }

    fn completed(&mut self, slot: u32) {
        if self.torch.block(slot).is_some() {
            self.torch.free_completed(slot);
            self.notes();
        }
    }
}
