//! The report as a value: the JSON contract `gapless.report/1`, member by member. Sizes are in bytes, times in
//! microseconds, ticks count events (tick k is the state after the first k events).
//!
//! Within a schema version, releases only add members; `schema/gapless.report.schema.json` is the same
//! contract for other tools.

pub(crate) mod advice;

use self::advice::Answer;
use crate::finding::Finding;
use crate::headline::Headline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA: &str = "gapless.report/1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub tool: Tool,
    pub source: SourceInfo,
    /// The allocator's settings; `null` if the source does not say.
    pub settings: Option<Settings>,
    pub devices: Vec<DeviceReport>,
    /// Pinned host memory, which is not part of the devices' figures; absent if the recording has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostInfo>,
    /// Figures of a recording of host memory; absent for a trace of a device. Device 0 has these figures too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_run: Option<HostRunInfo>,
    /// Advice for each device that has allocations; absent if the user did not ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Vec<Answer>>,
    /// The head of the page; absent in reports on recorded runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<Headline>,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    pub version: String,
}

/// The text in place of findings for a report without devices.
pub(crate) const NO_DEVICE: &str =
    "the recording ended before anything was whole, so nothing is known of its memory.";

impl Tool {
    /// This release of Gapless.
    #[must_use]
    pub fn this() -> Tool {
        Tool { name: "gapless".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// The file's name as it was given; "-" for standard input.
    pub path: String,
    pub format: String,
    /// The program that wrote it, as far as the content shows; empty if unknown.
    pub producer: String,
    /// The process that was recorded; absent if the source does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessInfo>,
    /// Parts that the reader inferred, repaired or left out.
    pub notes: Vec<NoteInfo>,
}

/// The process that was recorded; `null` if the source does not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its name, without arguments: `python train.py`.
    pub program: Option<String>,
    pub pid: Option<u64>,
    pub host: Option<String>,
    pub rank: Option<u64>,
    pub world: Option<u64>,
    pub torch: Option<String>,
    pub allocator: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoteInfo {
    pub code: String,
    pub text: String,
    pub device: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub conf: String,
    /// `null`: no limit.
    pub max_split_size: Option<u64>,
    pub garbage_collection_threshold: f64,
    pub expandable_segments: bool,
    pub roundup_power2_divisions: [u32; 16],
    pub other: BTreeMap<String, String>,
}

/// Bytes that PyTorch's allocator of pinned host memory held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    pub events: u64,
    /// Blocks at the end, in use or cached.
    pub blocks: u64,
    pub held: u64,
    /// The part of `held` that was in use at the end.
    pub in_use: u64,
    pub peak_held: u64,
    pub peak_in_use: u64,
}

/// A recording of host memory: a sample, so sizes are estimates. Each `error` is two standard errors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRunInfo {
    pub samples: u64,
    /// Mean bytes between two samples, at the end.
    pub interval: u64,
    /// From this size on every block was recorded.
    pub exact_from: u64,
    /// True if the recording has its end: the process was not killed.
    pub whole: bool,
    pub peak_live: EstimateInfo,
    /// Since the first event.
    pub peak_time_us: u64,
    pub end_live: EstimateInfo,
    /// The most that the allocator held from the kernel; `null` if it was not recorded.
    pub peak_held: Option<u64>,
    pub peak_resident: Option<u64>,
    /// Memory of the process near the peak of live bytes, and at the end; `null` if it was not recorded.
    pub at_peak: Option<HostStateInfo>,
    pub at_end: Option<HostStateInfo>,
    /// The unit of time of `rate`: "step" or "second".
    pub rate_unit: String,
    /// Lines whose kept bytes grow.
    pub growing: Vec<HostLineInfo>,
    /// Lines whose blocks were not freed when the recording ended.
    pub never_freed: Vec<HostLineInfo>,
    /// Lines that hold memory at the peak.
    pub holders: Vec<HostLineInfo>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstimateInfo {
    pub bytes: u64,
    pub error: u64,
    /// Sampled blocks.
    pub samples: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStateInfo {
    pub time_us: u64,
    /// Buffers of 1 MiB or more that the program has allocated.
    pub large: u64,
    /// Memory of freed buffers that is kept for the next one.
    pub kept: u64,
    /// Memory of small objects, in use or not.
    pub small: u64,
    pub resident: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostLineInfo {
    pub label: String,
    /// Innermost first.
    pub stack: Vec<FrameInfo>,
    #[serde(flatten)]
    pub kept: EstimateInfo,
    /// Bytes a step or a second; absent if the line does not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    pub device: u32,
    pub events: u64,
    /// Allocations that the recording saw.
    pub allocations: u64,
    /// Allocations that were there before it began.
    pub preexisting: u64,
    /// From the first event to the last; `null` if the source has no clock.
    pub duration_us: Option<u64>,
    pub peak_live: u64,
    pub peak_allocated: u64,
    pub peak_requested: u64,
    pub peak_active: u64,
    /// `null` if the source has no segments.
    pub peak_reserved: Option<u64>,
    /// 1 - peak allocated / peak reserved.
    pub fragmentation: Option<f64>,
    pub segments_peak: u64,
    pub peak_at: PeakMoments,
    pub end: FiguresInfo,
    pub at_peak_allocated: MomentInfo,
    pub at_peak_reserved: MomentInfo,
    pub pools: Vec<PoolInfo>,
    pub streams: Vec<StreamInfo>,
    pub kinds: KindsInfo,
    pub holders: Vec<HolderInfo>,
    /// Holders of memory at peak allocated, by module; absent if the program named no modules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<ModulesInfo>,
    pub steps: StepsInfo,
    pub growth: Option<GrowthInfo>,
    pub churn: ChurnInfo,
    pub timeline: TimelineInfo,
}

/// When each peak was reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakMoments {
    pub live: When,
    pub allocated: When,
    pub requested: When,
    pub active: When,
    pub reserved: When,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct When {
    pub tick: u32,
    /// Since the first event; `null` if the source has no clock.
    pub time_us: Option<u64>,
    /// The step it falls into, from 0.
    pub step: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiguresInfo {
    pub live: u64,
    pub allocated: u64,
    pub requested: u64,
    pub active: u64,
    pub reserved: u64,
}

/// The heap at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MomentInfo {
    pub tick: u32,
    pub figures: FiguresInfo,
    pub segments: u64,
    pub losses: LossesInfo,
    pub pools: Vec<PoolLossesInfo>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossesInfo {
    /// Rounding and unsplit blocks.
    pub internal: u64,
    /// Reserved and not active.
    pub external: u64,
    /// The part of `external` in segments that also hold active blocks.
    pub stranded: u64,
    /// Freed by the program, still used by another stream.
    pub pending: u64,
    pub largest_gap: u64,
    pub gaps: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolLossesInfo {
    pub pool: String,
    pub class: String,
    pub stream: u64,
    pub reserved: u64,
    pub active: u64,
    pub losses: LossesInfo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    pub pool: String,
    pub class: String,
    #[serde(flatten)]
    pub peaks: PeaksInfo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInfo {
    pub stream: u64,
    #[serde(flatten)]
    pub peaks: PeaksInfo,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeaksInfo {
    pub peak_live: u64,
    pub peak_allocated: u64,
    pub peak_requested: u64,
    pub peak_active: u64,
    pub peak_reserved: u64,
    /// When peak allocated was reached.
    pub peak_tick: u32,
}

/// Bytes by kind. Kinds are always inferred, never recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindsInfo {
    pub inferred: bool,
    pub evidence: String,
    /// Active bytes by kind at peak allocated, and the cached free ones beside them.
    pub at_peak: KindBytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindBytes {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer_state: u64,
    pub activations: u64,
    pub temporaries: u64,
    pub cached_free: u64,
    pub unexplained: u64,
    // Of compiled programs alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recomputed: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub collectives: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inputs: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outputs: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub constants: u64,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl KindBytes {
    /// Kinds that every trace has, before those of compiled programs.
    pub const USUAL: usize = 7;

    /// Name and bytes, in the order in which they are shown.
    #[must_use]
    pub fn rows(&self) -> [(&'static str, u64); 12] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer_state),
            ("activations", self.activations),
            ("temporaries", self.temporaries),
            ("unexplained", self.unexplained),
            ("cached free", self.cached_free),
            ("recomputed", self.recomputed),
            ("collectives", self.collectives),
            ("inputs", self.inputs),
            ("outputs", self.outputs),
            ("constants", self.constants),
        ]
    }
}

/// A holder of memory at peak allocated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HolderInfo {
    pub rank: u32,
    pub bytes: u64,
    pub requested: u64,
    pub count: u64,
    /// The share of all active bytes at that time.
    pub share: f64,
    /// The kind of most of its bytes.
    pub kind: String,
    /// One line for people.
    pub label: String,
    /// The named scopes that all its blocks were allocated in, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Innermost first; empty if no stacks were recorded.
    pub stack: Vec<FrameInfo>,
    /// The block size all its allocations have, if no stacks were recorded.
    pub size_class: Option<u64>,
    /// The module that the program noted on its blocks, with `*` for the numbers of layers; absent if it noted none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// Some of the program's notes on its blocks; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Active bytes at peak allocated, by module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModulesInfo {
    pub total: u64,
    /// Of no module.
    pub outside: u64,
    /// Each module before those inside of it, the largest of equals first.
    pub rows: Vec<ModuleInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// With `*` for the numbers of layers: `transformer.h.*.mlp`.
    pub path: String,
    /// The number of modules that the path stands for.
    pub modules: u64,
    /// Of the module and all inside of it.
    pub bytes: u64,
    /// Of the module alone.
    pub own: u64,
    /// Blocks of the module and all inside of it.
    pub count: u64,
    /// `bytes` by kind.
    pub kinds: KindBytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameInfo {
    pub name: String,
    pub file: String,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsInfo {
    pub count: u64,
    /// The way in which they were found, in a sentence.
    pub evidence: String,
    pub spans: Vec<StepInfo>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepInfo {
    /// First tick.
    pub start: u32,
    /// The tick past the last.
    pub end: u32,
    pub duration_us: Option<u64>,
    pub allocations: u64,
    pub peak_allocated: u64,
    /// Live bytes when it ended.
    pub live_end: u64,
}

/// Memory that stays behind step after step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrowthInfo {
    /// A robust slope of live bytes at the ends of steps.
    pub bytes_per_step: f64,
    /// The steps it was taken over.
    pub steps: u64,
    pub growers: Vec<GrowerInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrowerInfo {
    pub label: String,
    pub stack: Vec<FrameInfo>,
    pub bytes_per_step: f64,
    pub total: u64,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChurnInfo {
    /// `null` if the source has no clock.
    pub allocations_per_second: Option<f64>,
    pub allocations_per_step: Option<f64>,
    /// Calls that took memory from the device.
    pub device_allocs: u64,
    /// Calls that gave memory back.
    pub device_frees: u64,
    /// Both after the first two steps. A steady state should need none.
    pub device_calls_after_warmup: Option<u64>,
    /// Times the cache was flushed to serve a request, inferred.
    pub retries: u64,
    pub ooms: Vec<OomInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomInfo {
    pub tick: u32,
    pub asked: u64,
    /// Bytes that the device had free then.
    pub device_free: u64,
}

/// Usage over time, at most 512 points: the most within each stretch of ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineInfo {
    pub ticks: Vec<u32>,
    pub allocated: Vec<u64>,
    pub active: Vec<u64>,
    pub reserved: Vec<u64>,
}
