//! Errors of bytes that do not have their format, each with its place.

use std::io;

pub type Result<T> = std::result::Result<T, Error>;

/// An error. Offsets and lines count after decompression.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot be read: {source} (after {offset} bytes)")]
    Io { offset: u64, source: io::Error },
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
}

impl Error {
    pub fn line(line: u64, what: impl Into<String>) -> Error {
        Error::Line { line, what: what.into() }
    }
}
