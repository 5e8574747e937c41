//! The reason why a model could not be read: the fault, its place, and the next step.

pub use gapless_formats::fault::Problem;
pub(crate) use gapless_formats::fault::{Fault, malformed, unsupported};

/// The reason why `name` could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct ReadError {
    /// The file, the member of an archive, or the name that was asked for.
    pub name: String,
    pub problem: Problem,
}

pub(crate) trait Named<T> {
    /// The fault with the name of the file or member that was being read.
    fn named(self, name: &str) -> Result<T, ReadError>;
}

impl<T> Named<T> for Result<T, Fault> {
    fn named(self, name: &str) -> Result<T, ReadError> {
        self.map_err(|problem| ReadError { name: name.to_owned(), problem: *problem })
    }
}
