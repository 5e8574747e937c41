//! Objects below 1 MiB.

pub mod own;

pub use own::Own;
