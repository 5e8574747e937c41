//! Weights of models: compressed without a loss and checked, in bounded memory.
//!
//! [`codec`] turns a chunk of values into fewer bytes and back, bit for bit. [`stream`] is a tensor: a directory of
//! chunks, each with a checksum, so that any range of it can be read alone.
//! Every stream is hostile until it is decoded: damage is an error, never a panic and never a read out of bounds.

pub mod checksum;
pub mod codec;
pub mod stream;
