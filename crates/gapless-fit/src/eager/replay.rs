//! The run on PyTorch's allocator: its statistics, phase by phase, and the bytes that it would hold.

use super::log::{Log, Phase};
use super::simulate::Steps;
use gapless_replay::allocator::{Lane, Stats};
use gapless_replay::device::{Placement, SimDevice};
use gapless_replay::run::Watch;
use gapless_replay::script::{Op, Script};
use gapless_replay::torch::{Torch, TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Machine};
use gapless_trace::{Bytes, Tick};

/// Counts of the allocator at the end of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseFigures {
    pub step: u32,
    pub phase: Phase,
    pub allocated: Bytes,
    /// The largest so far.
    pub peak_allocated: Bytes,
}

/// Bytes that the driver counts for the process beside torch's segments on an H200 (torch 2.11, CUDA 13): context,
/// libraries and their kernels. They grew from 767 to 811 MiB while ever more kernels were loaded; most runs had this
/// number.
pub const OUTSIDE_TORCH: Bytes = Bytes(812_449_792);

/// Counts of the allocator over the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub peak_allocated: Bytes,
    pub peak_requested: Bytes,
    pub peak_reserved: Bytes,
    /// The event that led to the peak of allocated bytes.
    pub peak_event: u32,
    /// False if the run takes more than any simulated card has: the figures then end before it does.
    pub is_whole: bool,
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
    /// Bytes that are gone from the device: reserved ones, and those that the process holds beside them.
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
pub(crate) fn torch() -> Torch<SimDevice> {
    let device = SimDevice::placing(gapless_replay::answer::ENDLESS.0, Placement::Lowest);
    Torch::new(TorchSettings::default(), TorchVersion::DEFAULT, device, &[Lane::default()])
}

/// The program's side of the log from event `from` on: requests and frees.
pub(crate) fn ops(log: &Log, from: usize) -> impl Iterator<Item = Op> {
    log.events[from..].iter().map(|event| {
        let slot = event.slot();
        if event.is_free() {
            Op::Free { slot }
        } else {
            Op::Alloc { slot, size: Bytes(log.allocations[slot as usize].bytes), lane: 0 }
        }
    })
}

/// Serves requests and frees from an allocator on a card without end.
///
/// False if the card was too small all the same.
pub(crate) fn serve<A: Allocator, W: Watch>(
    ops: impl Iterator<Item = Op>,
    allocator: &mut A,
    watch: &mut W,
) -> bool {
    for (at, op) in (0u32..).zip(ops) {
        let served = match op {
            Op::Alloc { slot, size, lane } => allocator.alloc(slot, size, lane).is_ok(),
            Op::Free { slot } => {
                allocator.free(slot);
                true
            }
            // A simulated program does nothing else.
            _ => true,
        };
        if !served {
            return false;
        }
        watch.after(at, Tick(at + 1), allocator.stats());
    }
    true
}

impl Steps {
    /// The program's side of the run, for replays.
    #[must_use]
    pub fn script(&self) -> Script {
        let ops: Vec<Op> = ops(&self.log, 0).collect();
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

    /// Figures of PyTorch's own allocator over the run, on a card without end.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let mut torch = torch();
        let mut watcher = Watcher { log: &self.log, figures: Figures::default(), next: 0 };
        let is_whole = serve(ops(&self.log, 0), &mut torch, &mut watcher);
        let stats = torch.stats();
        let mut figures = Figures { is_whole, ..watcher.figures };
        figures.peak_requested = Bytes(stats.requested.peak);
        figures.peak_reserved = Bytes(stats.reserved.peak);
        figures
    }

    /// Allocated bytes after each event of the log, as the allocator counts them.
    #[must_use]
    pub fn curve(&self) -> Vec<u64> {
        let mut curve = Curve(Vec::with_capacity(self.log.events.len()));
        serve(ops(&self.log, 0), &mut torch(), &mut curve);
        curve.0
    }

    /// True if the run gets to its end on a card that leaves `capacity` bytes to `machine`.
    #[must_use]
    pub fn survives(&self, machine: &Machine, capacity: Bytes) -> bool {
        gapless_replay::answer::survives(&self.script(), machine, capacity, Placement::Lowest)
    }
}
