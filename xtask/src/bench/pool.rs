//! The cost of a cached request in the live allocator, alone and with threads on their own streams.

use crate::shell::{self, command};
use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    let args = ["run", "--release", "--locked", "--package", "gapless-pool", "--example", "pool_bench"];
    shell::run(command(".", "cargo", &args))
}
