//! The run on PyTorch's allocator: what its statistics would say, phase by phase, and what it would hold.

use super::log::{Log, Phase};
use super::run::Steps;
use gapless_replay::allocator::{Lane, Stats};
use gapless_replay::device::{Placement, SimDevice};
use gapless_replay::run::Watch;
use gapless_replay::script::{Op, Script};
use gapless_replay::torch::{Torch, TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Machine, run};
use gapless_trace::{
    Action, Bytes, DeviceAddr, DeviceTrace, Event, Frame, Micros, Source, StackId, StreamId, Tick, Trace,
};

/// What the allocator counted at the end of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseFigures {
    pub step: u32,
    pub phase: Phase,
    pub allocated: Bytes,
    /// The largest so far.
    pub peak_allocated: Bytes,
}

/// What the driver counts for the process beside torch's segments on an H200 (torch 2.11, CUDA 13): context, libraries and their kernels. It grew from
/// 767 to 811 MiB while ever more kernels were loaded; this is what most runs had.
pub const OUTSIDE_TORCH: Bytes = Bytes(812_449_792);

/// What the allocator counted over the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub peak_allocated: Bytes,
    pub peak_requested: Bytes,
    pub peak_reserved: Bytes,
    /// The event that led to the peak of allocated bytes.
    pub peak_event: u32,
    pub phases: Vec<PhaseFigures>,
}

/// The allocator's allocated bytes, event by event.
#[derive(Debug, Default)]
struct Curve(Vec<u64>);

impl Watch for Curve {
    #[inline]
    fn after(&mut self, _op: u32, _tick: Tick, stats: &Stats) {
        self.0.push(stats.allocated.current);
    }
}

impl Figures {
    /// What the device is out of: reserved bytes, and what the process holds beside them.
    #[must_use]
    pub fn process_total(&self, outside: Bytes) -> Bytes {
        self.peak_reserved + outside
    }
}

struct Watcher<'a> {
    log: &'a Log,
    figures: Figures,
    next: usize,
}

impl Watch for Watcher<'_> {
    #[inline]
    fn after(&mut self, op: u32, _tick: Tick, stats: &Stats) {
        let allocated = Bytes(stats.allocated.current);
        if allocated > self.figures.peak_allocated {
            self.figures.peak_allocated = allocated;
            self.figures.peak_event = op;
        }
        while let Some(mark) = self.log.marks.get(self.next).filter(|m| m.event == op + 1) {
            let peak_allocated = self.figures.peak_allocated;
            self.figures.phases.push(PhaseFigures {
                step: mark.step,
                phase: mark.phase,
                allocated,
                peak_allocated,
            });
            self.next += 1;
        }
    }
}

/// PyTorch's allocator with its defaults, on a card without end.
fn torch(script: &Script) -> Torch<SimDevice> {
    let device = SimDevice::placing(gapless_replay::outcome::ENDLESS.0, Placement::Lowest);
    Torch::new(TorchSettings::default(), TorchVersion::DEFAULT, device, &script.lanes)
}

impl Steps {
    /// The program's side of the run: requests and frees.
    #[must_use]
    pub fn script(&self) -> Script {
        let ops = self
            .log
            .events
            .iter()
            .map(|e| {
                if e.is_free() {
                    Op::Free { slot: e.slot() }
                } else {
                    let size = Bytes(self.log.allocations[e.slot() as usize].bytes);
                    Op::Alloc { slot: e.slot(), size, lane: 0 }
                }
            })
            .collect::<Vec<_>>();
        let count = ops.len() as u32;
        Script {
            ticks: (1..=count).map(Tick).collect(),
            ops,
            lanes: vec![Lane::default()],
            slots: self.log.allocations.len() as u32,
            events: count,
            ..Script::default()
        }
    }

    /// What PyTorch's own allocator makes of it, without an end to its memory.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let script = self.script();
        let mut torch = torch(&script);
        let mut watcher = Watcher { log: &self.log, figures: Figures::default(), next: 0 };
        run::replay(&script, &mut torch, &mut watcher);
        let stats = torch.stats();
        let mut figures = watcher.figures;
        figures.peak_requested = Bytes(stats.requested.peak);
        figures.peak_reserved = Bytes(stats.reserved.peak);
        figures
    }

    /// Allocated bytes after each event of the log, as the allocator counts them.
    #[must_use]
    pub fn curve(&self) -> Vec<u64> {
        let script = self.script();
        let mut curve = Curve(Vec::with_capacity(script.ops.len()));
        run::replay(&script, &mut torch(&script), &mut curve);
        curve.0
    }

    /// Whether the run gets to its end on a card that leaves `capacity` bytes to `machine`.
    #[must_use]
    pub fn survives(&self, machine: &Machine, capacity: Bytes) -> bool {
        gapless_replay::outcome::survives(&self.script(), machine, capacity, Placement::Lowest)
    }

    /// The run as a trace, for statistics, reports, plans and replays: an allocation's stack is its part of the model, and the operator.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let mut trace = Trace {
            source: Source {
                format: "generated from a model's description".to_owned(),
                producer: "gapless fit".to_owned(),
                torch_rules: true,
                notes: Vec::new(),
            },
            ..Trace::default()
        };
        let mut device = DeviceTrace::new(0);
        device.stream_index(StreamId(0));
        let mut at = 1u64 << 40;
        let mut addresses = Vec::with_capacity(self.log.allocations.len());
        for allocation in &self.log.allocations {
            addresses.push(at);
            at += Log::rounded(allocation.bytes);
        }
        let mut known: Vec<((super::log::Scope, &'static str, Phase), StackId)> = Vec::new();
        for (time, event) in self.log.events.iter().enumerate() {
            let allocation = &self.log.allocations[event.slot() as usize];
            let key = (allocation.scope, allocation.op, allocation.phase);
            let stack = known.iter().rev().find(|(k, _)| *k == key).map(|(_, s)| *s);
            let stack = stack.unwrap_or_else(|| {
                let file = trace.strings.intern(&format!("{:?}", allocation.phase).to_lowercase());
                let name = trace.strings.intern(allocation.op);
                let inner = trace.frames.intern(Frame { name, file, line: 0 });
                let name = trace.strings.intern(&format!("{:?}", allocation.scope));
                let outer = trace.frames.intern(Frame { name, file, line: 0 });
                let stack = trace.stacks.intern(&[inner, outer]);
                known.push((key, stack));
                stack
            });
            let mut push = |action| {
                device.events.push(Event {
                    action,
                    addr: DeviceAddr(addresses[event.slot() as usize]),
                    size: Bytes(allocation.bytes),
                    time: Micros(time as u64),
                    stack,
                    ..Event::default()
                });
            };
            if event.is_free() {
                push(Action::FreeRequested);
                push(Action::FreeCompleted);
            } else {
                push(Action::Alloc);
            }
        }
        trace.devices.push(device);
        trace
    }
}
