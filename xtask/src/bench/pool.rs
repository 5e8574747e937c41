//! What a cached request costs in the live allocator, alone and with threads on streams of their own.

use crate::shell::{self, command};
use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    let args = ["run", "--release", "--locked", "--package", "gapless-pool", "--example", "pool_bench"];
    shell::run(command(".", "cargo", &args))
}
