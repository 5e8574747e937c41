//! Two runs on one axis: step i of one lies over step i of the other. Without steps, each run is as long as the axis.

use crate::analysis::DeviceAnalysis;
use gapless_trace::Tick;

/// A run's curve: places on the axis, and bytes there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub(super) x: Vec<f64>,
    pub(super) allocated: Vec<u64>,
    /// Empty if the recording has no segments.
    pub(super) reserved: Vec<u64>,
}

/// The axis of two runs: `start` is 0, or -1 if something happens before the first step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Aligned {
    pub(super) by_steps: bool,
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) before: Series,
    pub(super) after: Series,
}

pub(super) fn align(before: &DeviceAnalysis<'_>, after: &DeviceAnalysis<'_>) -> Aligned {
    let by_steps = !before.steps.spans.is_empty() && !after.steps.spans.is_empty();
    let series = [before, after].map(|run| series(run, by_steps));
    let xs = || series.iter().flat_map(|one| one.x.iter().copied());
    let start = xs().fold(0.0, f64::min);
    let end = xs().fold(if by_steps { 0.0 } else { 1.0 }, f64::max);
    let [before, after] = series;
    Aligned { by_steps, start, end: end.max(start + 1e-9), before, after }
}

fn series(run: &DeviceAnalysis<'_>, by_steps: bool) -> Series {
    let mut series = Series::default();
    for point in &run.history.curve.points {
        series.x.push(place(run, point.tick, by_steps));
        series.allocated.push(point.allocated.0);
        if run.history.has_segments {
            series.reserved.push(point.reserved.0);
        }
    }
    series
}

/// The place of a tick on the axis: `2.5` is the middle of step 2.
fn place(run: &DeviceAnalysis<'_>, tick: Tick, by_steps: bool) -> f64 {
    let part = |from: u32, to: u32| {
        f64::from(tick.0.saturating_sub(from)) / f64::from(to.saturating_sub(from).max(1))
    };
    if !by_steps {
        return part(0, run.history.last_tick.0);
    }
    let spans = &run.steps.spans;
    let begun = spans.partition_point(|span| span.start <= tick);
    let Some(span) = begun.checked_sub(1).and_then(|at| spans.get(at)) else {
        return part(0, spans[0].start.0) - 1.0;
    };
    let at = (begun - 1) as f64;
    if tick < span.end {
        return at + part(span.start.0, span.end.0);
    }
    // The gap between two steps has no width. Behind the last step, the rest of the run has the width of a step.
    match spans.get(begun) {
        Some(_) => at + 1.0,
        None => at + 1.0 + part(span.end.0, run.history.last_tick.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Analysis;

    #[test]
    fn every_step_is_as_wide_as_its_counterpart() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/gpt2_train_stacks.pickle.gz");
        let trace =
            gapless_ingest::open(path.as_ref(), &gapless_ingest::ReadOptions::default()).expect("a trace");
        let analysis = Analysis::of(&trace).expect("an analysis");
        let run = &analysis.devices[0];
        let spans = &run.steps.spans;
        assert_eq!(spans.len(), 3);
        for (i, span) in spans.iter().enumerate() {
            assert!((place(run, span.start, true) - i as f64).abs() < 1e-9);
            let middle = Tick(span.start.0.midpoint(span.end.0));
            assert!((place(run, middle, true) - i as f64 - 0.5).abs() < 1e-3);
        }
        let both = align(run, run);
        assert!(both.by_steps && both.before == both.after);
        assert!(both.before.x.windows(2).all(|pair| pair[0] <= pair[1]), "time goes one way");
        assert_eq!(both.before.allocated.iter().max(), Some(&run.history.usage.allocated.peak.0));
    }
}
