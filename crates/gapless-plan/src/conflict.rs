//! The reason why a problem does not fit: a small set of buffers that cannot fit together.
//!
//! If the live bytes alone exceed the capacity, the set is read off the fullest time. Otherwise buffers are left out,
//! many at first, then fewer, as long as exact search still refutes the rest. The remaining set is a conflict by
//! itself; it is the smallest that was found, and need not be the smallest there is.

use gapless_trace::Bytes;

use crate::bound;
use crate::problem::Problem;

/// `refutes` is true if these buffers, in a problem of their own, provably do not fit.
pub(crate) fn shrink(
    problem: &Problem,
    capacity: Bytes,
    refutes: &mut dyn FnMut(&Problem) -> bool,
    stop: &dyn Fn() -> bool,
) -> Vec<usize> {
    let plain = bound::conflict(problem, capacity);
    if !plain.is_empty() {
        return plain;
    }
    let mut kept: Vec<usize> = (0..problem.len()).collect();
    if !refutes(&subset(problem, &kept)) {
        return Vec::new();
    }
    let mut width = (kept.len() / 2).max(1);
    loop {
        let mut at = 0;
        while at < kept.len() {
            if stop() {
                return kept;
            }
            let end = (at + width).min(kept.len());
            let rest: Vec<usize> = kept[..at].iter().chain(&kept[end..]).copied().collect();
            if refutes(&subset(problem, &rest)) {
                kept = rest;
            } else {
                at = end;
            }
        }
        if width == 1 {
            return kept;
        }
        width /= 2;
    }
}

/// Part of a valid problem is a valid problem.
fn subset(problem: &Problem, kept: &[usize]) -> Problem {
    let buffers = kept.iter().map(|index| problem.buffers()[*index].clone()).collect();
    Problem::new(buffers).unwrap_or_default()
}
