//! `gapless fit` against measurements on a GPU, the speed of its search, and its cold start.

use crate::shell::{self, command};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Stdio;
use std::time::Instant;

const CONFIG: &str = "testdata/fit/models/llama-8b/config.json";
/// The limit of a cold start, with the start of the process.
const COLD_MS: f64 = 20.0;
const ROUNDS: usize = 50;

pub(crate) fn run() -> Result<()> {
    let example = ["run", "--release", "--locked", "--package", "gapless-fit", "--example"];
    println!("# predicted against measured on an H200\n");
    for cells in ["h200_cells.jsonl", "more_cells.jsonl"] {
        let file = shell::root().join("testdata/fit").join(cells);
        let folder = shell::root().join("testdata/fit");
        let (folder, file) = (folder.display().to_string(), file.display().to_string());
        println!("## {cells}");
        shell::run(command(".", "cargo", &[&example[..], &["score", "--", &folder, &file]].concat()))?;
    }
    println!("\n# search");
    let speeds = shell::output(command(".", "cargo", &[&example[..], &["search_speed"]].concat()))?;
    let speeds: Value = serde_json::from_str(&speeds).context("search_speed prints JSON")?;
    for search in speeds["searches"].as_array().into_iter().flatten() {
        println!(
            "{:<28} {:>9} configurations in {:>8.1} ms",
            search["name"].as_str().unwrap_or_default(),
            search["points"],
            search["seconds"].as_f64().unwrap_or(0.0) * 1e3
        );
    }
    println!(
        "{:<28} {:>9.0} configurations a second, every one priced",
        "one core",
        speeds["evaluated_per_second"].as_f64().unwrap_or(0.0)
    );
    let chains = &speeds["chains"];
    println!(
        "{:<28} {:>9.2} ms at worst of {}",
        format!("a chain of {} blocks", chains["blocks"]),
        chains["slowest_seconds"].as_f64().unwrap_or(0.0) * 1e3,
        chains["questions"]
    );
    cold()
}

/// Whole processes, one after the other.
fn cold() -> Result<()> {
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless"]))?;
    let program = shell::target().join("release/gapless");
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let mut child = command(".", program.to_str().context("a UTF-8 path")?, &["fit", CONFIG]);
        let began = Instant::now();
        let status =
            child.stdin(Stdio::null()).stdout(Stdio::null()).status().context("cannot start gapless")?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(status.success(), "gapless fit {CONFIG} failed with {status}");
    }
    times.sort_by(f64::total_cmp);
    let median = times[ROUNDS / 2];
    let verdict = if median <= COLD_MS { "within" } else { "OVER" };
    println!(
        "\n# cold start\nfrom config.json to the answer, Llama-3-8B: median {median:.1} ms, least {:.1} ms of {ROUNDS}; {verdict} {COLD_MS} ms",
        times[0]
    );
    Ok(())
}
