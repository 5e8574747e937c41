//! Parts of a report on host memory: estimates with their errors, lines that grow, lines that never freed. The
//! figures of device 0 follow: bytes that its allocator held count as reserved, and growth is that of the lines that
//! grow, so that `check` and `diff` do not take the noise of a sample for growth.

use super::frames;
use crate::model::{EstimateInfo, GrowerInfo, GrowthInfo, HostLineInfo, HostRunInfo, HostStateInfo, Report};
use gapless_trace::leaks::{self, Course, Estimate, Growing, Line};
use gapless_trace::trace::{HostSample, HostState, Trace};
use gapless_trace::words::{Bytes, Micros};

pub(crate) fn add(report: &mut Report, trace: &Trace, sample: &HostSample, top: usize) {
    let (Some(device), Some(first)) = (report.devices.first_mut(), sample.blocks.first()) else { return };
    let begin = first.born;
    let peak = peak_time(sample);
    let held = |state: &HostState| (state.large + state.kept + state.small).0;
    let state = |state: &HostState| HostStateInfo {
        time_us: state.time.since(begin).0,
        large: state.large.0,
        kept: state.kept.0,
        small: state.small.0,
        resident: state.resident.0,
    };
    let near = sample.states.iter().min_by_key(|state| state.time.0.abs_diff(peak.0));
    let line = |line: &Line, rate| HostLineInfo {
        label: line.label.clone(),
        stack: frames(trace, line.stack),
        kept: estimate(&line.kept),
        rate,
    };
    let lines = |all: Vec<Line>| all.iter().take(top).map(|one| line(one, None)).collect();
    let growing = leaks::growing(trace, sample);
    let has_steps = Course::of(trace, sample).is_some_and(|course| course.has_steps());
    let run = HostRunInfo {
        samples: sample.blocks.len() as u64,
        interval: sample.interval.0,
        exact_from: sample.exact_from.0,
        whole: sample.is_whole,
        peak_live: estimate(&leaks::live_at(sample, peak)),
        peak_time_us: peak.since(begin).0,
        end_live: estimate(&leaks::live_at(sample, sample.end)),
        peak_held: sample.states.iter().map(held).max(),
        peak_resident: sample.states.iter().map(|state| state.resident.0).max(),
        at_peak: near.map(state),
        at_end: sample.states.last().map(state),
        rate_unit: if has_steps { "step" } else { "second" }.to_owned(),
        growing: growing.iter().map(|one| line(&one.line, Some(one.rate))).collect(),
        never_freed: lines(leaks::never_freed(trace, sample)),
        holders: lines(leaks::holders(trace, sample, peak)),
    };
    // The estimate of live bytes may exceed the bytes held, which were measured.
    device.peak_reserved = run.peak_held.map(|held| held.max(device.peak_allocated));
    device.fragmentation = None;
    device.growth = has_steps.then(|| growth(trace, &growing, sample));
    report.host_run = Some(run);
}

fn growth(trace: &Trace, growing: &[Growing], sample: &HostSample) -> GrowthInfo {
    let grower = |one: &Growing| GrowerInfo {
        label: one.line.label.clone(),
        stack: frames(trace, one.line.stack),
        bytes_per_step: one.rate,
        total: one.line.kept.bytes.0,
        count: one.line.kept.samples as u64,
    };
    GrowthInfo {
        bytes_per_step: growing.iter().map(|one| one.rate).sum(),
        steps: sample.steps.len() as u64,
        growers: growing.iter().map(grower).collect(),
    }
}

fn estimate(of: &Estimate) -> EstimateInfo {
    EstimateInfo { bytes: of.bytes.0, error: of.error().0, samples: of.samples as u64 }
}

/// The time at which most bytes were live.
fn peak_time(sample: &HostSample) -> Micros {
    let mut changes: Vec<(Micros, bool, Bytes)> = Vec::with_capacity(sample.blocks.len() * 2);
    for block in &sample.blocks {
        changes.push((block.born, true, block.estimate));
        changes.extend(block.died.map(|died| (died, false, block.estimate)));
    }
    // At equal times frees come first, so that the peak is not counted too high.
    changes.sort_by_key(|change| (change.0, change.1));
    let (mut live, mut most, mut at) = (0u64, 0, Micros(0));
    for (time, is_birth, bytes) in changes {
        live = if is_birth { live + bytes.0 } else { live.saturating_sub(bytes.0) };
        if live > most {
            (most, at) = (live, time);
        }
    }
    at
}
