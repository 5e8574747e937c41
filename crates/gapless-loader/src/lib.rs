//! Weights from files to a GPU or to host memory, in bounded memory: the library behind `gapless.weights` in Python.
//!
//! A [`catalogue`] lists the tensors of a file or a folder. A [`plan`] turns the parts that a caller wants into jobs of
//! a few megabytes. Threads ([`load`]) take jobs in order, read them ([`file`](mod@file), past the page cache by
//! [`uring`] if [`residency`] says that they are cold), check them, and pass them to a target: host memory ([`host`]),
//! or a card ([`cuda`]) through a small ring of pinned memory. The card decodes packed chunks that its kernel supports;
//! the reading thread decodes the others. [`mod@save`] is the opposite direction. [`abi`] is the C ABI.
//!
//! No thread reads a mapped file: a truncated file is an error, not a signal.

pub mod abi;
pub mod catalogue;
pub mod cuda;
pub mod error;
pub mod file;
pub mod host;
pub mod load;
pub mod plan;
pub mod residency;
pub mod save;
pub mod shared;
#[cfg(target_os = "linux")]
pub mod uring;

pub use catalogue::Catalogue;
pub use error::{LoadError, Result};
pub use load::{Load, State};
pub use plan::Piece;
pub use shared::{Progress, Settings};
