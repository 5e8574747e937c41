//! `gapless estimate`: the memory of a script without a GPU. The Python package does the work, in the Python that has
//! the script's torch; this finds both and hands the question over. The exit code is the package's.

use crate::Answer;
use crate::cli::estimate::EstimateArgs;
use crate::commands::run::package;
use crate::failure::Failure;
use anyhow::{Context, Result};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

pub(crate) fn run(args: &EstimateArgs) -> Result<Answer> {
    if !args.script.is_file() {
        let what = format!("{}: no such file", args.script.display());
        let help = "name a Python script, as in `gapless estimate train.py -- --batch 8`";
        return Err(Failure::new(what, help).into());
    }
    let python = std::env::var_os("GAPLESS_PYTHON").unwrap_or_else(|| "python3".into());
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
    command.args(["--steps", &args.steps.to_string(), "--nproc", &args.nproc.to_string()]);
    if let Some(file) = &args.save {
        command.arg("--save").arg(file);
    }
    command.arg(&args.script).arg("--").args(&args.arguments);
    command.env("PYTHONPATH", path(&package)?);
    if let Ok(own) = std::env::current_exe() {
        // The package asks this program for the page.
        command.env("GAPLESS_PROGRAM", own);
    }
    let status = command.status().map_err(|error| not_started(&error, &python))?;
    std::process::exit(status.code().unwrap_or(2))
}

/// The folder that the package lies in, before what was there.
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
