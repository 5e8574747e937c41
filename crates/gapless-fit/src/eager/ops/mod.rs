//! The operators that modeling code calls: what each allocates, keeps, and allocates again for its gradient.
//!
//! Sizes and order come from op-by-op recordings of torch 2.11 on an H200, and from what its source says.

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
