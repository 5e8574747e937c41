//! From a file's name to what is known of the run: reading with a progress bar, then the analysis.

use crate::failure::Failure;
use crate::progress::Progress;
use anyhow::Result;
use gapless_ingest::{Content, ReadOptions};
use gapless_report::Analysis;
use gapless_trace::{HistoryError, Trace};
use std::path::Path;

/// Reads the trace at `path`; "-" is standard input.
pub(crate) fn trace(path: &Path) -> Result<Trace> {
    content(path, |content| Ok(content.trace()?))
}

/// Opens the file at `path` ("-" is standard input) and calls `then` with what is inside, decompressed.
pub(crate) fn content<T>(path: &Path, then: impl FnOnce(Content<'_>) -> Result<T>) -> Result<T> {
    let progress = Progress::reading(&path.display().to_string());
    let options = ReadOptions {
        progress: Some(Box::new(move |done, total| progress.update(done, total))),
        ..ReadOptions::default()
    };
    gapless_ingest::open_with(path, &options, then)?
}

/// What the trace means.
pub(crate) fn analyse<'t>(trace: &'t Trace, path: &Path) -> Result<Analysis<'t>> {
    Analysis::of(trace).map_err(|error| impossible(path, &error))
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
