//! Budgets held against a report: the gate for CI. A value again; `render` owns the formats.

mod render;

pub use render::{github, json, junit, text};

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

/// Why a check could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("no budget was given")]
    NoBudget,
    #[error("device {device}: peak reserved is not known, because the trace has no segments")]
    NoReserved { device: u32 },
    #[error(
        "device {device}: growth per step is not known, because fewer than three steps were found after warm-up"
    )]
    NoSteps { device: u32 },
    #[error("the trace has device {device}, the baseline has not")]
    NoBaselineDevice { device: u32 },
}

impl CheckError {
    /// The next step.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match self {
            CheckError::NoBudget => {
                "give one: --max-peak-reserved 20GiB, --baseline FILE, or a [check] table in gapless.toml"
            }
            CheckError::NoReserved { .. } => {
                "limit peak allocated instead, or record with PyTorch's memory history"
            }
            CheckError::NoSteps { .. } => {
                "record more steps, or mark them with torch.profiler.record_function(\"step\")"
            }
            CheckError::NoBaselineDevice { .. } => "make the baseline again from a run on the same devices",
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

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub schema: &'static str,
    /// The file that was checked.
    pub path: String,
    pub passed: bool,
    pub rows: Vec<Row>,
    /// Who holds memory at the peak, for those over a budget.
    pub holders: Vec<String>,
}

/// Holds `report` against `budgets`, and against the peaks of `baseline` where there is one.
///
/// # Errors
/// When there is nothing to check, or a figure that is limited is not known.
pub fn check(report: &Report, budgets: &Budgets, baseline: Option<&Report>) -> Result<Verdict, CheckError> {
    let mut rows = Vec::new();
    for device in &report.devices {
        against_budgets(device, budgets, &mut rows)?;
        if let Some(baseline) = baseline {
            against_baseline(device, baseline, budgets.tolerance, &mut rows)?;
        }
    }
    if rows.is_empty() {
        return Err(CheckError::NoBudget);
    }
    let passed = rows.iter().all(|row| row.passed);
    let over: Vec<u32> = rows.iter().filter(|row| !row.passed).map(|row| row.device).collect();
    let holders = report
        .devices
        .iter()
        .filter(|d| over.contains(&d.device))
        .flat_map(|d| d.holders.iter().take(3))
        .map(|h| format!("{} by {}", Bytes(h.bytes), h.label))
        .collect();
    Ok(Verdict { schema: SCHEMA, path: report.source.path.clone(), passed, rows, holders })
}

fn against_budgets(d: &DeviceReport, budgets: &Budgets, rows: &mut Vec<Row>) -> Result<(), CheckError> {
    let device = d.device;
    let mut row = |figure, unit, value: f64, limit: f64| {
        let against = "budget".to_owned();
        rows.push(Row { figure, device, unit, value, limit, passed: value <= limit, against });
    };
    let reserved = || d.peak_reserved.ok_or(CheckError::NoReserved { device });
    if let Some(limit) = budgets.peak_reserved {
        row("peak reserved", Unit::Bytes, reserved()? as f64, limit.0 as f64);
    }
    if let Some(limit) = budgets.peak_allocated {
        row("peak allocated", Unit::Bytes, d.peak_allocated as f64, limit.0 as f64);
    }
    if let Some(limit) = budgets.fragmentation {
        reserved()?;
        row("fragmentation", Unit::Share, d.fragmentation.unwrap_or(0.0), limit);
    }
    if let Some(limit) = budgets.growth_per_step {
        let growth = d.growth.as_ref().ok_or(CheckError::NoSteps { device })?;
        row("growth per step", Unit::Bytes, growth.bytes_per_step.max(0.0), limit.0 as f64);
    }
    Ok(())
}

fn against_baseline(
    d: &DeviceReport,
    baseline: &Report,
    tolerance: f64,
    rows: &mut Vec<Row>,
) -> Result<(), CheckError> {
    let device = d.device;
    let base = baseline
        .devices
        .iter()
        .find(|b| b.device == device)
        .ok_or(CheckError::NoBaselineDevice { device })?;
    let against = if tolerance > 0.0 {
        format!("baseline + {}", crate::findings::share(tolerance))
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
        rows.push(Row {
            figure,
            device,
            unit: Unit::Bytes,
            value,
            limit,
            passed: value <= limit,
            against: against.clone(),
        });
    }
    Ok(())
}
