//! Quantises the matrices of a model without data, and writes them as compressed-tensors does.

pub mod matrix;
mod number;
pub mod scheme;
