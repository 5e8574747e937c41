//! Planning problems from files: MiniMalloc's CSV, buffer lists in JSON, and ONNX models. `gapless-formats` reads rows,
//! `gapless-plan` packs; here the first become the second.

pub mod csv;
pub mod error;
pub mod json;
pub mod onnx;

pub use error::{Error, Result};
