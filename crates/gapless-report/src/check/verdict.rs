//! Budgets held against a report: figures, limits and what is not known, as values.

use crate::model::{DeviceReport, Report};
use gapless_trace::Bytes;
use serde::Serialize;

pub const SCHEMA: &str = "gapless.check/1";

/// What a run may use. `None`: not limited.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    pub peak_reserved: Option<Bytes>,
    pub peak_allocated: Option<Bytes>,
    /// 1 - peak allocated / peak reserved.
    pub fragmentation: Option<f64>,
    pub growth_per_step: Option<Bytes>,
    /// By which share the baseline's peaks may be exceeded.
    pub tolerance: f64,
}

/// Why nothing could be checked at all.
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

/// Why a figure that is limited is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Reserved,
    Steps,
    Baseline,
}

impl Missing {
    fn why(self) -> &'static str {
        match self {
            Missing::Reserved => "the trace has no segments",
            Missing::Steps => "fewer than three steps were found after warm-up",
            Missing::Baseline => "the baseline does not have this device",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Missing::Reserved => "limit peak allocated instead, or record with PyTorch's memory history",
            Missing::Steps => "record more steps, or mark them with torch.profiler.record_function(\"step\")",
            Missing::Baseline => "make the baseline again from a run on the same devices",
        }
    }
}

/// How a figure is measured.
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
    pub device: u32,
    pub unit: Unit,
    pub value: f64,
    pub limit: f64,
    pub passed: bool,
    /// Where the limit comes from: "budget", or "baseline + 2 %".
    pub against: String,
}

/// A limit that could not be checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// "peak reserved".
    pub figure: &'static str,
    pub device: u32,
    /// Why the figure is not known.
    pub why: &'static str,
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
    /// Limits whose figures are not known. They hide no row: what can be checked is checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Who holds memory at the peak, for those over a budget.
    pub holders: Vec<String>,
}

impl Verdict {
    /// Whether a figure is over its limit, whatever else is not known.
    #[must_use]
    pub fn exceeded(&self) -> bool {
        self.rows.iter().any(|row| !row.passed)
    }
}

/// Holds `report` against `budgets`, and against the peaks of `baseline` where there is one.
///
/// # Errors
/// When there is nothing to check: no limit, or no device.
pub fn check(report: &Report, budgets: &Budgets, baseline: Option<&Report>) -> Result<Verdict, CheckError> {
    let limited = budgets.peak_reserved.is_some()
        || budgets.peak_allocated.is_some()
        || budgets.fragmentation.is_some()
        || budgets.growth_per_step.is_some();
    if !limited && baseline.is_none() {
        return Err(CheckError::NoBudget);
    }
    if report.devices.is_empty() {
        return Err(CheckError::NoDevice);
    }
    let mut found = Found::default();
    for device in &report.devices {
        found.against_budgets(device, budgets);
        if let Some(baseline) = baseline {
            found.against_baseline(device, baseline, budgets.tolerance);
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

#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    unknown: Vec<Unknown>,
}

impl Found {
    fn against_budgets(&mut self, d: &DeviceReport, budgets: &Budgets) {
        let device = d.device;
        let mut hold = |figure, unit, limit: Option<f64>, value: Result<f64, Missing>| {
            let Some(limit) = limit else { return };
            match value {
                Ok(value) => {
                    let against = "budget".to_owned();
                    self.rows.push(Row {
                        figure,
                        device,
                        unit,
                        value,
                        limit,
                        passed: value <= limit,
                        against,
                    });
                }
                Err(missing) => self.unknown.push(unknown(figure, device, missing)),
            }
        };
        let bytes = |limit: Option<Bytes>| limit.map(|limit| limit.0 as f64);
        let reserved = d.peak_reserved.ok_or(Missing::Reserved);
        hold("peak reserved", Unit::Bytes, bytes(budgets.peak_reserved), reserved.map(|value| value as f64));
        hold("peak allocated", Unit::Bytes, bytes(budgets.peak_allocated), Ok(d.peak_allocated as f64));
        let fragmentation = reserved.map(|_| d.fragmentation.unwrap_or(0.0));
        hold("fragmentation", Unit::Share, budgets.fragmentation, fragmentation);
        let growth = d.growth.as_ref().ok_or(Missing::Steps).map(|growth| growth.bytes_per_step.max(0.0));
        hold("growth per step", Unit::Bytes, bytes(budgets.growth_per_step), growth);
    }

    fn against_baseline(&mut self, d: &DeviceReport, baseline: &Report, tolerance: f64) {
        let device = d.device;
        let Some(base) = baseline.devices.iter().find(|b| b.device == device) else {
            self.unknown.push(unknown("baseline", device, Missing::Baseline));
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
            let (Some(value), Some(base)) = (value, base) else { continue };
            let (value, limit) = (value as f64, (base as f64 * (1.0 + tolerance)).floor());
            let (unit, passed, against) = (Unit::Bytes, value <= limit, against.clone());
            self.rows.push(Row { figure, device, unit, value, limit, passed, against });
        }
    }
}

fn unknown(figure: &'static str, device: u32, missing: Missing) -> Unknown {
    Unknown { figure, device, why: missing.why(), help: missing.help() }
}
