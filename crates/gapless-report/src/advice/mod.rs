//! Settings to change, for people and programs: the advice of `gapless_replay::advise` with the exact lines and, if
//! no setting helps, the holders and the need of a smaller batch. The JSON contract is `gapless.advice/1`.

mod batch;
mod text;

pub use crate::model::advice::{Answer, BatchInfo, Setting, Suggestion, Word};
pub(crate) use batch::scaling;
pub use text::render;
pub(crate) use text::{batch_share, section, table_of_holders};

use crate::analysis::{Analysis, DeviceAnalysis};
use crate::assemble;
use crate::model::{SourceInfo, Tool};
use crate::replay::model::milliseconds;
use crate::text::{bytes, count, plural};
use gapless_replay::advise::{self, Tried, Verdict};
use gapless_trace::{Moment, Tick};
use serde::{Deserialize, Serialize};

pub const SCHEMA: &str = "gapless.advice/1";

/// Holders that are named if the live bytes exceed the card.
const HOLDERS: usize = 5;

/// The advice for one device of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub schema: String,
    pub tool: Tool,
    pub source: SourceInfo,
    #[serde(flatten)]
    pub answer: Answer,
}

impl Answer {
    /// The advice for `d` in the words of this crate; `planned` settings were to be replayed.
    #[must_use]
    pub fn of(
        analysis: &Analysis<'_>,
        d: &DeviceAnalysis<'_>,
        advice: &advise::Advice,
        planned: usize,
    ) -> Answer {
        let verdict = match advice.verdict {
            Verdict::Helps => Word::Helps,
            Verdict::Fine => Word::Fine,
            Verdict::TooLarge { .. } => Word::TooLarge,
            Verdict::NoSetting => Word::NoSetting,
        };
        let producer = &analysis.trace.source.producer;
        let mut answer = Answer {
            device: d.device.device,
            capacity: advice.capacity.map(|b| b.0),
            allocator: format!("torch@{}", advice.version),
            verdict,
            sentence: String::new(),
            tried: advice.tried as u64,
            planned: planned as u64,
            stopped: advice.tried < planned,
            floor: advice.floor.0,
            excess: match advice.verdict {
                Verdict::TooLarge { excess } => Some(excess.0),
                _ => None,
            },
            baseline: setting(&advice.baseline),
            suggestions: advice.suggestions.iter().map(|s| suggestion(s, advice, producer)).collect(),
            holders: Vec::new(),
            batch: None,
        };
        if matches!(verdict, Word::TooLarge | Word::NoSetting) {
            let (tick, more) = most_live(d);
            answer.holders = assemble::holder_rows(analysis.trace, d, tick, HOLDERS);
            answer.batch = answer.capacity.and_then(|card| batch::scaling(d, tick, more, card));
        }
        answer.sentence = sentence(&answer);
        answer
    }

    /// False only if the card that was named is too small for every setting.
    #[must_use]
    pub fn survives(&self) -> bool {
        matches!(self.verdict, Word::Helps | Word::Fine)
    }
}

impl Advice {
    #[must_use]
    pub fn new(analysis: &Analysis<'_>, path: &str, answer: Answer) -> Advice {
        let (tool, source) = assemble::replayed_origin(analysis, path);
        Advice { schema: SCHEMA.to_owned(), tool, source, answer }
    }
}

/// The advice as JSON: schema `gapless.advice/1`.
///
/// # Errors
/// Never for advice; serde's signature.
pub fn json(advice: &Advice) -> serde_json::Result<String> {
    serde_json::to_string_pretty(advice).map(|text| text + "\n")
}

/// The line for the environment. Defaults need no variable.
pub(crate) fn line(conf: &str, producer: &str) -> String {
    if conf.is_empty() {
        // A release reads both names as long as one of them is set: so both are unset.
        "unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF".to_owned()
    } else {
        advise::environment_line(conf, producer)
    }
}

/// A release that does not know a setting refuses to start with it.
pub(crate) fn needs(conf: &str) -> Option<&'static str> {
    [("large_segment_size_mb", "2.11"), ("per_process_memory_fraction", "2.10")]
        .into_iter()
        .find_map(|(key, version)| conf.contains(key).then_some(version))
}

fn setting(tried: &Tried) -> Setting {
    let stats = &tried.stats;
    Setting {
        settings: tried.conf.clone(),
        survives: tried.survives,
        peak_reserved: stats.reserved.peak,
        peak_allocated: stats.allocated.peak,
        min_capacity: tried.min_capacity.0,
        device_allocs: stats.device_allocs,
        device_frees: stats.device_frees,
        retries: stats.retries,
        driver_time_ms: milliseconds(stats.driver_ns),
    }
}

fn suggestion(s: &advise::Suggestion, advice: &advise::Advice, producer: &str) -> Suggestion {
    let before = gapless_trace::Bytes(advice.baseline.stats.reserved.peak);
    Suggestion {
        line: line(&s.tried.conf, producer),
        needs: needs(&s.tried.conf).map(str::to_owned),
        changes: s.changes,
        saving: s.saving.0,
        saving_share: s.saving.share_of(before),
        setting: setting(&s.tried),
    }
}

/// The moment of the largest need, and the part of it that failed requests asked for: a failed request counts too.
fn most_live(d: &DeviceAnalysis<'_>) -> (Tick, u64) {
    let peak = &d.history.usage.active;
    let largest = d.churn.ooms.iter().max_by_key(|oom| oom.asked);
    match largest {
        Some(oom) if Moment::at(&d.history, oom.tick).figures.active + oom.asked > peak.peak => {
            (oom.tick, oom.asked.0)
        }
        _ => (peak.peak_at, 0),
    }
}

fn sentence(a: &Answer) -> String {
    let (before, card) = (&a.baseline, bytes(a.capacity.unwrap_or(0)));
    let replays = plural(a.tried, "setting");
    match a.verdict {
        Word::Helps if before.survives => {
            let best = a.suggestions.iter().map(|s| s.saving).max().unwrap_or(0);
            format!(
                "{} of the {} reserved can be saved: {replays} replayed",
                bytes(best),
                bytes(before.peak_reserved)
            )
        }
        Word::Helps => format!(
            "a card of {card} is too small for the run as it was, and enough with other settings: {replays} replayed"
        ),
        Word::Fine => {
            let room = before.peak_reserved.saturating_sub(a.floor);
            format!(
                "nothing to gain: {} reserved for {} that must be live at once, and none of {} other settings holds noticeably less{}",
                bytes(before.peak_reserved),
                bytes(a.floor),
                count(a.tried.saturating_sub(1)),
                if room > before.peak_reserved / 20 {
                    format!(
                        ", though {} of it lies between blocks: `gapless plan` packs tighter",
                        bytes(room)
                    )
                } else {
                    String::new()
                }
            )
        }
        Word::TooLarge => format!(
            "nothing helps: the live bytes themselves, {}, exceed the card of {card} by {}",
            bytes(a.floor),
            bytes(a.excess.unwrap_or(0))
        ),
        Word::NoSetting => format!(
            "no setting survives on {card}: the {} that are live at once would fit, but none of {replays} packs them so; the smallest card for \
             the run as it was is {}",
            bytes(a.floor),
            bytes(before.min_capacity)
        ),
    }
}
