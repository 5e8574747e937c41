//! A small linear program by the revised simplex method, with columns from an oracle.
//!
//! Maximise c x with A x <= b and x >= 0. b >= 0 is required, so that x = 0 is a basis to start from. The inverse of
//! the basis is dense, because programs here have only dozens of rows. Right-hand sides are raised by tiny different
//! amounts, so that no pivot is degenerate and the method cannot cycle.

/// A column: the gain of a unit, and the amounts that it takes of each row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub(super) gain: f64,
    pub(super) takes: Vec<(usize, f64)>,
}

/// Smaller numbers count as zero.
const NOTHING: f64 = 1e-9;
const MOST_PIVOTS: usize = 20_000;

/// The shadow prices of the rows at the optimum; `None` if the method did not reach one.
///
/// `fixed` are columns that are always there. `oracle` gets prices and returns its best column, or `None`.
pub(super) fn prices(
    limits: &[f64],
    fixed: &[Column],
    mut oracle: impl FnMut(&[f64]) -> Option<Column>,
) -> Option<Vec<f64>> {
    let rows = limits.len();
    let scale = limits.iter().copied().fold(0.0, f64::max).max(1e-6);
    let nudge = |row: usize| scale * 1e-7 * (1.0 + (row * 37 % 101) as f64 / 101.0);
    let mut amounts: Vec<f64> = limits.iter().enumerate().map(|(row, limit)| limit + nudge(row)).collect();
    let mut inverse: Vec<Vec<f64>> = (0..rows).map(|row| unit(rows, row)).collect();
    let mut gains = vec![0.0; rows];
    for _ in 0..MOST_PIVOTS {
        let price: Vec<f64> =
            (0..rows).map(|row| (0..rows).map(|at| gains[at] * inverse[at][row]).sum::<f64>()).collect();
        let (column, gain) = entering(&price, fixed, &mut oracle);
        let Some(column) = column.filter(|_| gain > 1e-7) else { return Some(price) };
        let takes: Vec<f64> = (0..rows)
            .map(|at| column.takes.iter().map(|&(row, amount)| inverse[at][row] * amount).sum())
            .collect();
        // The row that runs out first leaves; among equals, the one with the largest pivot, which keeps numbers small.
        let ratio = |at: usize| amounts[at] / takes[at];
        let leaving = (0..rows)
            .filter(|&at| takes[at] > NOTHING)
            .min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)).then(takes[b].total_cmp(&takes[a])))?;
        let pivot = takes[leaving];
        let step = amounts[leaving] / pivot;
        let leaving_row: Vec<f64> = inverse[leaving].iter().map(|value| value / pivot).collect();
        for at in 0..rows {
            if at != leaving && takes[at] != 0.0 {
                amounts[at] = (amounts[at] - step * takes[at]).max(0.0);
                for (value, &pivoted) in inverse[at].iter_mut().zip(&leaving_row) {
                    *value -= takes[at] * pivoted;
                }
            }
        }
        amounts[leaving] = step;
        inverse[leaving] = leaving_row;
        gains[leaving] = column.gain;
    }
    None
}

/// The column with the largest gain at these prices, and that gain.
fn entering(
    price: &[f64],
    fixed: &[Column],
    oracle: &mut impl FnMut(&[f64]) -> Option<Column>,
) -> (Option<Column>, f64) {
    let gain = |column: &Column| {
        column.gain - column.takes.iter().map(|&(row, amount)| price[row] * amount).sum::<f64>()
    };
    let slack = |row: usize| Column { gain: 0.0, takes: vec![(row, 1.0)] };
    let mut best = (None, 0.0);
    let candidates = (0..price.len()).filter(|&row| price[row] < 0.0).map(slack);
    for column in candidates.chain(fixed.iter().cloned()).chain(oracle(price)) {
        let gain = gain(&column);
        if gain > best.1 {
            best = (Some(column), gain);
        }
    }
    best
}

fn unit(length: usize, at: usize) -> Vec<f64> {
    let mut row = vec![0.0; length];
    row[at] = 1.0;
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_of_a_program_that_a_person_can_solve() {
        // Maximise 3 a + 5 b with a <= 4, 2 b <= 12, 3 a + 2 b <= 18: a = 2, b = 6, prices 0, 3/2, 1.
        let fixed = [
            Column { gain: 3.0, takes: vec![(0, 1.0), (2, 3.0)] },
            Column { gain: 5.0, takes: vec![(1, 2.0), (2, 2.0)] },
        ];
        let found = prices(&[4.0, 12.0, 18.0], &fixed, |_| None).expect("it has an optimum");
        for (price, right) in found.iter().zip([0.0, 1.5, 1.0]) {
            assert!((price - right).abs() < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn a_program_without_a_limit_is_not_solved() {
        assert_eq!(prices(&[1.0], &[Column { gain: 1.0, takes: vec![] }], |_| None), None);
    }
}
