//! Errors in a cluster, a list of pods or a log.

pub type Result<T> = std::result::Result<T, Error>;

/// An error with its place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read as lines of CSV.
    #[error(transparent)]
    Csv(#[from] gapless_formats::Error),
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
    #[error("{what}")]
    Json { what: String },
    /// The cluster or the list is invalid as a whole.
    #[error("{0}")]
    Input(String),
    /// A booking that does not fit. The ledger is unchanged.
    #[error("node {node:?} has no room for this booking: {what}")]
    NoRoom { node: String, what: &'static str },
    /// A booking that was never made, or was released before. The ledger is unchanged.
    #[error("node {node:?} does not hold this booking: {what}")]
    NotHeld { node: String, what: &'static str },
}

impl Error {
    pub fn line(line: u64, what: impl Into<String>) -> Error {
        Error::Line { line, what: what.into() }
    }
}
