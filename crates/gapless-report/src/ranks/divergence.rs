//! When ranks of one group first differ noticeably: the first step whose peak is above that of the peers by more than
//! their spread, and by more than a hundredth.

use super::replicas::{LEAST, LEAST_SHARE};
use super::robust::{against, median};
use super::summary::Summary;

/// Without an odd rank: the spread of a step's peaks that is worth telling.
const SPREAD: f64 = 0.05;

/// A position in a group, a row of its steps, and what the peers have there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) at: usize,
    pub(crate) row: usize,
    pub(crate) typical: f64,
}

/// The first step in which `group[at]` is above its peers.
pub(crate) fn of_rank(group: &[&Summary], at: usize) -> Option<Found> {
    (0..group[at].steps.len()).find_map(|row| {
        let values = peaks(group, row)?;
        let found = against(&values, at);
        let floor = LEAST.max(LEAST_SHARE * found.typical);
        (found.excess > floor.max(found.allowed)).then_some(Found { at, row, typical: found.typical })
    })
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
        (most - least > LEAST.max(SPREAD * typical)).then_some(Found { at, row, typical })
    })
}

/// The peaks of one row of steps; `None` where a rank does not have it.
fn peaks(group: &[&Summary], row: usize) -> Option<Vec<f64>> {
    group.iter().map(|rank| rank.steps.get(row).map(|step| step.peak as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::summary::StepRow;

    fn rank(peaks: &[u64]) -> Summary {
        let row =
            |(i, &mib): (usize, &u64)| StepRow { step: i as u32, peak: mib << 20, ..StepRow::default() };
        Summary { steps: peaks.iter().enumerate().map(row).collect(), ..Summary::default() }
    }

    #[test]
    fn the_first_step_apart_is_found_and_noise_is_not() {
        let ranks = [[500, 501, 502], [501, 500, 499], [500, 700, 900], [499, 502, 500]].map(|p| rank(&p));
        let group: Vec<&Summary> = ranks.iter().collect();
        let found = of_rank(&group, 2).expect("it diverges");
        assert_eq!((found.at, found.row), (2, 1));
        assert_eq!(of_rank(&group, 0), None);
        assert_eq!(of_group(&group).map(|found| (found.at, found.row)), Some((2, 1)));
        assert_eq!(of_group(&group[..2]), None);
    }
}
