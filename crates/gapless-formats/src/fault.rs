//! Problems of binary and JSON files, each with its cause, its place, and the next step.

use std::io;

/// A problem of a file. Offsets count bytes of the file, or of the archive's member after
/// decompression.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("there is no such file, and no model of that name is built in; {help}")]
    Unknown { help: String },
    #[error("there is no such file; {help}")]
    Missing { help: &'static str },
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    #[error("cannot be read: {source} (at byte {offset})")]
    Io { offset: u64, source: io::Error },
    #[error("the file ends at byte {offset}, in the middle of {reading}; copy or download it again")]
    Truncated { offset: u64, reading: String },
    #[error("byte {offset}: {what}")]
    Malformed { offset: u64, what: String },
    #[error("byte {offset}: {what}: the limit is {limit}, so the file is refused")]
    TooLarge { offset: u64, what: String, limit: u64 },
    #[error("{what}; {help}")]
    Unsupported { what: String, help: String },
    #[error("key \"{key}\"{at}: {what}", at = offset.map_or(String::new(), |at| format!(" at byte {at}")))]
    Key { key: String, offset: Option<u64>, what: String },
}

/// Boxed: a problem is large and rare, and the result of every step must be small.
pub type Fault = Box<Problem>;

pub fn malformed<T>(offset: u64, what: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(Problem::Malformed { offset, what: what.into() }))
}

pub fn unsupported<T>(what: impl Into<String>, help: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(Problem::Unsupported { what: what.into(), help: help.into() }))
}
