//! Many ranks: whether the odd one and its cause are named in planted runs and nothing in clean ones, and what 1,024
//! files take.
//!
//! The runs are made from recorded ones. Thresholds were chosen on four of the recordings, a mistake was found with
//! four others, and four are held out.

use crate::shell::{self, command};
use anyhow::{Context, Result};
use serde_json::Value;

const RANKS: &str = "1024";
/// This many of them have a million events, the others about 13,000.
const LARGE: &str = "16";
const EVENTS: &str = "1000000";
const SEED: &str = "1";
const CASES: &str = "20";

/// `GAPLESS_BENCH_SEED` makes other runs than those of the usual seed.
fn seed() -> String {
    std::env::var("GAPLESS_BENCH_SEED").unwrap_or_else(|_| SEED.to_owned())
}

pub(crate) fn run() -> Result<()> {
    // In one call: two of them would build the crates below twice, with other features.
    let packages = ["--package", "gapless", "--package", "gapless-report"];
    let targets = ["--bin", "gapless", "--example", "rank_cases"];
    let build = [&["build", "--release", "--locked"][..], &packages, &targets].concat();
    shell::run(command(".", "cargo", &build))?;
    let cases = shell::target().join("release/examples/rank_cases").display().to_string();
    let named = shell::run(command(".", &cases, &["cases", "all", &seed(), CASES]));

    let folder = shell::target().join("bench/ranks");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let folder = folder.display().to_string();
    shell::run(command(".", &cases, &["files", &folder, RANKS, LARGE, EVENTS]))?;
    let binary = shell::target().join("release/gapless").display().to_string();
    for format in ["text", "json"] {
        let args = ["xtask/bench/peak.py", &binary, "report", &folder, "--format", format];
        let measured: Value = serde_json::from_str(&shell::output(command(".", "python3", &args))?)?;
        let number = |key: &str| measured[key].as_f64().with_context(|| format!("peak.py gives {key}"));
        println!(
            "report of {RANKS} ranks, {LARGE} of them with {EVENTS} events, as {format}: {:.1} s ({:.1} s of CPU, so {:.1} s on two free cores), peak RSS {:.2} GiB   wanted: at most 60 s on two cores, 2 GiB",
            number("seconds")?,
            number("cpu")?,
            number("cpu")? / 2.0,
            number("rss")? / f64::from(1 << 30)
        );
    }
    named.context("a planted rank was not named, or a clean run was")
}
