//! The host's memory: libgapless_malloc.so beside glibc, jemalloc, tcmalloc and mimalloc 3, all in one run.
//!
//! The programs are in `host-bench/`. Rounds go over all allocators in turn, so that other load slows all of them; a
//! figure is the median of its rounds. glibc runs twice: the ratio of the two is the noise of the run. `cargo xtask
//! bench host large`, `small` or `ai` measures one part, `record` the cost of statistics and recordings, `long` that
//! of recordings in runs of some seconds, and `leaks` and `paced` the findings of recordings.

use crate::bench::host_leaks;
use crate::shell::{self, command};
use crate::tools;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const PARTS: &[&str] = &["large", "small", "ai", "record", "long", "leaks", "paced"];
const LARGE: &[&str] = &["64MiB", "4MiB", "ring8", "2GiB", "free2GiB", "grow", "zeros", "idle", "pause"];
const SMALL: &[&str] = &[
    "cfrac",
    "alloc-test1",
    "alloc-testN",
    "larson",
    "sh6",
    "sh8",
    "xmalloc",
    "mstress",
    "rptest",
    "glibc-simple",
    "glibc-thread",
    "strings",
];
const AI: &[&str] = &["collate", "tokenize", "checkpoint", "safetensors", "arrow", "workers", "files"];
/// Seconds of CPU for which a program runs again and again, for `long`.
const LONG: f64 = 7.0;
/// The packages of the Python programs.
const PACKAGES: &[&str] = &["numpy>=1.26,<3", "pyarrow>=15", "safetensors>=0.4"];

/// Rounds of each program. `GAPLESS_BENCH_ROUNDS` sets another number.
fn rounds() -> usize {
    std::env::var("GAPLESS_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// An allocator, and the library to preload for it.
struct Peer {
    name: &'static str,
    library: Option<PathBuf>,
}

/// One program under one allocator: its figure and its peak in KiB.
#[derive(Clone, Copy)]
struct Reading {
    figure: f64,
    peak: f64,
}

pub(crate) fn run(parts: &[&str]) -> Result<()> {
    let folder = shell::target().join("bench/host");
    std::fs::create_dir_all(&folder)?;
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless-malloc"]))?;
    let needs_peers = ["large", "small", "ai"].into_iter().any(wanted);
    let peers = if needs_peers { peers(&folder)? } else { Vec::new() };
    if wanted("large") {
        let program = compile(&folder, "large")?;
        let start = |case: &str| vec![program.clone(), case.to_owned()];
        let floor = read(&start("floor64"), None)?.figure;
        println!(
            "large: ms of CPU; free2GiB us; idle: resident / live. The floor for 64 MiB is {floor:.2} ms"
        );
        table(&peers, LARGE, &start)?;
    }
    if wanted("small") {
        let program = compile(&folder, "small")?;
        println!("small: seconds of CPU");
        table(&peers, SMALL, &|case| vec![program.clone(), case.to_owned()])?;
    }
    if wanted("ai") {
        let python = tools::environment(&folder.join("python"), PACKAGES, &PACKAGES.join(" "))?;
        let script = shell::root().join("host-bench/ai.py").display().to_string();
        println!("ai: seconds of CPU after the imports");
        table(&peers, AI, &|case| vec![python.clone(), script.clone(), case.to_owned()])?;
    }
    if wanted("record") || wanted("long") {
        let program = compile(&folder, "small")?;
        let python = tools::environment(&folder.join("python"), PACKAGES, &PACKAGES.join(" "))?;
        let script = shell::root().join("host-bench/ai.py").display().to_string();
        let start = |case: &str| match AI.contains(&case) {
            true => vec![python.clone(), script.clone(), case.to_owned()],
            false => vec![program.clone(), case.to_owned()],
        };
        if wanted("record") {
            println!("record: CPU relative to Gapless without it (wanted: statistics 1.01)");
            cost(&folder, &["again", "statistics", "recording"], &|case| Ok(start(case)))?;
        }
        if wanted("long") {
            println!("long: the same where a program runs for some seconds (wanted: recording 1.02)");
            let start = |case: &str| -> Result<Vec<String>> {
                let once = read(&start(case), Some(&ours()))?.figure;
                Ok([start(case), vec![(LONG / once).ceil().to_string()]].concat())
            };
            cost(&folder, &["again", "recording"], &start)?;
        }
    }
    if wanted("leaks") || wanted("paced") {
        let python = tools::environment(&folder.join("python"), PACKAGES, &PACKAGES.join(" "))?;
        let library = ours();
        let bench = host_leaks::Bench::new(&folder, &python, &library)?;
        if wanted("leaks") {
            bench.leaks()?;
        }
        if wanted("paced") {
            bench.paced()?;
        }
    }
    Ok(())
}

fn ours() -> PathBuf {
    shell::target().join("release/libgapless_malloc.so")
}

/// The cost of statistics and recordings, beside a null line: CPU of each program relative to Gapless without them.
fn cost(folder: &Path, names: &[&str], start: &dyn Fn(&str) -> Result<Vec<String>>) -> Result<()> {
    let file = folder.join("cost.gtrace").display().to_string();
    let ways: Vec<(&str, Vec<(&str, &str)>)> = ["plain"]
        .iter()
        .chain(names)
        .map(|name| match *name {
            "statistics" => ("statistics", vec![("GAPLESS_HOST_STATS", "1")]),
            "recording" => ("recording", vec![("GAPLESS_HOST_RECORD", file.as_str())]),
            other => (other, vec![]),
        })
        .collect();
    let cases: Vec<&str> = AI.iter().chain(["cfrac", "larson", "strings"].iter()).copied().collect();
    println!("{:14}{}", "", ways.iter().map(|(name, _)| format!("{name:>12}")).collect::<String>());
    let mut sums = vec![0.0; ways.len()];
    for case in &cases {
        let words = start(case)?;
        let mut readings = vec![Vec::new(); ways.len()];
        for _ in 0..rounds() {
            for ((_, variables), readings) in ways.iter().zip(&mut readings) {
                readings.push(read_with(&words, Some(&ours()), variables)?.figure);
            }
        }
        let medians: Vec<f64> = readings.into_iter().map(median).collect();
        print!("{case:14}");
        for (value, sum) in medians.iter().zip(&mut sums) {
            print!("{:>12.3}", value / medians[0]);
            *sum += (value / medians[0]).ln();
        }
        println!();
    }
    let mean = |sum: &f64| format!("{:>12.3}", (sum / cases.len() as f64).exp());
    println!("{:14}{}\n", "mean", sums.iter().map(mean).collect::<String>());
    Ok(())
}

/// All allocators; one that is not available is left out with a message.
fn peers(folder: &Path) -> Result<Vec<Peer>> {
    let mut all = vec![
        Peer { name: "glibc", library: None },
        Peer { name: "again", library: None },
        Peer { name: "gapless", library: Some(ours()) },
    ];
    let others = [
        ("jemalloc", debian(folder, "libjemalloc2", "libjemalloc.so.2")),
        ("tcmalloc", debian(folder, "libtcmalloc-minimal4", "libtcmalloc_minimal.so.4")),
        ("mimalloc", mimalloc(folder)),
    ];
    for (name, library) in others {
        match library {
            Ok(library) => all.push(Peer { name, library: Some(library) }),
            Err(error) => println!("{name} is left out: {error:#}"),
        }
    }
    Ok(all)
}

/// A library from a Debian package, unpacked below `folder`.
fn debian(folder: &Path, package: &str, file: &str) -> Result<PathBuf> {
    let place = folder.join(package);
    let machine = std::env::consts::ARCH;
    let library = place.join(format!("usr/lib/{machine}-linux-gnu/{file}"));
    if !library.exists() {
        tools::unpack(package, &place)?;
    }
    if !library.exists() {
        bail!("{package} has no {}", library.display());
    }
    Ok(library)
}

/// mimalloc 3 from the source in the crate libmimalloc-sys, as its authors build it for LD_PRELOAD.
fn mimalloc(folder: &Path) -> Result<PathBuf> {
    let library = folder.join("libmimalloc.so");
    let words = ["metadata", "--format-version", "1", "--locked", "--features", "xtask/peers"];
    let metadata = shell::output(command(".", "cargo", &words))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "libmimalloc-sys")
        .and_then(|package| package["manifest_path"].as_str())
        .context("libmimalloc-sys is a dependency")?;
    let source = Path::new(manifest).with_file_name("c_src").join("mimalloc/v3");
    let [include, code] =
        [source.join("include"), source.join("src/static.c")].map(|path| path.display().to_string());
    let flags =
        ["-O3", "-DNDEBUG", "-DMI_MALLOC_OVERRIDE", "-DMI_BUILD_RELEASE", "-fPIC", "-shared", "-pthread"];
    let more = ["-fno-builtin-malloc", "-ftls-model=initial-exec", "-w", "-I", &include, "-o"];
    let out = library.display().to_string();
    shell::run(command(".", "cc", &[&flags[..], &more, &[&out, &code]].concat()))?;
    Ok(library)
}

fn compile(folder: &Path, name: &str) -> Result<String> {
    let source = shell::root().join(format!("host-bench/{name}.c")).display().to_string();
    let program = folder.join(name).display().to_string();
    shell::run(command(".", "cc", &["-O2", "-fno-builtin-malloc", "-pthread", "-o", &program, &source]))?;
    Ok(program)
}

fn read(words: &[String], library: Option<&Path>) -> Result<Reading> {
    read_with(words, library, &[])
}

fn read_with(words: &[String], library: Option<&Path>, variables: &[(&str, &str)]) -> Result<Reading> {
    let (program, args) = words.split_first().context("a program")?;
    let mut command = Command::new(program);
    command.args(args).envs(variables.iter().copied());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let text = shell::output(command)?;
    let number = |name: &str| {
        let mut words = text.split_whitespace().skip_while(|word| *word != name).skip(1);
        words
            .next()
            .and_then(|word| word.parse::<f64>().ok())
            .with_context(|| format!("no {name} in {text:?}"))
    };
    Ok(Reading { figure: number("figure")?, peak: number("peak_kib")? })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn table(peers: &[Peer], cases: &[&str], start: &dyn Fn(&str) -> Vec<String>) -> Result<()> {
    print!("{:14}", "");
    peers.iter().for_each(|peer| print!("{:>22}", peer.name));
    println!("\n{:14}{}", "", format!("{:>12}{:>10}", "figure", "MiB").repeat(peers.len()));
    // Logarithms of the ratios to glibc.
    let mut sums = vec![(0.0, 0.0); peers.len()];
    for case in cases {
        let words = start(case);
        let mut readings = vec![Vec::new(); peers.len()];
        for _ in 0..rounds() {
            for (peer, readings) in peers.iter().zip(&mut readings) {
                readings.push(read(&words, peer.library.as_deref())?);
            }
        }
        let medians: Vec<Reading> = readings
            .iter()
            .map(|all| Reading {
                figure: median(all.iter().map(|reading| reading.figure).collect()),
                peak: median(all.iter().map(|reading| reading.peak).collect()),
            })
            .collect();
        print!("{case:14}");
        for (reading, sum) in medians.iter().zip(&mut sums) {
            print!("{:>12.3}{:>10.0}", reading.figure, reading.peak / 1024.0);
            sum.0 += (reading.figure / medians[0].figure).ln();
            sum.1 += (reading.peak / medians[0].peak).ln();
        }
        println!();
    }
    print!("{:14}", "x glibc");
    for (figure, peak) in sums {
        let count = cases.len() as f64;
        print!("{:>12.3}{:>10.3}", (figure / count).exp(), (peak / count).exp());
    }
    println!("\n");
    Ok(())
}
