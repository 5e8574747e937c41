//! The answer of advice, as it stands in a report and alone.

use super::HolderInfo;
use serde::{Deserialize, Serialize};

/// The answer itself, as it also stands in a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub device: u32,
    /// The size of the card; `null`: unlimited.
    pub capacity: Option<u64>,
    /// The model that was replayed: `torch@2.11`.
    pub allocator: String,
    pub verdict: Word,
    /// The verdict in a sentence.
    pub sentence: String,
    /// Settings that were replayed, and settings that were planned.
    pub tried: u64,
    pub planned: u64,
    /// True if the search ended before all planned settings were replayed.
    pub stopped: bool,
    /// The most bytes that were live at once: no allocator needs less.
    pub floor: u64,
    /// Bytes by which the live bytes exceed the card, if they do.
    pub excess: Option<u64>,
    /// The run with the settings that it had.
    pub baseline: Setting,
    /// The simplest first.
    pub suggestions: Vec<Suggestion>,
    /// The largest holders when most was live; only if no setting helps.
    pub holders: Vec<HolderInfo>,
    /// Bytes that a smaller batch would need; only if no setting helps and the trace has steps.
    pub batch: Option<BatchInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// Some settings hold less memory, or survive although the run as recorded would not.
    Helps,
    /// The run survives, and no setting holds noticeably less.
    Fine,
    /// The live bytes themselves exceed the card.
    TooLarge,
    /// The live bytes would fit, and no setting packs them so.
    NoSetting,
}

/// One way to run, with the figures of its replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// As PyTorch's environment variable takes them; empty: the defaults.
    pub settings: String,
    pub survives: bool,
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    /// The smallest card on which it survives.
    pub min_capacity: u64,
    pub device_allocs: u64,
    pub device_frees: u64,
    pub retries: u64,
    /// An estimate.
    pub driver_time_ms: f64,
}

/// Settings that help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// The exact line for the environment.
    pub line: String,
    /// The oldest release that knows all of it, if older ones refuse it: "2.11".
    pub needs: Option<String>,
    /// The number of settings that differ from the run's.
    pub changes: u32,
    /// Peak reserved bytes less than the run's, and as a share of it; 0 if the gain is that the run survives.
    pub saving: u64,
    pub saving_share: f64,
    #[serde(flatten)]
    pub setting: Setting,
}

impl Suggestion {
    /// True if the smallest card on which the run survives grows: it then reserves less but fits on fewer cards.
    #[must_use]
    pub fn needs_larger_card(&self, answer: &Answer) -> bool {
        answer.baseline.survives && self.setting.min_capacity > answer.baseline.min_capacity
    }
}

/// The dependence of live bytes on the batch, at their peak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchInfo {
    /// Always true: kinds are not recorded.
    pub inferred: bool,
    /// Bytes that do not depend on the batch, and bytes that scale with it.
    pub fixed: u64,
    pub scaling: u64,
    /// The share of the batch whose live bytes fit on the card; 0 if the fixed bytes alone are too many.
    pub fits_share: f64,
}
