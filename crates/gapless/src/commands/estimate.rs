//! `gapless estimate`: the memory of a script, or of a model's configuration, without a GPU. The Python package does
//! the work, in the Python whose torch is meant. This command finds both, runs the package and ends with its exit code.

use crate::Answer;
use crate::cli::estimate::EstimateArgs;
use crate::commands::run::package;
use crate::failure::Failure;
use crate::sizes;
use anyhow::{Context, Result};
use gapless_fit::read::preset_config;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn run(args: &EstimateArgs) -> Result<Answer> {
    if args.jax {
        return jax(args);
    }
    if let Some(size) = &args.pace.train_in {
        sizes::positive("--train-in", size, "20GiB")?;
    }
    let text = built_in(&args.script)?;
    if text.is_none() && !args.script.exists() {
        let what = format!("{}: no such file", args.script.display());
        let help = "name a Python script, as in `gapless estimate train.py -- --batch 8`; or a config.json, its folder, \
                    or a name that `gapless fit --list` prints";
        return Err(Failure::new(what, help).into());
    }
    let python = interpreter();
    let package = package(&python)?;
    let mut command = Command::new(&python);
    command.args([
        "-m",
        "gapless._estimate.command",
        "--device",
        &args.device,
        "--format",
        args.format.name(),
    ]);
    command.args(["--nproc", &args.nproc.to_string()]);
    command.args(args.pace.words());
    command.args(args.run.words());
    if let Some(file) = &args.save {
        command.arg("--save").arg(file);
    }
    if let Some(text) = text {
        command.args(["--text", text]);
    }
    command.arg(&args.script).arg("--").args(&args.arguments);
    command.env("PYTHONPATH", path(&package)?);
    if let Ok(own) = std::env::current_exe() {
        // The package runs this program to make the page.
        command.env("GAPLESS_PROGRAM", own);
    }
    let status = command.status().map_err(|error| not_started(&error, &python))?;
    std::process::exit(status.code().unwrap_or(2))
}

/// The same for a script of JAX, in the Python whose jax is meant.
fn jax(args: &EstimateArgs) -> Result<Answer> {
    if let Some(word) = args.run.words().first() {
        let what = format!("{word} describes the run of a configuration, and --jax names a script");
        return Err(Failure::new(what, "the script's own arguments follow `--`").into());
    }
    if !args.pace.assume.is_empty() {
        let what =
            "--assume is for scripts of PyTorch: with --jax every value that a compiled function gives is 0";
        return Err(Failure::new(what, "leave it out").into());
    }
    let python = interpreter();
    let package = package(&python)?;
    let mut command = Command::new(&python);
    command.args(["-m", "gapless._jax.command", "--device", &args.device, "--format", args.format.name()]);
    command.args(["--nproc", &args.nproc.to_string()]);
    command.args(args.pace.words());
    for (flag, file) in [("--save", &args.save), ("--dumps", &args.dumps)] {
        if let Some(file) = file {
            command.arg(flag).arg(file);
        }
    }
    command.arg(&args.script).arg("--").args(&args.arguments);
    command.env("PYTHONPATH", path(&package)?);
    if let Ok(own) = std::env::current_exe() {
        // The package replays the requests on XLA's allocator with this program.
        command.env("GAPLESS_PROGRAM", own);
    }
    let status = command.status().map_err(|error| not_started(&error, &python))?;
    std::process::exit(status.code().unwrap_or(2))
}

/// The configuration of a built-in name, if no file has that name.
fn built_in(script: &Path) -> Result<Option<&'static str>> {
    let Some(name) = script.to_str().filter(|_| !script.exists()) else { return Ok(None) };
    match preset_config(name) {
        Some(text) if text.contains("\"torchvision_") => {
            let what = format!("{name} is a network of torchvision, and has no configuration that makes it");
            Err(Failure::new(what, "`gapless fit` knows it; or write a script and estimate that").into())
        }
        found => Ok(found),
    }
}

/// The interpreter in GAPLESS_PYTHON; or the one beside this program, so that a `gapless` that is called by its path
/// uses its own environment's torch; or the one on the PATH. A note names an interpreter that is not the PATH's.
pub(crate) fn interpreter() -> OsString {
    if let Some(named) = std::env::var_os("GAPLESS_PYTHON") {
        return named;
    }
    let Some(beside) = beside_program() else { return "python3".into() };
    let first = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|file| file.is_file())
    });
    if first.as_deref() != Some(&beside) {
        eprintln!(
            "gapless: Python is {}, beside this program (GAPLESS_PYTHON names another)",
            beside.display()
        );
    }
    beside.into()
}

/// `python3` in the folder of this program: of its path as called, or with links resolved.
fn beside_program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let resolved = own.canonicalize().unwrap_or_else(|_| own.clone());
    [own, resolved].iter().map(|program| program.with_file_name("python3")).find(|file| file.is_file())
}

/// PYTHONPATH with the package's parent folder in front.
pub(crate) fn path(package: &Path) -> Result<OsString> {
    let parent = package.parent().context("a package lies in a folder")?.to_path_buf();
    let before = std::env::var_os("PYTHONPATH").filter(|path| !path.is_empty());
    let rest = before.iter().flat_map(std::env::split_paths);
    std::env::join_paths(std::iter::once(parent).chain(rest)).context("PYTHONPATH cannot be set")
}

pub(crate) fn not_started(error: &std::io::Error, python: &OsStr) -> anyhow::Error {
    let what = format!("{} cannot be started: {error}", python.to_string_lossy());
    Failure::new(what, "put the Python that has torch on the PATH, or name it in GAPLESS_PYTHON").into()
}
