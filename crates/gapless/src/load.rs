//! From a file's name to the analysis of its run: reading with a progress bar, then the analysis.

use crate::failure::Failure;
use crate::progress::Progress;
use anyhow::Result;
use gapless_ingest::{Content, ReadError, ReadOptions};
use gapless_report::Analysis;
use gapless_trace::{Ahead, HistoryError, Trace};
use std::num::NonZero;
use std::path::Path;

/// Reads the trace at `path`; "-" is standard input.
pub(crate) fn trace(path: &Path) -> Result<Trace> {
    content(path, |content| Ok(content.trace()?))
}

/// Opens the file at `path` ("-" is standard input) and calls `then` with its decompressed content.
pub(crate) fn content<T>(path: &Path, then: impl FnOnce(Content<'_>) -> Result<T>) -> Result<T> {
    let progress = Progress::reading(&path.display().to_string());
    let options = ReadOptions {
        progress: Some(Box::new(move |done, total| progress.update(done, total))),
        ..ReadOptions::default()
    };
    gapless_ingest::open_with(path, &options, then)?
}

/// The same without a bar, for files that are read side by side.
pub(crate) fn content_quietly<T>(path: &Path, then: impl FnOnce(Content<'_>) -> T) -> Result<T, ReadError> {
    gapless_ingest::open_with(path, &ReadOptions::default(), then)
}

pub(crate) fn trace_quietly(path: &Path) -> Result<Trace> {
    Ok(gapless_ingest::open(path, &ReadOptions::default())?)
}

/// Leaves only device `wanted` in `trace`.
pub(crate) fn only_device(trace: &mut Trace, path: &Path, wanted: u32) -> Result<()> {
    let all: Vec<String> = trace.devices.iter().map(|d| d.device.to_string()).collect();
    trace.devices.retain(|d| d.device == wanted);
    if trace.devices.is_empty() {
        let help = if all.is_empty() {
            "the trace has no device at all: record again, and let it run longer".to_owned()
        } else {
            format!("there is: {}", all.join(", "))
        };
        return Err(Failure::new(format!("{}: no device {wanted} in it", path.display()), help).into());
    }
    Ok(())
}

/// Reads the trace at `path`, and of it only `device` if one is given.
pub(crate) fn trace_of(path: &Path, device: Option<u32>) -> Result<Trace> {
    let mut trace = trace(path)?;
    if let Some(device) = device {
        only_device(&mut trace, path, device)?;
    }
    Ok(trace)
}

/// The same for callers that also need the analysis: a second thread follows the events while they are read.
pub(crate) fn trace_ahead_of(path: &Path, device: Option<u32>) -> Result<(Trace, Option<Ahead>)> {
    // On one core, following while reading saves no time.
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let (mut trace, ahead) = content(path, |content| {
        Ok(if cores > 1 { content.trace_ahead()? } else { (content.trace()?, None) })
    })?;
    if let Some(device) = device {
        only_device(&mut trace, path, device)?;
    }
    Ok((trace, ahead))
}

/// A trace without devices answers no question.
pub(crate) fn no_device(path: &Path, so: &str) -> anyhow::Error {
    Failure::new(
        format!("{}: the trace has no device, so {so}", path.display()),
        "the recording ended before its first block was whole: record again, and let it run longer",
    )
    .into()
}

/// The analysis of a trace.
pub(crate) fn analyse<'t>(trace: &'t Trace, path: &Path) -> Result<Analysis<'t>> {
    Analysis::of(trace).map_err(|error| impossible(path, &error))
}

/// The same for a trace from [`trace_ahead_of`].
pub(crate) fn analyse_followed<'t>(
    trace: &'t Trace,
    ahead: Option<Ahead>,
    path: &Path,
) -> Result<Analysis<'t>> {
    Analysis::of_followed(trace, ahead).map_err(|error| impossible(path, &error))
}

fn impossible(path: &Path, error: &HistoryError) -> anyhow::Error {
    let help = match error {
        HistoryError::Overlap { .. } | HistoryError::SegmentsOverlap { .. } => {
            "no allocator hands out memory twice: the file was changed or joined from several; record it again"
        }
        HistoryError::FreeWithoutAlloc { .. } | HistoryError::SegmentMismatch { .. } => {
            "the events contradict each other, so no figure would be right: the file was cut, changed or joined from several; \
             dump the snapshot again"
        }
    };
    Failure::new(format!("{}: {error}", path.display()), help).into()
}
