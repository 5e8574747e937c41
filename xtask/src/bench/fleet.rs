//! The published placement experiment: all policies, lists and seeds against the published table, ours against FGD, and
//! decisions a second.

use crate::shell::{self, command};
use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    let build = ["build", "--release", "--locked", "--package", "gapless-fleet", "--example", "fleet_bench"];
    shell::run(command(".", "cargo", &build))?;
    let program = shell::target().join("release/examples/fleet_bench").display().to_string();
    shell::run(command(".", &program, &["testdata/fleet", "2"]))
}
