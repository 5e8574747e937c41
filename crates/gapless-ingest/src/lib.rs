//! Readers of files from outside: a file in, a [`Trace`] out.
//!
//! The format is found from the content, never from the name: PyTorch memory snapshots as pickle or JSON, `.gtrace`,
//! RMM's CSV log, MiniMalloc CSV, recordings of host memory, XLA's modules (and a folder of them), JAX's device memory
//! profiles, each plain or compressed with gzip or zstd.
//!
//! Every file is taken as hostile. Nothing in it is executed, memory stays proportional to the bytes read, and every
//! fault ends in a [`ReadError`] with its cause, its place and the next step. Relies on `gapless-trace` for the
//! columns; `History::rebuild` gives the events their meaning, and finds contradictions.

mod builder;
mod container;
mod content;
mod error;
mod event_rows;
mod features;
mod finish;
mod hlo;
mod host;
mod host_run;
mod json;
mod minimalloc;
mod names;
mod options;
mod pickle;
mod pprof;
mod rmm;
mod rows;
mod settings;
mod strangers;
mod value;
mod window;

pub use container::Format;
pub use content::{Content, open_with};
pub use error::{Problem, ReadError};
pub use options::{Limits, Progress, ReadOptions};

use gapless_trace::Trace;
use std::io::Read;
use std::path::Path;

/// Reads the trace at `path`; "-" is the standard input.
///
/// # Errors
/// When there is no such file, or it is not a trace, or it is damaged.
pub fn open(path: &Path, options: &ReadOptions) -> Result<Trace, ReadError> {
    open_with(path, options, trace)?
}

/// Reads a trace from a stream; errors call it `name`.
///
/// # Errors
/// When the bytes are not a trace, or damaged.
pub fn read(mut input: impl Read + Send, name: &str, options: &ReadOptions) -> Result<Trace, ReadError> {
    content::read_with(&mut input, name, None, options, trace)?
}

/// True if `path` is a folder of XLA's modules, which [`open`] reads as one run.
#[must_use]
pub fn is_dump(path: &Path) -> bool {
    path.is_dir() && hlo::folder::Folder::of(path).is_some()
}

/// A function and no method path, because it serves a content of any lifetime.
fn trace(content: Content<'_>) -> Result<Trace, ReadError> {
    content.trace()
}
