//! Selects the rows of a verdict that text formats show. Of many ranks these are not all of them.

use super::verdict::{Row, Verdict};

/// The most rows that text formats show.
pub(super) const LISTED: usize = 32;

/// The rows to show, and the number of others: of many ranks, those over a limit and the highest of each figure.
pub(super) fn shown(verdict: &Verdict) -> (Vec<&Row>, usize) {
    let all = &verdict.rows;
    if all.len() <= LISTED {
        return (all.iter().collect(), 0);
    }
    let highest = |row: &Row| {
        let same = all.iter().filter(|other| (other.figure, &other.against) == (row.figure, &row.against));
        same.rev().max_by(|a, b| a.value.total_cmp(&b.value)).is_some_and(|most| std::ptr::eq(most, row))
    };
    let mut rows: Vec<&Row> = all.iter().filter(|row| !row.passed).collect();
    rows.sort_by(|a, b| (b.value / b.limit).total_cmp(&(a.value / a.limit)));
    rows.truncate(LISTED);
    let passed: Vec<&Row> = all.iter().filter(|row| row.passed && highest(row)).collect();
    rows.extend(passed);
    let hidden = all.len() - rows.len();
    (rows, hidden)
}
