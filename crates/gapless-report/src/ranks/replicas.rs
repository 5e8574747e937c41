//! The replicas of one group, with the shared figures that each comparison needs.

use super::evidence::Evidence;
use super::excess::{Excess, Origins};
use super::robust::{Against, against, median};
use super::stretches::{self, Larger, Pieces};
use super::summary::{StepRow, Summary};

/// A group of ranks that do the same.
pub(crate) struct Replicas<'a> {
    pub(crate) ranks: Vec<&'a Summary>,
    pub(crate) evidence: Evidence,
    /// By stack, for ranks that were recorded alike; and by size, for all ranks.
    origins: Origins,
    sizes: Origins,
    /// Bytes that matter at all.
    pub(crate) least: f64,
    /// Bytes kept step after step that matter, in all.
    pub(crate) least_leak: f64,
    /// `None` if most ranks do not have the same number of steps.
    pub(crate) steps: Option<TypicalSteps>,
    /// The largest share by which a step of each rank exceeds the typical one.
    pub(crate) largest: Vec<f64>,
    /// Excess of the requests of each rank over the typical ones; empty if they cannot be compared.
    pub(crate) larger: Vec<Larger>,
    /// The factor from which on requests are larger, as a logarithm, and true if each request was compared alone.
    pub(crate) threshold: (f64, bool),
}

/// Below this, and below a hundredth of the peak, a difference does not matter.
/// PyTorch takes no less than this from the device.
pub(crate) const LEAST: f64 = (2 << 20) as f64;
pub(crate) const LEAST_SHARE: f64 = 0.01;
/// The floor for bytes kept step after step, lower because they keep growing: a hundredth of the peak, within these.
const LEAST_LEAK: (f64, f64) = ((1 << 20) as f64, (8 << 20) as f64);

impl<'a> Replicas<'a> {
    pub(crate) fn new(ranks: Vec<&'a Summary>) -> Replicas<'a> {
        let peaks: Vec<f64> = ranks.iter().map(|rank| rank.peak_live as f64).collect();
        let share = LEAST_SHARE * median(&peaks);
        let least = LEAST.max(share);
        let steps = TypicalSteps::of(&ranks);
        let largest = |steps: &TypicalSteps| ranks.iter().map(|rank| steps.largest(rank, least).0).collect();
        let pieces: Vec<&Pieces> = ranks.iter().map(|rank| &rank.pieces).collect();
        let evidence = Evidence::of(&ranks);
        Replicas {
            origins: Origins::of(&evidence.alike(&ranks)),
            sizes: Origins::by_size(&ranks),
            evidence,
            least,
            least_leak: share.clamp(LEAST_LEAK.0, LEAST_LEAK.1),
            larger: stretches::larger(&pieces),
            threshold: stretches::threshold(&pieces),
            largest: steps.as_ref().map(largest).unwrap_or_default(),
            steps,
            ranks,
        }
    }

    /// Memory that the rank at `at` holds beyond the others, the most first: by stack, or by size if it was
    /// recorded in another way.
    pub(crate) fn beyond(&self, at: usize) -> Vec<Excess> {
        let origins = if self.evidence.is_alike(at) { &self.origins } else { &self.sizes };
        origins.beyond(self.ranks[at])
    }
}

/// The transient bytes and the peak of each step, or part of the run, on a typical rank.
pub(crate) struct TypicalSteps(Vec<(f64, f64)>);

impl TypicalSteps {
    fn of(ranks: &[&Summary]) -> Option<TypicalSteps> {
        // Only ranks with the most common number of steps count.
        let with = |rows: usize| ranks.iter().filter(move |rank| rank.rows().len() == rows);
        let rows =
            ranks.iter().map(|rank| rank.rows().len()).max_by_key(|&rows| (with(rows).count(), rows))?;
        if rows == 0 || 4 * with(rows).count() < 3 * ranks.len() {
            return None;
        }
        let of = |row: usize, value: fn(&StepRow) -> u64| {
            median(&with(rows).map(|rank| value(&rank.rows()[row]) as f64).collect::<Vec<_>>())
        };
        Some(TypicalSteps((0..rows).map(|row| (of(row, StepRow::swing), of(row, |row| row.peak))).collect()))
    }

    pub(crate) fn typical(&self, row: usize) -> f64 {
        self.0[row].0
    }

    /// The largest share by which a step of `rank` exceeds the typical one, and its row. Differences of fewer than
    /// `least` bytes do not count.
    pub(crate) fn largest(&self, rank: &Summary, least: f64) -> (f64, usize) {
        let mut most = (0.0, 0);
        if rank.rows().len() != self.0.len() {
            return most;
        }
        for (row, (step, &(typical, peak))) in rank.rows().iter().zip(&self.0).enumerate() {
            // More transient bytes show at the step's peak as well, unless this rank's step was cut at another place.
            let more = (step.swing() as f64 - typical).min(2.0 * (step.peak as f64 - peak));
            if more > least && more / typical.max(1.0) > most.0 {
                most = (more / typical.max(1.0), row);
            }
        }
        most
    }
}

/// The way in which kept bytes are compared: step by step, or by equal parts of the run if steps differ between ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptRows {
    pub(crate) by_step: bool,
    pub(crate) rows: usize,
}

impl KeptRows {
    pub(crate) fn of(group: &[&Summary], at: usize) -> KeptRows {
        let rows = group[at].kept_by_step.len();
        let same = group.iter().filter(|rank| rank.kept_by_step.len() == rows).count() - 1;
        let by_step = rows >= 3 && 4 * same >= 3 * (group.len() - 1);
        KeptRows { by_step, rows: if by_step { rows } else { group[at].kept_by_part.len() } }
    }

    /// The sum that `group[at]` keeps up to `row`, against its peers.
    pub(crate) fn against(self, group: &[&Summary], at: usize, row: usize) -> Against {
        let of = |rank: &&Summary| {
            let kept = if self.by_step { &rank.kept_by_step } else { &rank.kept_by_part };
            kept.get(row).or(kept.last()).copied().unwrap_or(0) as f64
        };
        against(&group.iter().map(of).collect::<Vec<f64>>(), at)
    }
}

/// The most transient bytes, and the step of them.
pub(crate) fn transient(rank: &Summary) -> (f64, Option<u32>) {
    // The first step may include set-up.
    let skipped = usize::from(rank.steps.len() >= 3);
    let most = rank.steps.iter().skip(skipped).rev().max_by_key(|step| step.swing());
    match most {
        Some(step) => (step.swing() as f64, Some(step.step)),
        None => (rank.swing as f64, None),
    }
}

/// The duration of a typical step, without the first one.
pub(crate) fn step_pace(rank: &Summary) -> Option<f64> {
    let skipped = usize::from(rank.steps.len() >= 3);
    let durations: Vec<f64> = rank.steps.iter().skip(skipped).filter_map(|step| step.duration_us).collect();
    (!durations.is_empty()).then(|| median(&durations))
}

/// Microseconds for an event, without the first quarter of the run: ranks start and warm up at different speeds.
pub(crate) fn pace(rank: &Summary) -> Option<f64> {
    let (from, to) = (rank.parts_at.get(rank.parts_at.len() / 4)?, rank.parts_at.last()?);
    let us = to.time_us?.saturating_sub(from.time_us?);
    (us > 0).then(|| us as f64 / f64::from(to.tick.saturating_sub(from.tick).max(1)))
}
