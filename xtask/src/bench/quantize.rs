//! The quantisers beside compressed-tensors: one matrix in memory, one thread each, speeds as quotients.
//!
//! Ours runs before and after the peer; the quotient of its two lines is noise. `ROUNDS=n` changes the rounds (3), of
//! which the best counts. The peer needs torch, so this bench runs only by name.

use crate::shell::{self, command};
use crate::tools;
use anyhow::{Context, Result};
use serde_json::Value;

const PACKAGES: [&str; 4] = ["torch", "compressed-tensors==0.20.0", "numpy", "xxhash"];
const SCRIPT: &str = "xtask/bench/quantize.py";
/// The shape of a layer of a model of seven billion parameters.
const SHAPE: [&str; 2] = ["4096", "4096"];

/// The packages that load quantised models.
const ENGINE: [&str; 6] =
    ["torch", "transformers==5.23.0", "compressed-tensors==0.20.0", "accelerate", "safetensors", "numpy"];
const LOADS: &str = "xtask/bench/quantize_loads.py";

/// Checks that transformers loads the output of `gapless weights quantize` for small generated models.
pub(crate) fn loads() -> Result<()> {
    let folder = shell::target().join("bench/quantize-loads");
    let python = tools::environment(&folder.join("venv"), &ENGINE, &ENGINE.join(" "))?;
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless"]))?;
    let gapless = shell::target().join("release/gapless").display().to_string();
    shell::run(command(".", &python, &[LOADS, &gapless]))
}

pub(crate) fn run() -> Result<()> {
    let folder = shell::target().join("bench/quantize");
    let python = tools::environment(&folder.join("venv"), &PACKAGES, &PACKAGES.join(" "))?;
    let build =
        ["build", "--release", "--locked", "--package", "gapless-weights", "--example", "quantize_bench"];
    shell::run(command(".", "cargo", &build))?;
    let file = folder.join("matrix.bf16").display().to_string();
    shell::run(command(".", &python, &[SCRIPT, "make", &file, SHAPE[0], SHAPE[1]]))?;
    let rounds = std::env::var("ROUNDS").unwrap_or_else(|_| "3".to_owned());
    let bench = shell::target().join("release/examples/quantize_bench").display().to_string();
    let ours = || -> Result<Value> {
        let text = shell::output(command(".", &bench, &[&file, SHAPE[0], SHAPE[1], &rounds]))?;
        serde_json::from_str(&text).context("quantize_bench prints JSON")
    };
    let before = ours()?;
    let peer = shell::output(command(".", &python, &[SCRIPT, "peer", &file, SHAPE[0], SHAPE[1], &rounds]))?;
    let peer: Value = serde_json::from_str(&peer).context("quantize.py prints JSON")?;
    let after = ours()?;
    println!("\nquantise {} by {} values of bf16, one thread, GB/s of input", SHAPE[0], SHAPE[1]);
    println!("  scheme       ours  compressed-tensors  quotient  ours again / ours (noise)");
    for (scheme, speed) in before.as_object().into_iter().flatten() {
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let (first, second, other) = (number(speed), number(&after[scheme]), number(&peer[scheme]));
        println!("  {scheme:9} {first:>7.3}  {other:>18.3}  {:>8.1}  {:>8.2}", first / other, second / first);
    }
    Ok(())
}
