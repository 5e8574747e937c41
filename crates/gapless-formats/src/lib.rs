//! File formats without meaning: bytes in, plain rows out. The crates that use the rows give them their meaning.
//!
//! Every file is hostile until it is parsed. Readers are streams with limits, and every error has its place. [`json`],
//! [`zip`], [`protobuf`], [`safetensors`], [`gguf`], [`hlo`] and [`pprof`] read from a [`source`], which knows the
//! bytes that are left.
//! [`packing`] takes off compression, [`csv`] gives lines and fields, [`minimalloc`] gives buffers with lifetimes.

pub mod csv;
pub mod error;
pub mod fault;
pub mod gguf;
pub mod gguf_types;
pub mod hlo;
pub mod json;
pub mod minimalloc;
pub mod packing;
pub mod pprof;
pub mod protobuf;
pub mod safetensors;
pub mod source;
pub mod zip;
pub mod zstd;

pub use error::{Error, Result};
