//! Planning problems from files. `gapless-formats` reads rows, `gapless-plan` packs; here the first become the second.

pub mod csv;
pub mod error;

pub use error::{Error, Result};
