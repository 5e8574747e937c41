//! Replays as a value: the JSON contract `gapless.replay/1`, member by member. Sizes are in bytes, ticks count events.
//!
//! Within a schema version, releases only add members; `schema/gapless.replay.schema.json` is the same
//! contract for other tools.

use crate::analysis::{Analysis, DeviceAnalysis};
use crate::assemble;
use crate::model::{SourceInfo, Tool};
use gapless_replay::outcome::OomPoint;
use gapless_replay::run::Exactness;
use gapless_replay::{CurvePoint, Machine, Outcome};
use gapless_trace::{Action, Bytes, Tick};
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "gapless.replay/1";

/// One run on several allocators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    pub schema: String,
    pub tool: Tool,
    pub source: SourceInfo,
    /// The size of the card; `null`: unlimited.
    pub capacity: Option<u64>,
    /// The device that was asked for first.
    #[serde(flatten)]
    pub first: Replayed,
    /// Further devices, if more than one was asked for.
    pub more: Vec<Replayed>,
}

impl Replay {
    /// The replays of `first` and `more` devices of the trace that the user named `path`.
    #[must_use]
    pub fn new(
        analysis: &Analysis<'_>,
        path: &str,
        capacity: Option<Bytes>,
        first: Replayed,
        more: Vec<Replayed>,
    ) -> Replay {
        let (tool, source) = assemble::replayed_origin(analysis, path);
        Replay { schema: SCHEMA.to_owned(), tool, source, capacity: capacity.map(|b| b.0), first, more }
    }

    /// Every device, in the order asked for.
    pub fn devices(&self) -> impl Iterator<Item = &Replayed> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

/// One device's requests on several allocators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    pub device: u32,
    pub events: u64,
    pub allocations: u64,
    /// In the order asked for.
    pub runs: Vec<RunInfo>,
}

impl Replayed {
    #[must_use]
    pub fn of(d: &DeviceAnalysis<'_>, runs: Vec<RunInfo>) -> Replayed {
        let events = &d.device.events;
        Replayed {
            device: d.device.device,
            events: events.len() as u64,
            allocations: events.count(Action::Alloc) as u64,
            runs,
        }
    }
}

impl Replayed {
    /// The run whose allocated bytes stand for the program's: the first that got to its end, else the first.
    #[must_use]
    pub fn program(&self) -> Option<&RunInfo> {
        self.runs.iter().find(|r| r.oom.is_none()).or(self.runs.first())
    }
}

/// One allocator's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The allocator as the user named it.
    pub spec: String,
    /// The name, without settings.
    pub allocator: String,
    /// The settings as the user writes them; empty if they are the defaults.
    pub settings: String,
    /// True for the recorded run's own allocator and settings.
    pub recorded: bool,
    /// True if it takes a share of the card at once. Without a given card, it was replayed on the smallest on
    /// which it survives.
    pub takes_a_share: bool,
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    pub peak_active: u64,
    /// 1 - peak allocated / peak reserved.
    pub fragmentation: f64,
    /// When peak reserved was reached.
    pub peak_tick: u32,
    /// At peak allocated: free bytes in segments that also hold active blocks.
    pub stranded: u64,
    /// The most segments; for allocators that map pages, contiguous stretches of them at the peak.
    pub segments: u64,
    /// Calls that took memory from the device, and that gave it back.
    pub device_allocs: u64,
    pub device_frees: u64,
    /// Requests that were served only after the caches were given back.
    pub retries: u64,
    /// `null`: the run reaches its end.
    pub oom: Option<OomAt>,
    /// Requests that failed in the recording and were served here.
    pub served: u64,
    /// The smallest card on which the run survives; `null` if the user did not ask for it.
    pub min_capacity: Option<u64>,
    /// Time in the driver: an estimate.
    pub driver_time_ms: f64,
    /// True if every block landed at its recorded address and every device call was made; `null` if this is not the
    /// recorded allocator.
    pub exact: Option<bool>,
    pub exactness: Option<ExactnessInfo>,
    pub curve: CurveInfo,
}

/// The point at which a replay ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomAt {
    pub event: u32,
    /// The program's request, and the allocator's request to the device for it.
    pub requested: u64,
    pub asked: u64,
    /// Bytes that the card had free.
    pub free: u64,
    /// The largest free block that the allocator held.
    pub largest_hole: u64,
    pub reserved: u64,
    pub active: u64,
}

/// A replay with the recorded settings beside the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactnessInfo {
    pub placed: u64,
    pub misplaced: u64,
    /// The event of the first block that landed elsewhere.
    pub first_event: Option<u32>,
    /// Device calls that only one of the two made.
    pub call_differences: u64,
}

/// Memory over the run: the most within each stretch of ticks, at most 512 of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurveInfo {
    pub ticks: Vec<u32>,
    pub reserved: Vec<u64>,
    pub allocated: Vec<u64>,
}

impl RunInfo {
    /// The figures of `outcome`, which `machine`, named `spec`, gave.
    #[must_use]
    pub fn of(spec: &str, machine: &Machine, outcome: &Outcome) -> RunInfo {
        let stats = &outcome.stats;
        RunInfo {
            spec: spec.to_owned(),
            allocator: outcome.allocator.clone(),
            settings: outcome.settings.clone(),
            recorded: matches!(machine, Machine::Torch(torch) if torch.recorded),
            takes_a_share: machine.takes_a_share(),
            peak_reserved: stats.reserved.peak,
            peak_allocated: stats.allocated.peak,
            peak_active: stats.active.peak,
            fragmentation: outcome.fragmentation(),
            peak_tick: outcome.peak_at.0,
            stranded: outcome.stranded.0,
            segments: stats.segments.peak.max(u64::from(outcome.at_peak.segments)),
            device_allocs: stats.device_allocs,
            device_frees: stats.device_frees,
            retries: stats.retries,
            oom: outcome.oom.as_ref().map(oom),
            served: u64::from(outcome.served),
            min_capacity: outcome.min_capacity.map(|b| b.0),
            driver_time_ms: milliseconds(stats.driver_ns),
            exact: outcome.exactness.as_ref().map(Exactness::is_exact),
            exactness: outcome.exactness.as_ref().map(exactness),
            curve: curve(&outcome.curve),
        }
    }
}

/// Nanoseconds as milliseconds, to the microsecond.
pub(crate) fn milliseconds(ns: u64) -> f64 {
    (ns / 1000) as f64 / 1e3
}

fn event(tick: Tick) -> u32 {
    tick.event().map_or(0, |e| e.0)
}

fn oom(point: &OomPoint) -> OomAt {
    let oom = point.failure.oom;
    OomAt {
        event: event(point.failure.tick),
        requested: oom.requested.0,
        asked: oom.asked.0,
        free: oom.free.0,
        largest_hole: point.largest_hole.0,
        reserved: point.reserved.0,
        active: point.active.0,
    }
}

fn exactness(e: &Exactness) -> ExactnessInfo {
    ExactnessInfo {
        placed: u64::from(e.placed),
        misplaced: u64::from(e.misplaced),
        first_event: e.first.map(|(tick, ..)| event(tick)),
        call_differences: u64::from(e.call_differences),
    }
}

fn curve(points: &[CurvePoint]) -> CurveInfo {
    let column = |of: fn(&CurvePoint) -> Bytes| points.iter().map(|p| of(p).0).collect();
    CurveInfo {
        ticks: points.iter().map(|p| p.tick.0).collect(),
        reserved: column(|p| p.reserved),
        allocated: column(|p| p.allocated),
    }
}
