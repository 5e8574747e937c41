//! Many files as one run: which files an argument means, which rank each is, and reading them all, some at a time.

mod inputs;
mod read;

pub(crate) use inputs::Inputs;
pub(crate) use read::{each, read};
