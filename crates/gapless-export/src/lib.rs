//! A trace and its histories as files for other tools. One module a format, one function each, into any
//! [`Write`](std::io::Write).
//!
//! | module | what | for |
//! |---|---|---|
//! | [`csv`] | one row an allocation | spreadsheets, pandas, awk |
//! | [`parquet`] | the same columns | DuckDB, Polars, pyarrow |
//! | [`perfetto`] | the timeline as trace-event JSON | ui.perfetto.dev, chrome://tracing |
//! | [`minimalloc`] | lifetimes and sizes | offline packers |
//! | [`gtrace`] | the trace itself | Gapless |
//!
//! Same input, same bytes. Nothing is sampled or left out unless an option says so.

pub mod csv;
pub mod gtrace;
pub mod minimalloc;
pub mod parquet;
pub mod perfetto;

mod rows;

#[cfg(test)]
mod sample;

use gapless_trace::gtrace::GtraceError;
use gapless_trace::steps::StepSpan;
use gapless_trace::{DeviceTrace, History, Tick, Trace};

/// The reason why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("writing failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("{0}: export a shorter recording, or CSV")]
    TooLarge(&'static str),
    #[error(transparent)]
    Gtrace(#[from] GtraceError),
    #[error("device {device} has {allocations} allocations and {kinds} kinds: there must be one for each")]
    Kinds { device: u32, allocations: usize, kinds: usize },
}

/// One device and its analysis.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView<'a> {
    pub device: &'a DeviceTrace,
    pub history: &'a History,
    /// The purpose of each allocation ("weights", "activations"), by allocation id; `None`: not known.
    pub kinds: Option<&'a [&'a str]>,
    /// The run's steps, in order; empty if none were found.
    pub steps: &'a [StepSpan],
}

/// The data to export.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub trace: &'a Trace,
    pub devices: Vec<DeviceView<'a>>,
}

impl<'a> DeviceView<'a> {
    #[must_use]
    pub fn new(device: &'a DeviceTrace, history: &'a History) -> DeviceView<'a> {
        DeviceView { device, history, kinds: None, steps: &[] }
    }

    fn check(&self) -> Result<(), ExportError> {
        let allocations = self.history.allocations.len();
        match self.kinds {
            Some(kinds) if kinds.len() != allocations => {
                Err(ExportError::Kinds { device: self.device.device, allocations, kinds: kinds.len() })
            }
            _ => Ok(()),
        }
    }

    /// The step that `tick` falls into.
    fn step_of(&self, tick: Tick) -> Option<usize> {
        let at = self.steps.partition_point(|step| step.start <= tick).checked_sub(1)?;
        (tick < self.steps[at].end).then_some(at)
    }
}
