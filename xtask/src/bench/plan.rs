//! The packer on every kind of instance with promised figures, beside other planners.
//!
//! One table: the instances of `gapless-plan`'s own bench (with CP-SAT's figures in its column of peers), memory spaces
//! against the optimum that HiGHS proves, the program as a whole process on the challenging set, and whole recorded
//! runs.

use crate::shell::{self, command};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

/// The parts of the bench, in order; the million takes a minute. `PARTS=name,name` picks some.
const PARTS: [&str; 13] = [
    "challenging",
    "cliff",
    "minimise",
    "tensors",
    "guillotine",
    "heavy",
    "million",
    "training",
    "replan",
    "baselines",
    "spaces",
    "process",
    "traces",
];
/// Parts that need the program itself or their own example; the others belong to the first example.
const OF_PROGRAM: [&str; 3] = ["spaces", "process", "traces"];
const SET: &str = "testdata/planner/challenging";
const LETTERS: &str = "ABCDEFGHIJK";
const CAPACITY: &str = "1048576";
/// Seconds of CPU that CP-SAT gets for each instance; `CPSAT_LIMIT` changes it.
const CPSAT_LIMIT: &str = "10";
/// The kernel counts the CPU of processes that ended in ticks of 10 ms: with enough rounds, one instance takes longer.
const ROUNDS: u32 = 10;

pub(crate) fn run() -> Result<()> {
    let picked = std::env::var("PARTS").unwrap_or_else(|_| PARTS.join(","));
    let picked: Vec<&str> = picked.split(',').collect();
    if let Some(unknown) = picked.iter().find(|part| !PARTS.contains(part)) {
        bail!("PARTS: no part is called {unknown:?}: there are {}", PARTS.join(", "));
    }
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless"]))?;
    let folder = shell::target().join("bench");
    std::fs::create_dir_all(&folder)?;
    let peers = folder.join("plan-peers.tsv");
    if picked.contains(&"challenging") {
        let figures = cpsat(&folder).unwrap_or_else(|error| {
            eprintln!("!!! CP-SAT IS NOT IN THE TABLE: ortools could not be installed or run: {error:#}");
            String::new()
        });
        std::fs::write(&peers, figures)?;
    }
    let of_example: Vec<&str> = picked.iter().filter(|part| !OF_PROGRAM.contains(part)).copied().collect();
    if !of_example.is_empty() {
        let mut args = vec![
            "run",
            "--release",
            "--locked",
            "--package",
            "gapless-plan",
            "--example",
            "plan_bench",
            "--",
        ];
        args.extend(of_example);
        let mut bench = command(".", "cargo", &args);
        bench.env("PEERS", &peers);
        shell::run(bench)?;
    }
    if picked.contains(&"spaces") {
        spaces(&folder).unwrap_or_else(|error| {
            eprintln!(
                "!!! MEMORY SPACES ARE NOT IN THE TABLE: scipy could not be installed or run: {error:#}"
            );
        });
    }
    let binary = shell::target().join("release/gapless");
    if picked.contains(&"process") {
        whole_process(&binary, &folder)?;
    }
    if picked.contains(&"traces") {
        traces(&binary)?;
    }
    Ok(())
}

/// CP-SAT's figures on the challenging set: lines of a letter, a tab and the text to print.
fn cpsat(folder: &Path) -> Result<String> {
    let python = python_with(folder, "ortools.sat.python.cp_model", "ortools")?;
    let limit = std::env::var("CPSAT_LIMIT").unwrap_or_else(|_| CPSAT_LIMIT.to_owned());
    let files: Vec<String> =
        LETTERS.chars().map(|letter| format!("{SET}/{letter}.{CAPACITY}.csv.gz")).collect();
    let mut args = vec!["xtask/bench/cpsat.py", "--limit", &limit, "--capacity", CAPACITY];
    args.extend(files.iter().map(String::as_str));
    eprintln!("CP-SAT, one worker, at most {limit} s of CPU for each of {} instances", files.len());
    let printed = shell::output(command(".", &python, &args))?;
    let rows: Vec<Value> = serde_json::from_str(&printed).context("cpsat.py prints JSON")?;
    ensure!(rows.len() == files.len(), "cpsat.py gave {} figures for {} files", rows.len(), files.len());
    let mut lines = String::new();
    for (letter, row) in LETTERS.chars().zip(&rows) {
        let seconds = row["cpu_s"].as_f64().context("cpsat.py gives cpu_s")?;
        let unsolved = if row["status"] == "SOLVED" { "" } else { "unsolved after " };
        lines.push_str(&format!("{letter}\tCP-SAT {unsolved}{seconds:.1} s\n"));
    }
    Ok(lines)
}

/// A Python that can import the module, from this package, in the bench's own virtual environment.
fn python_with(folder: &Path, module: &str, package: &str) -> Result<String> {
    let venv = folder.join("venv");
    let python = venv.join("bin/python").display().to_string();
    let imports = |python: &str| {
        let mut import = command(".", python, &["-c", &format!("import {module}")]);
        import.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !imports(&python) {
        if !Path::new(&python).exists() {
            shell::run(command(".", "python3", &["-m", "venv", &venv.display().to_string()]))?;
        }
        shell::run(command(".", &python, &["-m", "pip", "install", "--quiet", package]))?;
        ensure!(imports(&python), "{python} cannot import {module}");
    }
    Ok(python)
}

/// Small questions about several memories, against the optimum that HiGHS proves for an integer program of each.
fn spaces(folder: &Path) -> Result<()> {
    let python = python_with(folder, "scipy.optimize", "scipy")?;
    let questions = folder.join("spaces.json").display().to_string();
    let args = ["run", "--release", "--locked", "--package", "gapless-plan", "--example", "spaces"];
    std::fs::write(&questions, shell::output(command(".", "cargo", &args))?)?;
    let asked: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&questions)?)?;
    let printed = shell::output(command(".", &python, &["xtask/bench/milp.py", &questions]))?;
    let rows: Vec<Value> = serde_json::from_str(&printed).context("milp.py prints JSON")?;
    ensure!(rows.len() == asked.len(), "milp.py gave {} figures for {} questions", rows.len(), asked.len());
    for (name, timed) in [("spaces, accesses counted", false), ("spaces, access times known", true)] {
        let (mut sum, mut worst, mut count, mut moved, mut ours, mut theirs) = (0.0, 0f64, 0, 0, 0.0, 0.0);
        let mut open = 0;
        for (row, question) in rows.iter().zip(&asked).filter(|(row, _)| row["timed"] == timed) {
            ours += question["seconds"].as_f64().context("the example gives seconds")?;
            theirs += row["seconds"].as_f64().context("milp.py gives seconds")?;
            moved += usize::from(row["moved"].as_u64().is_some_and(|moved| moved > 0));
            let traffic = row["traffic"].as_f64().context("milp.py gives traffic")?;
            let Some(optimum) = row["optimum"].as_f64() else {
                open += 1;
                continue;
            };
            ensure!(
                traffic >= optimum,
                "{name}: less traffic than the optimum: one of the two models is wrong"
            );
            let ratio = if optimum > 0.0 { traffic / optimum } else { 1.0 };
            (sum, worst, count) = (sum + ratio, worst.max(ratio), count + 1);
        }
        let mean = sum / f64::from(count);
        let unsolved = if open > 0 { format!(", {open} not solved by it") } else { String::new() };
        let peers = format!(
            "HiGHS proves the optimum of {count} in {theirs:.1} s{unsolved}; {moved} plans move buffers; worst {worst:.4}"
        );
        line(
            name,
            &format!("{mean:.5} on average"),
            ours,
            "1.01 on average, none infeasible",
            mean <= 1.01,
            &peers,
        );
    }
    Ok(())
}

/// The challenging set again, each instance by a process of its own, from its start to its end.
fn whole_process(binary: &Path, folder: &Path) -> Result<()> {
    let binary = binary.display().to_string();
    let files: Vec<PathBuf> = LETTERS.chars().map(|letter| folder.join(format!("{letter}.csv"))).collect();
    for (letter, file) in LETTERS.chars().zip(&files) {
        let packed = format!("{SET}/{letter}.{CAPACITY}.csv.gz");
        std::fs::write(file, shell::output(command(".", "gzip", &["-dc", &packed]))?)?;
    }
    let (start, cpu) = (Instant::now(), children_cpu_seconds());
    for _ in 0..ROUNDS {
        for file in &files {
            let file = file.display().to_string();
            let args = ["plan", &file, "--capacity", CAPACITY, "--format", "json"];
            let json = shell::output(command(".", &binary, &args))?;
            let plan: Value = serde_json::from_str(&json).context("gapless plan prints JSON")?;
            ensure!(plan["fits"] == true, "{file}: does not fit");
        }
    }
    let wall = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
    let cpu = (children_cpu_seconds() - cpu) / f64::from(ROUNDS);
    let ours = format!("all fit, {wall:.3} s wall");
    line(
        "A to K, a process each",
        &ours,
        cpu,
        "at most 1.8 s, aim 0.2",
        cpu <= 1.8,
        "process start and JSON included",
    );
    Ok(())
}

/// Every recorded run as a whole, with the program's own limit.
fn traces(binary: &Path) -> Result<()> {
    let binary = binary.display().to_string();
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(shell::root().join("testdata/traces"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(Some(name).filter(|name| name.ends_with(".pickle.gz")));
    }
    names.sort();
    for name in names {
        let cpu = children_cpu_seconds();
        let file = format!("testdata/traces/{name}");
        let json = shell::output(command(
            ".",
            &binary,
            &["plan", &file, "--time-limit", "10s", "--format", "json"],
        ))?;
        let cpu = children_cpu_seconds() - cpu;
        let plan: Value = serde_json::from_str(&json).context("gapless plan prints JSON")?;
        let bytes = |key: &str| plan[key].as_f64().with_context(|| format!("gapless plan gives {key}"));
        let ratio = bytes("peak")? / bytes("lower_bound")?;
        let proven = if plan["proven_optimal"] == true { ", optimal" } else { "" };
        let short = name.trim_end_matches(".pickle.gz");
        line(
            &format!("trace {short}"),
            &format!("{ratio:.5}{proven}"),
            cpu,
            "1.001 in 10 s",
            ratio <= 1.001,
            "",
        );
    }
    Ok(())
}

/// A line in the columns of the example's table.
fn line(case: &str, ours: &str, cpu: f64, wanted: &str, met: bool, peers: &str) {
    let met = if met { "met" } else { "MISSED" };
    let row = format!("{case:33} {ours:>25} {cpu:>8.3} {:5}  {wanted:34} {met:6}  {peers}", "");
    println!("{}", row.trim_end());
}

/// User and system time of all child processes that have ended, in ticks of 10 ms; 0 if there is no /proc.
fn children_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may hold spaces; the fields are counted after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}
