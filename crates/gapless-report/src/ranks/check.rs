//! Compares many ranks with budgets: each rank against every limit, and the spread among replicas.
//!
//! The verdict is that of one run (`gapless.check/1`), with the rank in each row. A rank that could not be read gives
//! an unknown figure.

use super::{Run, Summary, assemble, groups};
use crate::check::{Budgets, CheckError, Checked, Found, Row, SCHEMA, Unit, Unknown, Verdict};
use crate::model::Report;
use crate::text::plural;
use gapless_trace::Bytes;
use serde::Deserialize;

/// The peaks that a run must not exceed.
#[derive(Clone, Copy, Debug)]
pub enum Baseline<'a> {
    /// One report for every rank.
    Report(&'a Report),
    /// Another run, rank by rank.
    Run(&'a Run),
    /// The saved figures of another run, rank by rank.
    Saved(&'a SavedRun),
}

/// The peaks in a saved report of many ranks (`gapless.ranks/1`); its other members are ignored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SavedRun {
    pub schema: String,
    ranks: Vec<SavedRank>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct SavedRank {
    rank: u32,
    /// `None` if the file could not be read.
    device: Option<u32>,
    peak_reserved: Option<u64>,
    peak_allocated: Option<u64>,
    fragmentation: Option<f64>,
    growth_per_step: Option<f64>,
}

impl SavedRun {
    /// The figures of a rank; of the same device, if the rank has several.
    fn of(&self, checked: &Checked) -> Option<Checked> {
        let mine = || self.ranks.iter().filter(|saved| Some(saved.rank) == checked.rank);
        let is_only = mine().count() == 1;
        let saved = mine().find(|saved| is_only || saved.device == Some(checked.device))?;
        Some(Checked {
            rank: Some(saved.rank),
            device: saved.device?,
            peak_reserved: saved.peak_reserved,
            peak_allocated: saved.peak_allocated?,
            fragmentation: saved.fragmentation,
            growth_per_step: saved.growth_per_step,
            recorded: true,
        })
    }
}

/// Holds `run` against `budgets`, and against `baseline` if there is one.
///
/// # Errors
/// When there is nothing to check: no limit, or no device.
pub fn check(run: &Run, budgets: &Budgets, baseline: Option<Baseline<'_>>) -> Result<Verdict, CheckError> {
    if !budgets.limits_ranks() && budgets.spread.is_none() && baseline.is_none() {
        return Err(CheckError::NoBudget);
    }
    let members: Vec<(u32, &Summary)> =
        run.files.iter().flat_map(|file| file.devices.iter().map(|d| (file.rank, d))).collect();
    if members.is_empty() {
        return Err(CheckError::NoDevice);
    }
    let mut found = Found::default();
    for &(rank, summary) in &members {
        let checked = figures(rank, summary);
        found.against_budgets(&checked, budgets);
        if let Some(baseline) = baseline {
            found.against_baseline(&checked, base(baseline, &checked).as_ref(), budgets.tolerance);
        }
    }
    if let Some(limit) = budgets.spread {
        found.rows.extend(spread(&members, limit));
    }
    for file in run.files.iter().filter(|file| file.devices.is_empty()) {
        found.unknown.push(Unknown {
            figure: "every figure",
            rank: Some(file.rank),
            device: 0,
            why: file.error.clone().unwrap_or_else(|| "the trace has no device".to_owned()),
            help: "copy the file again, or leave it out",
        });
    }
    let Found { rows, unknown } = found;
    let passed = unknown.is_empty() && rows.iter().all(|row| row.passed);
    // Holders are those of the rank that is farthest over a limit.
    let over = rows.iter().filter(|row| !row.passed).max_by(|a, b| a.value.total_cmp(&b.value));
    let of_over = |&&(rank, d): &&(u32, &Summary)| {
        over.is_some_and(|row| row.rank == Some(rank) && row.device == d.device)
    };
    let holders = members
        .iter()
        .find(of_over)
        .map(|(rank, d)| {
            let line = |(label, bytes): &(String, u64)| format!("{} by {label} (rank {rank})", Bytes(*bytes));
            d.top.iter().map(line).collect()
        })
        .unwrap_or_default();
    Ok(Verdict { schema: SCHEMA, path: run.path.clone(), passed, rows, unknown, holders })
}

fn figures(rank: u32, d: &Summary) -> Checked {
    Checked {
        rank: Some(rank),
        device: d.device,
        peak_reserved: d.peak_reserved,
        peak_allocated: d.peak_allocated,
        fragmentation: d.fragmentation,
        growth_per_step: d.growth_per_step,
        recorded: d.events > 0,
    }
}

/// The baseline's figures for a rank.
fn base(baseline: Baseline<'_>, checked: &Checked) -> Option<Checked> {
    match baseline {
        // A baseline of one device stands for every rank, on any device.
        Baseline::Report(report) => match report.devices.as_slice() {
            [only] => Some(Checked::of(report, only)),
            several => several.iter().find(|d| d.device == checked.device).map(|d| Checked::of(report, d)),
        },
        Baseline::Saved(run) => run.of(checked),
        Baseline::Run(run) => {
            let file = run.files.iter().find(|file| Some(file.rank) == checked.rank)?;
            let device = match file.devices.as_slice() {
                [only] => Some(only),
                several => several.iter().find(|d| d.device == checked.device),
            };
            device.map(|d| figures(file.rank, d))
        }
    }
}

/// A row for each group of replicas, at its worst rank.
fn spread(members: &[(u32, &Summary)], limit: f64) -> Vec<Row> {
    let summaries: Vec<&Summary> = members.iter().map(|(_, summary)| *summary).collect();
    let row = |group: Vec<usize>| {
        let ranks: Vec<&Summary> = group.iter().map(|&at| summaries[at]).collect();
        let value = assemble::imbalance(&ranks).unwrap_or(0.0);
        let worst = group.into_iter().rev().max_by_key(|&at| summaries[at].peak()).unwrap_or(0);
        Row {
            figure: "spread",
            rank: Some(members[worst].0),
            device: summaries[worst].device,
            unit: Unit::Share,
            value,
            limit,
            passed: value <= limit,
            against: format!("highest peak / mean peak - 1 of {}", plural(ranks.len() as u64, "replica")),
        }
    };
    groups::groups(&summaries).into_iter().map(row).collect()
}
