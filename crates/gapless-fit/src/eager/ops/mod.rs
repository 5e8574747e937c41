//! The operators that modeling code calls: the tensors that each allocates, keeps, and allocates for its gradient.
//!
//! Sizes and order come from op-by-op recordings of torch 2.11 on an H200, and from its source.

pub mod reduce;

mod attention;
mod conv;
mod elementwise;
mod index;
mod loss;
mod matmul;
mod norm;

pub use attention::Heads;
pub use conv::Conv;
