//! The JSON contract `gapless.ranks/1`, member by member. Sizes are in bytes, times in microseconds.
//!
//! Within a schema version, releases only add members; `schema/gapless.ranks.schema.json` is the same
//! contract for other tools.

use super::odd::Why;
use crate::model::{KindBytes, OomInfo, Tool, When};
use crate::text::{count, duration};
use serde::Serialize;

pub const SCHEMA: &str = "gapless.ranks/1";

/// All ranks of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranks {
    pub schema: &'static str,
    pub tool: Tool,
    /// The files or folders as the user named them.
    pub path: String,
    pub files: u64,
    /// The way in which ranks got their numbers.
    pub numbering: String,
    /// The number of ranks by the files; `null` if no file has it.
    pub world_size: Option<u32>,
    /// One row for each device of each file, and one for each file that could not be read.
    pub ranks: Vec<RankRow>,
    /// Ranks below the highest one, or below the world size, that no file has.
    pub missing_ranks: Vec<u32>,
    /// Ranks that more than one file claims.
    pub duplicate_ranks: Vec<u32>,
    /// Files of a folder that were left out: no traces, or the older part of a recording.
    pub skipped_files: Vec<String>,
    /// The rank with the highest peak reserved (allocated if reserved is not known).
    pub worst_rank: Option<u32>,
    pub median_rank: Option<u32>,
    /// Highest peak / mean peak - 1, over all rows; `null` if nothing could be read.
    pub imbalance: Option<f64>,
    /// The peak that `imbalance` and `worst_rank` use: "reserved" or "allocated".
    pub imbalance_of: &'static str,
    /// Ranks that differ from their replicas, the most bytes first.
    pub odd_ranks: Vec<OddRank>,
    /// The first noticeable difference between ranks of one group; `null` if there is none.
    pub first_divergence: Option<Divergence>,
    /// Replicas, by the model that they hold: one group, or one for each pipeline stage.
    pub groups: Vec<Group>,
    /// Groups of two whose members differ. With two, neither can be called the odd one.
    pub differences: Vec<Difference>,
    /// Ranks that wait for a slow one, if ranks synchronize after every step.
    pub waiting: Vec<Waiting>,
    /// Sentences for people on figures that could not be compared.
    pub not_compared: Vec<String>,
    pub timelines: Vec<Timeline>,
}

/// One device of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankRow {
    pub rank: u32,
    pub file: String,
    /// `null` if the file could not be read.
    pub device: Option<u32>,
    /// The position of its group in `groups`.
    pub group: Option<u32>,
    pub events: Option<u64>,
    pub peak_allocated: Option<u64>,
    pub peak_reserved: Option<u64>,
    /// 1 - peak allocated / peak reserved.
    pub fragmentation: Option<f64>,
    pub peak_allocated_at: Option<When>,
    pub peak_reserved_at: Option<When>,
    pub steps: Option<u64>,
    /// The duration of a typical step, without the first one.
    pub step_us: Option<f64>,
    /// Live bytes that each step adds.
    pub growth_per_step: Option<f64>,
    /// Active bytes by kind at peak allocated: inferred.
    pub kinds: Option<KindBytes>,
    pub ooms: Vec<OomInfo>,
    /// Parts that the reader repaired, inferred or left out.
    pub notes: Vec<String>,
    /// The reason why the file could not be read.
    pub error: Option<String>,
}

/// A rank and one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RankId {
    pub rank: u32,
    pub device: u32,
}

/// A rank that differs from its replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OddRank {
    pub rank: u32,
    pub device: u32,
    pub group: u32,
    /// The bytes of the difference; 0 if it is not about bytes.
    pub bytes: u64,
    pub why: Why,
    /// Other causes that hold as well.
    pub also: Vec<Why>,
    /// For people.
    pub sentence: String,
    /// Holders beyond those of its peers, the most first.
    pub holders: Vec<OddHolder>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OddHolder {
    pub label: String,
    pub kind: String,
    /// Bytes beyond those of the typical peer.
    pub bytes: u64,
    /// Bytes that the typical peer holds.
    pub peer_bytes: u64,
    pub count: u64,
}

/// The moment at which ranks first differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    pub rank: u32,
    pub device: u32,
    pub group: u32,
    /// The figure that differs from here on.
    pub of: Of,
    /// `None` before the first step, and if there are no steps.
    pub step: Option<u32>,
    /// The moment on this rank.
    pub tick: u32,
    pub time_us: Option<u64>,
    /// The bytes that `of` names, on this rank and on the typical peer.
    pub bytes: u64,
    pub peer_bytes: u64,
    /// For people.
    pub sentence: String,
}

impl Divergence {
    /// The moment as a text for people.
    #[must_use]
    pub fn place(&self) -> String {
        match (self.step, self.time_us) {
            (Some(step), _) => format!("step {step}"),
            (None, _) if self.tick <= 1 => "from the beginning".to_owned(),
            (None, Some(us)) => format!("after {}", duration(us)),
            (None, None) => format!("event {}", count(u64::from(self.tick.saturating_sub(1)))),
        }
    }
}

/// The figure that first differs between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// Live bytes at the peak of a step.
    Live,
    /// Bytes that stay until the end, of all that was there up to then.
    Kept,
    /// Bytes of a step beyond those that stay.
    Transient,
    /// The duration of a step; the bytes are the peaks.
    Duration,
    /// A request that failed, of so many bytes.
    Failed,
    /// The allocator's settings; the bytes are the peaks.
    Settings,
    /// The rank ends before its peers; the bytes are the peaks.
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    pub ranks: Vec<RankId>,
    pub worst_rank: u32,
    pub max_peak: u64,
    pub median_peak: u64,
    pub min_peak: u64,
    /// Highest peak / mean peak - 1, within the group.
    pub imbalance: f64,
    pub step_us: Option<f64>,
    /// True if there are three replicas or more. Of two, only one that fails, holds more or is slower is named.
    pub comparable: bool,
}

/// Two replicas that differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub group: u32,
    pub ranks: [RankId; 2],
    pub peaks: [u64; 2],
    /// Holders of the first beyond the second, and the second beyond the first.
    pub holders: [Vec<OddHolder>; 2],
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waiting {
    pub group: u32,
    /// The slow one.
    pub for_rank: u32,
    pub for_device: u32,
    /// The number of ranks that would wait for it.
    pub ranks: u64,
    pub us_per_step: f64,
    /// Bytes that a typical waiting rank holds between steps.
    pub held_bytes: u64,
}

/// Usage over the run: the most within each stretch of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    pub rank: u32,
    pub device: u32,
    /// The first tick of each stretch.
    pub ticks: Vec<u32>,
    /// Its time since the first event; empty if the source has no clock.
    pub time_us: Vec<u64>,
    pub allocated: Vec<u64>,
    pub reserved: Vec<u64>,
}
