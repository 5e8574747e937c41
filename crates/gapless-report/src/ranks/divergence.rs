//! The moment at which ranks of one group first differ noticeably.
//!
//! An odd rank differs by its cause: from the first step in which it keeps more, needs more or takes longer, or from
//! its failed request. So the divergence agrees with the odd ranks. If no rank is odd, it is the first step whose
//! peaks lie far apart.

use super::model::Of;
use super::odd::{Cause, Facts};
use super::replicas::{KeptRows, LEAST};
use super::robust::{Against, against, median};
use super::summary::{StepRow, Summary};
use crate::model::When;
use crate::text::{bytes, duration};

/// Without an odd rank: the spread of a step's peaks that is worth reporting.
const SPREAD: f64 = 0.05;
/// A difference has begun once it reaches this share of its maximum.
const BEGUN: f64 = 0.5;

/// A position in a group, with the moment and the figure of its difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) at: usize,
    pub(crate) of: Of,
    pub(crate) when: When,
    /// Bytes of the rank and of a typical peer; `us` has their times if the difference is one of time.
    pub(crate) bytes: f64,
    pub(crate) typical: f64,
    us: (f64, f64),
}

impl Found {
    pub(crate) fn sentence(&self, rank: u32) -> String {
        let (here, peers) = (bytes(self.bytes as u64), bytes(self.typical as u64));
        match self.of {
            Of::Live => format!("rank {rank} has {here} live at its peak, a typical peer {peers}"),
            Of::Kept => format!("rank {rank} now keeps {here}, a typical peer {peers}"),
            Of::Transient => format!("rank {rank} needs {here} beyond what it keeps, a typical peer {peers}"),
            Of::Failed => format!("a request of {here} fails on rank {rank}"),
            Of::Settings => {
                format!("rank {rank} has other settings; its peak is {here}, a typical one {peers}")
            }
            Of::Duration => {
                let (here, peers) = (duration(self.us.0 as u64), duration(self.us.1 as u64));
                format!("rank {rank} takes {here}, a typical peer {peers}")
            }
            Of::Stopped => format!("rank {rank} ends here, its peers go on"),
        }
    }
}

/// The step in which `group[at]`, which is odd by `cause`, begins to differ from its peers.
pub(crate) fn of_rank(group: &[&Summary], at: usize, cause: &Cause) -> Found {
    let own = group[at];
    let peaks = against(&group.iter().map(|rank| rank.peak() as f64).collect::<Vec<_>>(), at);
    let found =
        |of: Of, when: When, bytes: f64, typical: f64| Found { at, of, when, bytes, typical, us: (0.0, 0.0) };
    match cause.facts {
        Facts::Failed { asked, .. } => {
            found(Of::Failed, own.oom_at.unwrap_or(own.allocated_at), asked as f64, 0.0)
        }
        Facts::Set { .. } => found(Of::Settings, When::default(), own.peak() as f64, peaks.typical),
        Facts::Leaks { per_step, .. } => {
            kept(group, at, BEGUN * per_step as f64 / (cause.bytes as f64).max(1.0))
        }
        Facts::Holds { lasting: true, .. } => kept(group, at, BEGUN),
        Facts::Holds { lasting: false, .. } | Facts::Larger { .. } => {
            let row = first_row(group, at, |row| Some(row.swing() as f64));
            let all: Vec<f64> = group.iter().map(|rank| rank.swing as f64).collect();
            row.map_or_else(
                || found(Of::Transient, own.allocated_at, own.swing as f64, against(&all, at).typical),
                |(row, by)| found(Of::Transient, own.rows()[row].start, by.typical + by.excess, by.typical),
            )
        }
        Facts::Slower { us, peers_us, .. } => {
            let row = first_row(group, at, |row| row.duration_us);
            let (when, here, typical) = row.map_or_else(
                || (When::default(), us, peers_us),
                |(row, by)| (own.rows()[row].start, by.typical + by.excess, by.typical),
            );
            Found { us: (here, typical), ..found(Of::Duration, when, own.peak() as f64, peaks.typical) }
        }
        Facts::Stopped { .. } => {
            let when = own.steps.last().map_or(own.allocated_at, |row| row.peak_at);
            found(Of::Stopped, when, own.peak() as f64, peaks.typical)
        }
    }
}

/// The first row of kept bytes in which the excess is at least `share` of the last one's.
fn kept(group: &[&Summary], at: usize, share: f64) -> Found {
    let (own, kept) = (group[at], KeptRows::of(group, at));
    let rows: Vec<Against> = (0..kept.rows).map(|row| kept.against(group, at, row)).collect();
    let least = share * rows.last().map_or(0.0, |last| last.excess);
    let first = rows.iter().position(|row| row.excess >= least && row.excess > 0.0);
    let row = first.unwrap_or(rows.len().saturating_sub(1));
    let when = match row.checked_sub(1) {
        None if kept.by_step => Some(When::default()),
        Some(step) if kept.by_step => own.steps.get(step).map(|step| step.start),
        _ => own.parts_at.get(row).copied(),
    };
    let (bytes, typical) = rows.get(row).map_or((0.0, 0.0), |by| (by.typical + by.excess, by.typical));
    let when = when.unwrap_or(own.allocated_at);
    Found { at, of: Of::Kept, when, bytes, typical, us: (0.0, 0.0) }
}

/// The first row of steps in which `value` exceeds the peers' by at least half of its largest excess.
fn first_row(
    group: &[&Summary],
    at: usize,
    value: impl Fn(&StepRow) -> Option<f64>,
) -> Option<(usize, Against)> {
    let rows = group[at].rows().len();
    // The first step may include set-up.
    let skipped = usize::from(group[at].steps.len() >= 3);
    let one = |row: usize| {
        let own = value(group[at].rows().get(row)?)?;
        let peers = group.iter().enumerate().filter(|&(i, _)| i != at);
        let with: Vec<f64> = peers.filter_map(|(_, rank)| rank.rows().get(row).and_then(&value)).collect();
        let values: Vec<f64> = std::iter::once(own).chain(with).collect();
        (2 * values.len() > group.len()).then(|| (row, against(&values, 0)))
    };
    let all: Vec<(usize, Against)> = (0..rows).filter_map(one).collect();
    let most = all.iter().skip(skipped).map(|(_, by)| by.excess).fold(0.0, f64::max);
    // The first step counts as well, if it differs as the others do.
    let begun = |by: &Against| by.excess > 0.0 && by.excess >= BEGUN * most && by.excess > by.allowed;
    let first = all.iter().position(|(_, by)| begun(by));
    let first = first.or_else(|| all.iter().position(|(_, by)| by.excess > 0.0 && by.excess >= most));
    first.map(|i| all[i])
}

/// The first step in which the ranks of `group` lie far apart, and the one farthest from the middle.
pub(crate) fn of_group(group: &[&Summary]) -> Option<Found> {
    let rows = group.iter().map(|rank| rank.steps.len()).min()?;
    (0..rows).find_map(|row| {
        let values = peaks(group, row)?;
        let typical = median(&values);
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let distance = |&at: &usize| (values[at] - typical).abs();
        let at = (0..values.len()).max_by(|a, b| distance(a).total_cmp(&distance(b)).then(b.cmp(a)))?;
        let (when, bytes) = (group[at].steps[row].peak_at, values[at]);
        (most - least > LEAST.max(SPREAD * typical)).then_some(Found {
            at,
            of: Of::Live,
            when,
            bytes,
            typical,
            us: (0.0, 0.0),
        })
    })
}

/// The peaks of one row of steps; `None` if a rank does not have it.
fn peaks(group: &[&Summary], row: usize) -> Option<Vec<f64>> {
    group.iter().map(|rank| rank.steps.get(row).map(|step| step.peak as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::odd::Why;

    fn rank(peaks: &[u64]) -> Summary {
        let row = |(i, &mib): (usize, &u64)| {
            let at = When { tick: 100 * i as u32, time_us: None, step: Some(i as u32) };
            StepRow { step: i as u32, start: at, peak_at: at, peak: mib << 20, ..StepRow::default() }
        };
        Summary { steps: peaks.iter().enumerate().map(row).collect(), ..Summary::default() }
    }

    fn cause(facts: Facts) -> Cause {
        Cause { why: Why::LargerBatch, bytes: 400 << 20, facts, holders: Vec::new() }
    }

    #[test]
    fn the_first_step_apart_is_found_and_noise_is_not() {
        let ranks = [[500, 501, 502], [501, 500, 499], [500, 750, 900], [499, 502, 500]].map(|p| rank(&p));
        let group: Vec<&Summary> = ranks.iter().collect();
        let found = of_rank(&group, 2, &cause(Facts::Larger { share: 0.8, step: Some(2) }));
        assert_eq!((found.at, found.of, found.when.step), (2, Of::Transient, Some(1)));
        let found = of_group(&group).expect("they lie apart");
        assert_eq!((found.at, found.of, found.when.step), (2, Of::Live, Some(1)));
        assert_eq!(of_group(&group[..2]), None);
    }

    #[test]
    fn a_leak_that_no_peak_shows_begins_with_the_first_step_that_keeps_more() {
        let usual = Summary { kept_by_step: vec![900, 950, 950, 950, 950], ..rank(&[500, 520, 480, 510]) };
        let leaks = Summary { kept_by_step: vec![900, 950, 960, 970, 980], ..rank(&[505, 500, 495, 515]) };
        let group = [&usual, &usual, &leaks, &usual];
        let leak = Cause { bytes: 30, ..cause(Facts::Leaks { per_step: 10, steps: 3 }) };
        let found = of_rank(&group, 2, &leak);
        assert_eq!(
            (found.of, found.when.step, found.bytes, found.typical),
            (Of::Kept, Some(1), 960.0, 950.0)
        );
    }
}
