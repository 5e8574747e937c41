//! Many ranks: checks that the odd one and its cause are named in planted runs and nothing in clean ones, and
//! measures 1,024 files.
//!
//! The runs are made from recorded ones, in two ways that share no code: by `rank_cases`, which serves perturbed
//! requests on the model of PyTorch's allocator, and by `xtask/bench/odd_ranks.py`, which edits snapshot files.

use crate::shell::{self, command};
use anyhow::{Context, Result};
use serde_json::Value;

const RANKS: &str = "1024";
/// This many of them have a million events, the others about 13,000.
const LARGE: &str = "16";
const EVENTS: &str = "1000000";
const SEED: &str = "1";
const CASES: &str = "20";
const PAGE_RANKS: &str = "64";

/// `GAPLESS_BENCH_SEED` sets another seed.
fn seed() -> String {
    std::env::var("GAPLESS_BENCH_SEED").unwrap_or_else(|_| SEED.to_owned())
}

pub(crate) fn run() -> Result<()> {
    // One call builds all, because two calls would build the crates below twice, with different features.
    let packages = ["--package", "gapless", "--package", "gapless-report"];
    let targets = ["--bin", "gapless", "--example", "rank_cases", "--example", "ranks_page"];
    let build = [&["build", "--release", "--locked"][..], &packages, &targets].concat();
    shell::run(command(".", "cargo", &build))?;
    let cases = shell::target().join("release/examples/rank_cases").display().to_string();
    let named = shell::run(command(".", &cases, &["cases", "all", &seed(), CASES]));

    let edited = edited(&cases);

    let folder = empty("bench/ranks")?;
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
    page()?;
    named.and(edited).context("a planted rank was not named, or a clean run was")
}

/// Snapshots that a script edited, and the number of ranks that are named correctly.
fn edited(cases: &str) -> Result<()> {
    let folder = empty("bench/odd-ranks")?;
    shell::run(command(".", "python3", &["xtask/bench/odd_ranks.py", &folder, &seed(), CASES]))?;
    shell::run(command(".", cases, &["folders", &folder]))
}

/// The size of the page of 64 ranks, and the time until its first picture.
fn page() -> Result<()> {
    let page = format!("{}/ranks.html", empty("bench/ranks-page")?);
    let example = shell::target().join("release/examples/ranks_page").display().to_string();
    shell::run(command(".", &example, &[&page, PAGE_RANKS]))?;
    let size = std::fs::metadata(&page)?.len() as f64 / 1e6;
    println!("page of {PAGE_RANKS} ranks: {size:.1} MB   wanted: at most 10 MB, first picture in 1 s");
    super::page::in_browser(&[page])
}

fn empty(name: &str) -> Result<String> {
    let folder = shell::target().join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder.display().to_string())
}
