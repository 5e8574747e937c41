//! Planning problems from files: MiniMalloc's CSV, buffer lists in JSON, and ONNX models. `gapless-formats` reads
//! rows, `gapless-plan` packs; this crate turns rows into problems. [`generate`] makes the instances that planners
//! are measured and tested on.

pub mod csv;
pub mod error;
pub mod generate;
pub mod json;
pub mod onnx;

pub use error::{Error, Result};
