//! Lower bounds on the peak, and the sets of buffers that witness them.

use gapless_trace::Bytes;

use crate::compact::Compact;
use crate::problem::Problem;

/// The most bytes alive at one time, and the end of any fixed buffer: no plan has a lower peak.
#[must_use]
pub fn lower_bound(problem: &Problem) -> Bytes {
    let mut moments: Vec<(i64, bool, u64)> = Vec::with_capacity(problem.len() * 2);
    for buffer in problem.buffers() {
        for piece in buffer.pieces() {
            moments.push((piece.start, true, buffer.size.0));
            moments.push((piece.end, false, buffer.size.0));
        }
    }
    moments.sort_unstable();
    let (mut live, mut most) = (0u64, 0u64);
    for (_, start, size) in moments {
        live = if start { live + size } else { live - size };
        most = most.max(live);
    }
    let fixed = problem.buffers().iter().filter_map(|buffer| Some(buffer.fixed? + buffer.size)).max();
    Bytes(most).max(fixed.unwrap_or_default())
}

/// The same for the compact form, in its units.
pub fn live_peak(compact: &Compact) -> i64 {
    compact.live().into_iter().max().unwrap_or(0)
}

/// If the live bytes alone exceed the capacity: the fewest buffers alive at the fullest time that do so together,
/// largest first. Empty if they do not.
pub(crate) fn conflict(problem: &Problem, capacity: Bytes) -> Vec<usize> {
    let Some(time) = fullest_time(problem) else { return Vec::new() };
    let mut alive: Vec<(u64, usize)> = problem
        .buffers()
        .iter()
        .enumerate()
        .filter(|(_, buffer)| buffer.pieces().any(|piece| piece.start <= time && time < piece.end))
        .map(|(index, buffer)| (buffer.size.0, index))
        .collect();
    alive.sort_unstable_by_key(|(size, index)| (std::cmp::Reverse(*size), *index));
    let mut sum = 0;
    let mut chosen = Vec::new();
    for (size, index) in alive {
        sum += size;
        chosen.push(index);
        if sum > capacity.0 {
            return chosen;
        }
    }
    Vec::new()
}

/// The first time at which the live bytes are at their peak.
fn fullest_time(problem: &Problem) -> Option<i64> {
    let mut moments: Vec<(i64, bool, u64)> = Vec::with_capacity(problem.len() * 2);
    for buffer in problem.buffers() {
        for piece in buffer.pieces() {
            moments.push((piece.start, true, buffer.size.0));
            moments.push((piece.end, false, buffer.size.0));
        }
    }
    moments.sort_unstable();
    let (mut live, mut most, mut at) = (0u64, 0u64, None);
    for (time, start, size) in moments {
        live = if start { live + size } else { live - size };
        if live > most {
            (most, at) = (live, Some(time));
        }
    }
    at
}
