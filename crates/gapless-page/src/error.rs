//! Why a page cannot be read.

use std::fmt;
use std::io;

#[derive(Debug)]
pub enum PageError {
    Io(io::Error),
    /// It begins with something else.
    NotAPage,
    /// Another version of Gapless wrote it.
    Version(u32),
    /// It was being written whenever it was read, or its writer died while it wrote.
    Torn,
    /// It is larger than a page can be.
    TooLarge(u64),
    /// Something in it cannot be.
    Wrong(&'static str),
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::Io(error) => write!(f, "{error}"),
            PageError::NotAPage => f.write_str("not a statistics file"),
            PageError::Version(version) => write!(
                f,
                "the statistics file has version {version}, and this program reads version {}: use the gapless that the process uses",
                crate::layout::VERSION
            ),
            PageError::Torn => f.write_str("the statistics file is incomplete"),
            PageError::TooLarge(bytes) => write!(f, "{bytes} bytes are too many for a statistics file"),
            PageError::Wrong(what) => write!(f, "the statistics file is damaged: {what}"),
        }
    }
}

impl std::error::Error for PageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PageError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for PageError {
    fn from(error: io::Error) -> PageError {
        PageError::Io(error)
    }
}
