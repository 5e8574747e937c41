//! Reasons why a statistics file cannot be read.

use std::fmt;
use std::io;

#[derive(Debug)]
pub enum StatisticsError {
    Io(io::Error),
    /// It does not begin like a statistics file.
    NotStatistics,
    /// Another version of Gapless wrote it.
    Version {
        found: u32,
        known: u32,
    },
    /// It was being written at each reading, or its writer died during a write.
    Torn,
    /// It is larger than a statistics file can be.
    TooLarge(u64),
    /// It contains an impossible value.
    Wrong(&'static str),
}

impl fmt::Display for StatisticsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatisticsError::Io(error) => write!(f, "{error}"),
            StatisticsError::NotStatistics => f.write_str("not a statistics file"),
            StatisticsError::Version { found, known } => write!(
                f,
                "the statistics file has version {found}, and this program reads version {known}: use the gapless that the process uses"
            ),
            StatisticsError::Torn => f.write_str("the statistics file is incomplete"),
            StatisticsError::TooLarge(bytes) => write!(f, "{bytes} bytes are too many for a statistics file"),
            StatisticsError::Wrong(what) => write!(f, "the statistics file is damaged: {what}"),
        }
    }
}

impl std::error::Error for StatisticsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StatisticsError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for StatisticsError {
    fn from(error: io::Error) -> StatisticsError {
        StatisticsError::Io(error)
    }
}
