//! Programs that leak and programs that do not, recorded and reported: which lines are found, and what is found where
//! nothing leaks. `host-bench/leaks.py` and `leaks.c` have them.
//!
//! Half of the programs were set aside while the rules were made: they have a star.

use crate::shell::{self, command};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const LEAKS: [(&str, &[&str]); 2] = [
    (
        "py",
        &[
            "arrays", "texts", "small", "closures", "cycles", "*threads", "*buffer", "*views", "*memo",
            "*errors",
        ],
    ),
    (
        "c",
        &[
            "forgotten",
            "errorpath",
            "list",
            "grows",
            "names",
            "*served",
            "*frames",
            "*deep",
            "*aligned",
            "*slow",
        ],
    ),
];
const CLEAN: [(&str, &[&str]); 2] = [
    (
        "py",
        &[
            "churn",
            "fills",
            "bounded",
            "ring",
            "pool",
            "*warm",
            "*collected",
            "*sawtooth",
            "*replaces",
            "*batches",
        ],
    ),
    (
        "c",
        &[
            "churn",
            "arena",
            "freelist",
            "fills",
            "evicts",
            "*builds",
            "*workers",
            "*doubles",
            "*sawtooth",
            "*large",
        ],
    ),
];

pub(super) fn run(folder: &Path, python: &str, library: &Path) -> Result<()> {
    shell::run(command(".", "cargo", &["build", "--locked", "--package", "gapless"]))?;
    let gapless = shell::target().join("debug/gapless").display().to_string();
    let source = |kind: &str| shell::root().join(format!("host-bench/leaks.{kind}"));
    let program = folder.join("leaks").display().to_string();
    let code = source("c").display().to_string();
    shell::run(command(
        ".",
        "cc",
        &["-O1", "-g", "-w", "-fno-builtin", "-pthread", "-o", &program, &code, "-ldl"],
    ))?;
    println!(
        "leaks: a program, the line that leaks, and what is reported; * was set aside while the rules were made"
    );
    let mut right = [0, 0];
    for (side, cases) in [LEAKS, CLEAN].into_iter().enumerate() {
        for (kind, names) in cases {
            let text = std::fs::read_to_string(source(kind))?;
            for name in names {
                let case = name.trim_start_matches('*');
                let words = match kind {
                    "py" => vec![python.to_owned(), source("py").display().to_string(), case.to_owned()],
                    _ => vec![program.clone(), case.to_owned()],
                };
                let found = record(folder, &words, library, &gapless)?;
                let marker = format!(" LEAK {case}");
                let line = text.lines().position(|line| line.ends_with(&marker)).map(|at| at + 1);
                let wanted = line.filter(|_| side == 0).map(|line| format!("leaks.{kind}:{line} "));
                let is_right = match &wanted {
                    Some(wanted) => found.iter().any(|label| label.starts_with(wanted)),
                    None => found.is_empty(),
                };
                right[side] += usize::from(is_right);
                let verdict = if is_right { "ok" } else { "WRONG" };
                println!(
                    "{kind:3} {name:12} {:16} {verdict:6} {}",
                    wanted.unwrap_or("-".into()),
                    found.join(" | ")
                );
            }
        }
    }
    println!("leaks found with their line: {} of 20 (wanted 20)", right[0]);
    println!("clean programs without a finding: {} of 20 (wanted 20)\n", right[1]);
    Ok(())
}

/// The lines that a report on the program calls growing.
fn record(folder: &Path, words: &[String], library: &Path, gapless: &str) -> Result<Vec<String>> {
    let file = folder.join("leaks.gtrace");
    let (program, args) = words.split_first().context("a program")?;
    let mut started = Command::new(program);
    started.args(args).env("LD_PRELOAD", library).env("GAPLESS_HOST_RECORD", &file);
    if !started.status()?.success() {
        bail!("{words:?} failed");
    }
    let report =
        shell::output(command(".", gapless, &["report", &file.display().to_string(), "--format", "json"]))?;
    let report: Value = serde_json::from_str(&report)?;
    let growing = report["host_run"]["growing"].as_array().context("a recording of host memory")?;
    Ok(growing.iter().filter_map(|line| line["label"].as_str().map(str::to_owned)).collect())
}
