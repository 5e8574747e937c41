//! The cause of a failed request, for people and programs: the post-mortem of `gapless_replay::post_mortem` with the
//! asker, the holders of the rest, and the lines to set. The JSON contract is `gapless.oom/1`.

mod text;
pub mod xla;

pub use text::render;

use crate::advice::{self, BatchInfo};
use crate::analysis::{Analysis, DeviceAnalysis};
use crate::assemble;
use crate::model::{FrameInfo, HolderInfo, PoolLossesInfo, SourceInfo, Tool, When};
use gapless_replay::post_mortem::{Cause, Limit, PostMortem};
use gapless_trace::{StreamId, holders};
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "gapless.oom/1";

/// Holders that are named.
const HOLDERS: usize = 5;

/// A failed request, examined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Autopsy {
    pub schema: String,
    pub tool: Tool,
    pub source: SourceInfo,
    pub device: u32,
    pub event: u32,
    pub when: When,
    /// The rounded request, and the segment that it would have taken.
    pub asked: u64,
    pub segment: u64,
    /// The pool, size class and stream that had to serve the request.
    pub pool: String,
    pub class: String,
    pub stream: u64,
    /// The asker: one line for people, empty if no stack was recorded; and the stack, innermost first.
    pub asked_by: String,
    pub stack: Vec<FrameInfo>,
    /// Bytes that the device had free.
    pub device_free: u64,
    pub reserved: u64,
    pub active: u64,
    pub allocated: u64,
    pub limit: LimitInfo,
    pub cause: CauseInfo,
    /// Bytes held and free, by pool, size class and stream; the request's own first, then by free bytes.
    pub cached: Vec<PoolLossesInfo>,
    /// The largest holders at that instant.
    pub holders: Vec<HolderInfo>,
    /// The share of the batch that would have fitted; only if too much was live at once and the trace shows steps.
    pub batch: Option<BatchInfo>,
    /// Requests that failed before this one.
    pub earlier: u64,
    /// True if the model, with the run's own settings under the same limit, fails at the same request.
    pub reproduced: bool,
    /// Settings that were replayed under the same limit, and settings that were planned.
    pub tried: u64,
    pub planned: u64,
    /// Settings that serve the request, the fewest changes first.
    pub survivors: Vec<SurvivorInfo>,
}

/// The limit that refused the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitInfo {
    /// `card`, `cap` (the process's own) or `given` (by the asker).
    pub kind: LimitKind,
    /// Bytes that were surely within reach; for a cap, `below` has bytes that were surely out of reach.
    pub usable: u64,
    pub below: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    Card,
    Cap,
    Given,
}

/// The reason why it could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CauseInfo {
    /// With every gap closed there would still be too little, by this much.
    TooLarge { at_least: u64, at_most: u64 },
    /// Enough was free, in pieces.
    Fragmented { free: u64, largest: u64 },
    /// A free block large enough was there, for another stream, pool or size class.
    Elsewhere { largest: u64 },
}

/// Settings that would have served it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivorInfo {
    /// The exact line for the environment.
    pub line: String,
    /// The oldest release that knows all of it, if older ones refuse it: "2.11".
    pub needs: Option<String>,
    pub settings: String,
    pub changes: u32,
    pub peak_reserved: u64,
    pub retries: u64,
}

impl Autopsy {
    /// `found` in the words of this crate; `planned` settings were to be replayed.
    #[must_use]
    pub fn of(
        analysis: &Analysis<'_>,
        d: &DeviceAnalysis<'_>,
        path: &str,
        found: &PostMortem,
        planned: usize,
    ) -> Autopsy {
        let trace = analysis.trace;
        let (tool, source) = assemble::replayed_origin(analysis, path);
        let event = d.device.events.get(found.event);
        Autopsy {
            schema: SCHEMA.to_owned(),
            tool,
            source,
            device: d.device.device,
            event: found.event.0,
            when: assemble::when(d, found.event.after()),
            asked: found.asked.0,
            segment: found.segment.0,
            pool: assemble::pool(d, event.pool),
            class: found.class.name().to_owned(),
            stream: d.device.streams.get(found.stream as usize).copied().unwrap_or(StreamId(0)).0,
            asked_by: holders::stack_label(trace, event.stack).map_or_else(String::new, |label| label.text),
            stack: assemble::frames(trace, event.stack),
            device_free: found.device_free.0,
            reserved: found.reserved.0,
            active: found.active.0,
            allocated: found.allocated.0,
            limit: limit(found.limit),
            cause: cause(found.cause),
            cached: found.cached.iter().map(|p| assemble::pool_losses(d, p)).collect(),
            holders: assemble::holder_rows(trace, d, found.tick, HOLDERS),
            batch: match found.cause {
                Cause::TooLarge { .. } => {
                    advice::scaling(d, found.tick, found.asked.0, found.limit.usable().0)
                }
                Cause::Fragmented { .. } | Cause::Elsewhere { .. } => None,
            },
            earlier: found.earlier as u64,
            reproduced: found.reproduced,
            tried: found.tried as u64,
            planned: planned as u64,
            survivors: found
                .survivors
                .iter()
                .map(|s| SurvivorInfo {
                    line: advice::line(&s.conf, &trace.source.producer),
                    needs: advice::needs(&s.conf).map(str::to_owned),
                    settings: s.conf.clone(),
                    changes: s.changes,
                    peak_reserved: s.peak_reserved.0,
                    retries: s.retries,
                })
                .collect(),
        }
    }
}

/// The post-mortem as JSON: schema `gapless.oom/1`.
///
/// # Errors
/// Never for a post-mortem; serde's signature.
pub fn json(autopsy: &Autopsy) -> serde_json::Result<String> {
    serde_json::to_string_pretty(autopsy).map(|text| text + "\n")
}

fn limit(limit: Limit) -> LimitInfo {
    let (kind, usable, below) = match limit {
        Limit::Card { usable } => (LimitKind::Card, usable, None),
        Limit::Given { usable } => (LimitKind::Given, usable, None),
        Limit::Cap { at_least, below } => (LimitKind::Cap, at_least, Some(below.0)),
    };
    LimitInfo { kind, usable: usable.0, below }
}

fn cause(cause: Cause) -> CauseInfo {
    match cause {
        Cause::TooLarge { at_least, at_most } => {
            CauseInfo::TooLarge { at_least: at_least.0, at_most: at_most.0 }
        }
        Cause::Fragmented { free, largest } => CauseInfo::Fragmented { free: free.0, largest: largest.0 },
        Cause::Elsewhere { largest } => CauseInfo::Elsewhere { largest: largest.0 },
    }
}
