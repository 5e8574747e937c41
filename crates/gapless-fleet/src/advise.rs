//! Right-sizing: requests of pods against their recorded peaks.
//!
//! Runs of one group are assumed to be alike. The advice for a group is its highest recorded peak and a margin: 5 %
//! of the peak, or the distance between its two highest peaks if that is more. So no recorded run would have failed
//! with it. If runs are alike, the next one stays below the highest of n recorded peaks with probability n / (n + 1),
//! which is the confidence. A run that ran out of memory only shows that it needed more than it had.

use crate::error::{Error, Result};
use gapless_formats::csv::Csv;
use std::collections::BTreeMap;
use std::io::Read;

pub const HEADER: &str = "pod,group,gpus,requested_mib,peak_mib,status";
/// Fewer runs than this give no advice to lower a request.
pub const FEWEST: usize = 3;
const MIB: u64 = 1 << 20;

/// A finished pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub pod: String,
    pub group: String,
    pub gpus: u64,
    /// Bytes of each GPU.
    pub requested: u64,
    /// The highest bytes on any of its GPUs.
    pub peak: u64,
    pub out_of_memory: bool,
}

/// The change to the requests of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ask for this many bytes of each GPU instead.
    Lower(u64),
    /// Runs failed, or used more than they asked for: ask for at least this many bytes.
    Raise(u64),
    Keep,
    TooFewRuns,
}

/// The advice for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    pub group: String,
    pub runs: usize,
    /// The highest request and the highest peak.
    pub requested: u64,
    pub peak: u64,
    pub verdict: Verdict,
    /// Bytes that a pod of the group would leave to others, on all its GPUs.
    pub freed: u64,
    /// Pods of the group that fit on one GPU of the given size, now and then.
    pub sharing: Option<(u64, u64)>,
}

impl Advice {
    /// The chance that the next run stays below the highest peak so far, in per cent.
    pub fn confidence(&self) -> f64 {
        100.0 * self.runs as f64 / (self.runs as f64 + 1.0)
    }
}

/// Advice for every group, the one that frees most first. `gpu` is the size of a GPU, if known.
pub fn advise(records: &[Record], gpu: Option<u64>) -> Vec<Advice> {
    let mut groups: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        groups.entry(&record.group).or_default().push(record);
    }
    let mut all: Vec<Advice> = groups.into_iter().map(|(group, runs)| of_group(group, &runs, gpu)).collect();
    all.sort_by(|a, b| b.freed.cmp(&a.freed).then_with(|| a.group.cmp(&b.group)));
    all
}

fn of_group(group: &str, runs: &[&Record], gpu: Option<u64>) -> Advice {
    let mut peaks: Vec<u64> = runs.iter().map(|run| run.peak).collect();
    peaks.sort_unstable();
    let peak = peaks.last().copied().unwrap_or(0);
    let second = peaks.iter().rev().nth(1).copied().unwrap_or(0);
    let requested = runs.iter().map(|run| run.requested).max().unwrap_or(0);
    let margin = (peak / 20).max(peak - second);
    // In whole MiB, rounded up.
    let enough = peak.saturating_add(margin).div_ceil(MIB).saturating_mul(MIB);
    let failed = runs.iter().filter(|run| run.out_of_memory).map(|run| run.requested).max();
    let verdict = if let Some(had) = failed.filter(|&had| had >= requested) {
        Verdict::Raise(enough.max(had.saturating_add(had / 10).div_ceil(MIB).saturating_mul(MIB)))
    } else if peak > requested {
        Verdict::Raise(enough)
    } else if runs.len() < FEWEST {
        Verdict::TooFewRuns
    } else if enough < requested - requested / 20 && failed.is_none_or(|had| enough > had) {
        Verdict::Lower(enough)
    } else {
        Verdict::Keep
    };
    let gpus = runs.iter().map(|run| run.gpus).max().unwrap_or(0);
    let (freed, after) = match verdict {
        Verdict::Lower(bytes) => ((requested - bytes).saturating_mul(gpus), bytes),
        Verdict::Raise(bytes) => (0, bytes),
        _ => (0, requested),
    };
    let fit = |size: u64, bytes: u64| size.checked_div(bytes).unwrap_or(0);
    let sharing = gpu.map(|size| (fit(size, requested), fit(size, after)));
    Advice { group: group.to_owned(), runs: runs.len(), requested, peak, verdict, freed, sharing }
}

/// Reads records: the columns of [`HEADER`]; status is `ok` or `oom`.
pub fn read(input: &mut dyn Read) -> Result<Vec<Record>> {
    let mut csv = Csv::new(input, 2 << 30)?;
    let mut at = [0; 6];
    for (at, name) in at.iter_mut().zip(HEADER.split(',')) {
        let found = csv.column(&[name]);
        *at = found.ok_or_else(|| {
            Error::line(1, format!("there is no column {name:?}; the columns are {HEADER}"))
        })?;
    }
    let mut records = Vec::new();
    while let Some((line, fields)) = csv.row()? {
        let number = |column: usize, times: u64| {
            let (text, name) = (&fields[at[column]], HEADER.split(',').nth(column).unwrap_or_default());
            let value = text.parse::<u64>().ok().and_then(|value| value.checked_mul(times));
            value.filter(|&value| value <= 1 << 50).ok_or_else(|| {
                Error::line(line, format!("column {name} is not a whole number, or too large: {text:?}"))
            })
        };
        let out_of_memory = match fields[at[5]].as_ref() {
            "ok" => false,
            "oom" => true,
            other => return Err(Error::line(line, format!("unknown status {other:?}: use ok or oom"))),
        };
        records.push(Record {
            pod: fields[at[0]].as_ref().to_owned(),
            group: fields[at[1]].as_ref().to_owned(),
            gpus: number(2, 1)?,
            requested: number(3, MIB)?,
            peak: number(4, MIB)?,
            out_of_memory,
        });
    }
    if records.is_empty() {
        return Err(Error::Input("the list has no records".to_owned()));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(group: &str, requested: u64, peak: u64, out_of_memory: bool) -> Record {
        let (requested, peak) = (requested * MIB, peak * MIB);
        Record { pod: String::new(), group: group.to_owned(), gpus: 2, requested, peak, out_of_memory }
    }

    #[test]
    fn advice_is_above_every_recorded_peak() {
        let mut x = 1u64;
        let mut next = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        for _ in 0..2_000 {
            let runs: Vec<Record> = (0..1 + next(8))
                .map(|_| {
                    let requested = 1 + next(80_000);
                    record("g", requested, next(requested + 1), next(9) == 0)
                })
                .collect();
            let advice = &advise(&runs, None)[0];
            if let Verdict::Lower(bytes) | Verdict::Raise(bytes) = advice.verdict {
                assert!(runs.iter().all(|run| run.peak <= bytes), "{runs:?}: {advice:?}");
                let failed = runs.iter().filter(|run| run.out_of_memory);
                assert!(failed.into_iter().all(|run| run.requested < bytes), "{runs:?}: {advice:?}");
            }
        }
    }

    #[test]
    fn few_runs_give_no_advice_and_failures_raise_the_request() {
        let verdict = |runs: &[Record]| advise(runs, None)[0].verdict.clone();
        assert_eq!(
            verdict(&[record("g", 1000, 10, false), record("g", 1000, 10, false)]),
            Verdict::TooFewRuns
        );
        let alike =
            [record("g", 1000, 100, false), record("g", 1000, 100, false), record("g", 1000, 100, false)];
        assert_eq!(verdict(&alike), Verdict::Lower(105 * MIB));
        assert_eq!(advise(&alike, Some(1000 * MIB))[0].sharing, Some((1, 9)));
        assert_eq!(advise(&alike, None)[0].freed, 2 * 895 * MIB);
        let mut failed = alike.to_vec();
        failed.push(record("g", 1000, 1000, true));
        assert!(matches!(verdict(&failed), Verdict::Raise(bytes) if bytes > 1000 * MIB));
    }
}
