//! Many files as one run: finds the files behind the arguments and their ranks, and reads them, some at a time.

mod inputs;
mod read;

pub(crate) use inputs::Inputs;
pub(crate) use read::{each, read};
