//! File formats without meaning: bytes in, plain rows out. What the rows mean is for the crates that use them.
//!
//! Every file is hostile until it is parsed. Readers are streams with limits, and every error says where it is.
//! [`packing`] takes off compression, [`csv`] gives lines and fields, [`minimalloc`] gives buffers with lifetimes.

pub mod csv;
pub mod error;
pub mod minimalloc;
pub mod packing;

pub use error::{Error, Result};
