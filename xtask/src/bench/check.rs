//! Ten million random operations on a device with a clock, counting those that broke a rule of the allocator.

use crate::shell::{self, command};
use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    let args = ["run", "--release", "--locked", "--package", "gapless-checker", "--example", "check", "--"];
    shell::run(command(".", "cargo", &[&args[..], &["--operations", "10000000", "--seed", "1"]].concat()))
}
