//! `cargo xtask bench fleet`: the published placement experiment (all policies, lists and seeds against the published
//! table, ours against FGD), decisions a second, the time of a node's change, and ten minutes of chaos for the bookings
//! of the extender.

use crate::shell::{self, command};
use anyhow::Result;

/// The parts, which can be named alone. `lists` ends with what `speed` is.
pub(crate) const PARTS: [&str; 4] = ["lists", "speed", "scale", "chaos"];

pub(crate) fn run(parts: &[&str]) -> Result<()> {
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    if wanted("lists") {
        lists(&[])?;
    }
    if parts.contains(&"speed") {
        lists(&["speed"])?;
    }
    if wanted("scale") {
        scale()?;
    }
    if wanted("chaos") {
        chaos()?;
    }
    Ok(())
}

fn lists(part: &[&str]) -> Result<()> {
    let build = ["build", "--release", "--locked", "--package", "gapless-fleet", "--example", "fleet_bench"];
    shell::run(command(".", "cargo", &build))?;
    let program = shell::target().join("release/examples/fleet_bench").display().to_string();
    shell::run(command(".", &program, &[&["testdata/fleet", "2"], part].concat()))
}

/// The time of a node's change, with 5,000 nodes and 50,000 pods. Below 20 ms are wanted.
fn scale() -> Result<()> {
    let test = [
        "test",
        "--release",
        "--locked",
        "--package",
        "gapless-kube",
        "--test",
        "scale",
        "--",
        "--nocapture",
    ];
    shell::run(command(".", "cargo", &test))
}

/// Three replicas that all get every pod, over an API server that fails in every way that the test knows.
fn chaos() -> Result<()> {
    let test = ["test", "--locked", "--package", "gapless-kube", "--test", "chaos", "--", "--nocapture"];
    let mut chaos = command(".", "cargo", &test);
    chaos.env("CHAOS_SECONDS", "600");
    shell::run(chaos)
}
