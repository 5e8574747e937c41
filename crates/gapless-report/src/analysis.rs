//! The analysis of a trace: rebuilt histories, and facts inferred from them. Renderers read this, or the
//! [`crate::Report`] made from it.

use gapless_page::{Page, PageDevice};
use gapless_trace::churn::{self, Churn};
use gapless_trace::growth::{self, Growth};
use gapless_trace::kinds::{self, Kind, Kinds};
use gapless_trace::steps::levels::{self, StepPeak};
use gapless_trace::steps::{self, Steps};
use gapless_trace::{Ahead, Bytes, DeviceTrace, History, HistoryError, Tick, Trace};

/// A trace and the analysis of each of its devices.
#[derive(Debug)]
pub struct Analysis<'t> {
    pub trace: &'t Trace,
    /// In the order of the trace's devices.
    pub devices: Vec<DeviceAnalysis<'t>>,
}

/// One device and its history.
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
    /// Rebuilds the histories of `trace` and infers steps, kinds and growth.
    ///
    /// # Errors
    /// When the events of a device contradict each other.
    pub fn of(trace: &'t Trace) -> Result<Analysis<'t>, HistoryError> {
        Analysis::of_followed(trace, None)
    }

    /// The same, for a trace whose only device was followed while its events were read.
    ///
    /// # Errors
    /// When the events of a device contradict each other.
    pub fn of_followed(trace: &'t Trace, mut ahead: Option<Ahead>) -> Result<Analysis<'t>, HistoryError> {
        let devices = trace.devices.iter().map(|device| DeviceAnalysis::of(trace, device, ahead.take()));
        Ok(Analysis { trace, devices: devices.collect::<Result<_, _>>()? })
    }

    /// The data of the HTML page. `report_json` is the report of this analysis, as JSON.
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
            || (levels::peaks(&history, &steps), levels::ends(&history, &steps)),
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
