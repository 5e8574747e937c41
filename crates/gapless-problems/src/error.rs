//! Why a file is no planning problem.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are wrong.
    #[error(transparent)]
    Format(#[from] gapless_formats::Error),
    /// The buffers are not a problem.
    #[error(transparent)]
    Problem(#[from] gapless_plan::Error),
}
