//! Offline packing: given buffers with sizes and lifetimes, an offset for each so that no two that are alive together
//! share a byte, and the peak is as low as it can be.

pub mod csv;
pub mod error;
pub mod problem;
pub mod validate;

pub use error::{Error, Result};
pub use problem::{Buffer, Lifetime, Plan, Problem};
pub use validate::{Invalid, validate, validate_chunks};
