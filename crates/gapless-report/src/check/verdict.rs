//! Compares a report with budgets: figures, limits and unknown figures, as values.

use crate::model::{DeviceReport, Report};
use gapless_trace::Bytes;
use serde::Serialize;

pub const SCHEMA: &str = "gapless.check/1";

/// Limits of a run. `None`: not limited.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    pub peak_reserved: Option<Bytes>,
    pub peak_allocated: Option<Bytes>,
    /// 1 - peak allocated / peak reserved.
    pub fragmentation: Option<f64>,
    pub growth_per_step: Option<Bytes>,
    /// Highest peak / mean peak - 1, among the replicas of a run of many ranks.
    pub spread: Option<f64>,
    /// The share by which a run may exceed the baseline's peaks.
    pub tolerance: f64,
}

impl Budgets {
    /// True if a budget limits single ranks.
    pub(crate) fn limits_ranks(&self) -> bool {
        let Budgets {
            peak_reserved,
            peak_allocated,
            fragmentation,
            growth_per_step,
            spread: _,
            tolerance: _,
        } = self;
        peak_reserved.is_some()
            || peak_allocated.is_some()
            || fragmentation.is_some()
            || growth_per_step.is_some()
    }
}

/// The figures of one device that budgets can limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checked {
    pub(crate) rank: Option<u32>,
    pub(crate) device: u32,
    pub(crate) peak_reserved: Option<u64>,
    pub(crate) peak_allocated: u64,
    pub(crate) fragmentation: Option<f64>,
    /// `None`: too few steps.
    pub(crate) growth_per_step: Option<f64>,
    /// True if the run recorded events. Without events the peak may be above the bytes at the end.
    pub(crate) recorded: bool,
}

impl Checked {
    pub(crate) fn of(report: &Report, d: &DeviceReport) -> Checked {
        Checked {
            recorded: report.devices.iter().any(|d| d.events > 0),
            rank: None,
            device: d.device,
            peak_reserved: d.peak_reserved,
            peak_allocated: d.peak_allocated,
            fragmentation: d.fragmentation,
            growth_per_step: d.growth.as_ref().map(|growth| growth.bytes_per_step),
        }
    }
}

/// The reason why nothing could be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("no budget was given")]
    NoBudget,
    #[error("the trace has no device, so there is nothing to check")]
    NoDevice,
}

impl CheckError {
    /// The next step.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match self {
            CheckError::NoBudget => {
                "give one: --max-peak-reserved 20GiB, --baseline FILE, or a [check] table in gapless.toml"
            }
            CheckError::NoDevice => {
                "the recording ended before its first block was whole: record again, and let it run longer"
            }
        }
    }
}

/// The reason why a limited figure is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Reserved,
    History,
    Steps,
    Baseline,
    BaselineReserved,
}

impl Missing {
    fn why(self) -> &'static str {
        match self {
            Missing::Reserved => "the trace has no segments",
            Missing::History => "the snapshot has no history, so what was held before it is not known",
            Missing::Steps => "fewer than three steps were found after warm-up",
            Missing::Baseline => "the baseline does not have this device",
            Missing::BaselineReserved => "the baseline has no segments",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Missing::Reserved => "limit peak allocated instead, or record with PyTorch's memory history",
            Missing::History => {
                "call torch.cuda.memory._record_memory_history() before the run, then dump the snapshot"
            }
            Missing::Steps => "record more steps, or mark them with torch.profiler.record_function(\"step\")",
            Missing::Baseline => "make the baseline again from a run on the same devices",
            Missing::BaselineReserved => {
                "make the baseline again from a recording of the same kind as this run"
            }
        }
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Bytes,
    Share,
}

/// One figure against one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// "peak reserved".
    pub figure: &'static str,
    /// The rank, in a run of many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    pub device: u32,
    pub unit: Unit,
    pub value: f64,
    pub limit: f64,
    pub passed: bool,
    /// The source of the limit: "budget", or "baseline + 2 %".
    pub against: String,
}

/// A limit that could not be checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// "peak reserved".
    pub figure: &'static str,
    /// The rank, in a run of many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    pub device: u32,
    /// The reason why the figure is not known.
    pub why: String,
    /// The next step.
    pub help: &'static str,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub schema: &'static str,
    /// The file that was checked.
    pub path: String,
    /// Every figure is known and within its limit.
    pub passed: bool,
    pub rows: Vec<Row>,
    /// Limits whose figures are not known. They hide no row: every figure that is known is checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Holders of memory at the peak, of devices with a figure over its limit.
    pub holders: Vec<String>,
}

impl Verdict {
    /// True if a figure is over its limit, even if others are unknown.
    #[must_use]
    pub fn exceeded(&self) -> bool {
        self.rows.iter().any(|row| !row.passed)
    }
}

/// Holds `report` against `budgets`, and against the peaks of `baseline` if there is one.
///
/// # Errors
/// When there is nothing to check: no limit, or no device.
pub fn check(report: &Report, budgets: &Budgets, baseline: Option<&Report>) -> Result<Verdict, CheckError> {
    if !budgets.limits_ranks() && baseline.is_none() {
        return Err(CheckError::NoBudget);
    }
    if report.devices.is_empty() {
        return Err(CheckError::NoDevice);
    }
    let mut found = Found::default();
    for device in &report.devices {
        let checked = Checked::of(report, device);
        found.against_budgets(&checked, budgets);
        if let Some(baseline) = baseline {
            let base = baseline.devices.iter().find(|base| base.device == device.device);
            found.against_baseline(
                &checked,
                base.map(|base| Checked::of(baseline, base)).as_ref(),
                budgets.tolerance,
            );
        }
    }
    let Found { rows, unknown } = found;
    let passed = unknown.is_empty() && rows.iter().all(|row| row.passed);
    let over: Vec<u32> = rows.iter().filter(|row| !row.passed).map(|row| row.device).collect();
    let holders = report
        .devices
        .iter()
        .filter(|d| over.contains(&d.device))
        .flat_map(|d| d.holders.iter().take(3))
        .map(|h| format!("{} by {}", Bytes(h.bytes), h.label))
        .collect();
    Ok(Verdict { schema: SCHEMA, path: report.source.path.clone(), passed, rows, unknown, holders })
}

/// Rows and gaps, while they are gathered.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) rows: Vec<Row>,
    pub(crate) unknown: Vec<Unknown>,
}

impl Found {
    pub(crate) fn against_budgets(&mut self, d: &Checked, budgets: &Budgets) {
        let (rank, device) = (d.rank, d.device);
        let mut hold = |figure, unit, limit: Option<f64>, value: Result<f64, Missing>| {
            let Some(limit) = limit else { return };
            match value {
                // Bytes at the end above the limit are enough to fail. If they are below it, the peak is unknown.
                Ok(value) if !d.recorded && value <= limit => {
                    self.unknown.push(unknown(figure, d, Missing::History));
                }
                Ok(value) => {
                    let against = "budget".to_owned();
                    let passed = value <= limit;
                    self.rows.push(Row { figure, rank, device, unit, value, limit, passed, against });
                }
                Err(missing) => self.unknown.push(unknown(figure, d, missing)),
            }
        };
        let bytes = |limit: Option<Bytes>| limit.map(|limit| limit.0 as f64);
        let reserved = d.peak_reserved.ok_or(Missing::Reserved);
        hold("peak reserved", Unit::Bytes, bytes(budgets.peak_reserved), reserved.map(|value| value as f64));
        hold("peak allocated", Unit::Bytes, bytes(budgets.peak_allocated), Ok(d.peak_allocated as f64));
        let fragmentation = match reserved {
            Ok(_) if !d.recorded => Err(Missing::History),
            known => known.map(|_| d.fragmentation.unwrap_or(0.0)),
        };
        hold("fragmentation", Unit::Share, budgets.fragmentation, fragmentation);
        let without = if d.recorded { Missing::Steps } else { Missing::History };
        let growth = d.growth_per_step.ok_or(without).map(|growth| growth.max(0.0));
        hold("growth per step", Unit::Bytes, bytes(budgets.growth_per_step), growth);
    }

    pub(crate) fn against_baseline(&mut self, d: &Checked, base: Option<&Checked>, tolerance: f64) {
        let Some(base) = base else {
            self.unknown.push(unknown("baseline", d, Missing::Baseline));
            return;
        };
        let against = if tolerance > 0.0 {
            format!("baseline + {}", crate::text::percent(tolerance))
        } else {
            "baseline".to_owned()
        };
        let figures = [
            ("peak reserved", d.peak_reserved, base.peak_reserved),
            ("peak allocated", Some(d.peak_allocated), Some(base.peak_allocated)),
        ];
        for (figure, value, base) in figures {
            let (value, base) = match (value, base) {
                (Some(value), Some(base)) => (value, base),
                // Neither has it: two recordings of an allocator without segments.
                (None, None) => continue,
                (None, Some(_)) => {
                    self.unknown.push(unknown(figure, d, Missing::Reserved));
                    continue;
                }
                (Some(_), None) => {
                    self.unknown.push(unknown(figure, d, Missing::BaselineReserved));
                    continue;
                }
            };
            let (value, limit) = (value as f64, (base as f64 * (1.0 + tolerance)).floor());
            let (rank, device) = (d.rank, d.device);
            let (unit, passed, against) = (Unit::Bytes, value <= limit, against.clone());
            self.rows.push(Row { figure, rank, device, unit, value, limit, passed, against });
        }
    }
}

fn unknown(figure: &'static str, d: &Checked, missing: Missing) -> Unknown {
    Unknown { figure, rank: d.rank, device: d.device, why: missing.why().to_owned(), help: missing.help() }
}
