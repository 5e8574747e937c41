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

pub(crate) fn run() -> Result<()> {
    let example = ["--release", "--locked", "--package", "gapless-report", "--example", "rank_cases"];
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless"]))?;
    shell::run(command(".", "cargo", &[&["build"][..], &example].concat()))?;
    let cases = shell::target().join("release/examples/rank_cases").display().to_string();
    let named = shell::run(command(".", &cases, &["cases", "all", SEED, CASES]));

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
            "report of {RANKS} ranks, {LARGE} of them with {EVENTS} events, as {format}: {:.1} s ({:.1} s of CPU), peak RSS {:.2} GiB   wanted: at most 60 s on two cores, 2 GiB",
            number("seconds")?,
            number("cpu")?,
            number("rss")? / f64::from(1 << 30)
        );
    }
    named.context("a planted rank was not named, or a clean run was")
}
