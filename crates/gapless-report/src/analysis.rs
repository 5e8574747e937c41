//! Everything that is known of a trace: rebuilt histories, and what was inferred from them. Renderers read this, or the
//! [`crate::Report`] made from it.

use crate::advice::Answer;
use crate::html::{Page, PageDevice};
use crate::model::Report;
use crate::{assemble, findings};
use gapless_trace::churn::{self, Churn};
use gapless_trace::growth::{self, Growth};
use gapless_trace::kinds::{self, Kind, Kinds};
use gapless_trace::steps::{self, Steps};
use gapless_trace::{Ahead, Bytes, DeviceTrace, History, HistoryError, Tick, Trace, sweep};

/// A trace and what it means.
#[derive(Debug)]
pub struct Analysis<'t> {
    pub trace: &'t Trace,
    /// In the order of the trace's devices.
    pub devices: Vec<DeviceAnalysis<'t>>,
}

/// One device and what happened on it.
#[derive(Debug)]
pub struct DeviceAnalysis<'t> {
    pub device: &'t DeviceTrace,
    pub history: History,
    pub steps: Steps,
    pub kinds: Kinds,
    /// `None`: too few steps to say.
    pub growth: Option<Growth>,
    pub churn: Churn,
    /// Peak allocated of each step.
    pub step_peaks: Vec<StepPeak>,
    /// Live bytes when each step ended.
    pub step_ends: Vec<Bytes>,
    /// For the page: `kinds` as numbers and `steps` as pairs.
    kind_codes: Vec<u8>,
    spans: Vec<(Tick, Tick)>,
}

/// The most that was allocated within a step, and when that was first so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepPeak {
    pub bytes: Bytes,
    pub at: Tick,
}

/// Kinds by number, as the page has them.
const KIND_NAMES: [&str; Kind::ALL.len()] = {
    let mut names = [""; Kind::ALL.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = Kind::ALL[i].name();
        i += 1;
    }
    names
};

impl<'t> Analysis<'t> {
    /// Rebuilds the histories of `trace` and infers what can be inferred.
    ///
    /// # Errors
    /// When the events of a device contradict each other.
    pub fn of(trace: &'t Trace) -> Result<Analysis<'t>, HistoryError> {
        Analysis::of_followed(trace, None)
    }

    /// The same where the events of the only device were followed while they were read.
    ///
    /// # Errors
    /// When the events of a device contradict each other.
    pub fn of_followed(trace: &'t Trace, mut ahead: Option<Ahead>) -> Result<Analysis<'t>, HistoryError> {
        let devices = trace.devices.iter().map(|device| DeviceAnalysis::of(trace, device, ahead.take()));
        Ok(Analysis { trace, devices: devices.collect::<Result<_, _>>()? })
    }

    /// The report, with at most `top` holders a device. `path` is how the user named the trace.
    #[must_use]
    pub fn report(&self, path: &str, top: usize) -> Report {
        let mut report = assemble::report(self, path, top);
        report.findings = findings::find(&report);
        report
    }

    /// The same with what to set: `answers` are those of its devices.
    #[must_use]
    pub fn advised_report(&self, path: &str, top: usize, answers: Vec<Answer>) -> Report {
        let mut report = assemble::report(self, path, top);
        report.advice = Some(answers);
        report.findings = findings::find(&report);
        report
    }

    /// What the HTML page needs. `report_json` is the report of this analysis, as JSON.
    #[must_use]
    pub fn page<'a>(&'a self, title: &'a str, report_json: &'a str) -> Page<'a> {
        let device = |d: &'a DeviceAnalysis<'t>| PageDevice {
            device: d.device,
            history: &d.history,
            kinds: &d.kind_codes,
            steps: &d.spans,
            places: None,
        };
        let devices = self.devices.iter().map(device).collect();
        Page { title, report_json, trace: self.trace, devices, kind_names: &KIND_NAMES }
    }
}

impl<'t> DeviceAnalysis<'t> {
    fn of(
        trace: &Trace,
        device: &'t DeviceTrace,
        ahead: Option<Ahead>,
    ) -> Result<DeviceAnalysis<'t>, HistoryError> {
        let history = History::rebuild_from(trace, device, ahead)?;
        let (steps, kinds) = match trace.host_sample {
            None => kinds::with_steps(trace, device, &history),
            Some(_) => (steps::detect(trace, device, &history), Kinds::unexplained(&history)),
        };
        // Independent passes over the same columns: a second core halves their time.
        let ((growth, churn), (step_peaks, step_ends)) = gapless_threads::both(
            "analysis",
            || (growth::measure(&history, &steps), churn::measure(device, &history, &steps)),
            || (step_peaks(&history, &steps), step_ends(&history, &steps)),
        );
        Ok(DeviceAnalysis {
            step_peaks,
            step_ends,
            kind_codes: kinds.by_allocation.iter().map(|&kind| kind as u8).collect(),
            spans: steps.spans.iter().map(|s| (s.start, s.end)).collect(),
            device,
            history,
            steps,
            kinds,
            growth,
            churn,
        })
    }
}

fn step_peaks(history: &History, steps: &Steps) -> Vec<StepPeak> {
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

fn step_ends(history: &History, steps: &Steps) -> Vec<Bytes> {
    let ends: Vec<u32> = steps.spans.iter().map(|s| s.end.0).collect();
    let mut change = vec![0i64; ends.len() + 1];
    let all = history.allocations.columns();
    // Births are in order, and most of what is born in a step is freed in it.
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
