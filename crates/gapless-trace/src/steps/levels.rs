//! Allocated bytes in each step: its peak, and the live bytes at its end.

use super::Steps;
use crate::history::History;
use crate::sweep;
use crate::words::{Bytes, Tick};

/// The most bytes allocated within a step, and the first tick with so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepPeak {
    pub bytes: Bytes,
    pub at: Tick,
}

/// The peak of each step.
#[must_use]
pub fn peaks(history: &History, steps: &Steps) -> Vec<StepPeak> {
    if steps.spans.is_empty() {
        return Vec::new();
    }
    let spans = &steps.spans;
    let mut peaks: Vec<StepPeak> =
        spans.iter().map(|span| StepPeak { bytes: Bytes::ZERO, at: span.start }).collect();
    let all = history.allocations.columns();
    let mut step = 0;
    sweep::levels(all.starts, all.freed, all.blocks, history.last_tick, |tick, level| {
        while spans.get(step).is_some_and(|span| span.end <= tick) {
            step += 1;
        }
        if let Some(span) = spans.get(step)
            && span.start <= tick
            && level > peaks[step].bytes.0
        {
            peaks[step] = StepPeak { bytes: Bytes(level), at: tick };
        }
    });
    peaks
}

/// Live bytes when each step ended.
#[must_use]
pub fn ends(history: &History, steps: &Steps) -> Vec<Bytes> {
    let ends: Vec<u32> = steps.spans.iter().map(|s| s.end.0).collect();
    let mut change = vec![0i64; ends.len() + 1];
    let all = history.allocations.columns();
    // Births are in order, and most allocations of a step are freed in it.
    let mut step = 0;
    for ((&start, &freed), &requested) in all.starts.iter().zip(all.freed).zip(all.requested) {
        while ends.get(step).is_some_and(|&end| end < start) {
            step += 1;
        }
        let last = match ends.get(step) {
            Some(&end) if end < freed => step + ends[step..].partition_point(|&end| end < freed),
            _ => step,
        };
        // Live at every step end in [start, freed).
        change[step] += requested as i64;
        change[last] -= requested as i64;
    }
    let mut live = 0;
    change[..ends.len()]
        .iter()
        .map(|&by| {
            live += by;
            Bytes(live as u64)
        })
        .collect()
}
