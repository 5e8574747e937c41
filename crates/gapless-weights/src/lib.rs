//! Weights of models: compressed without loss and checked, in bounded memory.
//!
//! [`codec`] turns a chunk of values into fewer bytes and back, bit for bit. [`stream`] is a tensor: a directory of
//! chunks, each with a checksum, so that any range of it can be read alone. [`packed`] is a file: safetensors whose
//! tensors are streams. [`pack()`], [`unpack()`] and [`verify()`] work on files, [`folder`] on a model's shards, and
//! [`Reader`] gives any range of any tensor; [`rows`] are those of one rank. [`mod@quantize`] makes a model smaller
//! with a loss that it measures. Every file is hostile until it is decoded: damage is an error, never a panic and
//! never a read out of bounds.

mod boundary;
pub mod checksum;
pub mod codec;
mod dtype;
pub mod error;
pub mod folder;
pub mod input;
pub mod listing;
mod output;
pub mod pace;
mod pack;
pub mod packed;
pub mod patience;
pub mod quantize;
mod reader;
pub mod rows;
pub mod stream;
pub mod survey;
mod unpack;
pub mod whole;
mod work;

pub use dtype::kind_of;
pub use error::{Error, Result};
pub use pack::{Done, Source, pack, save};
pub use quantize::quantize;
pub use reader::Reader;
pub use unpack::{Checked, unpack, verify};
pub use work::Work;
