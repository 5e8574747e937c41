//! `gapless keep`: holds weights on a GPU for other processes. The Python package does the work; this command
//! replaces itself with that process, so that signals reach it.

use crate::Answer;
use crate::cli::keep::KeepArgs;
use crate::commands::estimate::{interpreter, not_started, path};
use crate::commands::run::package;
use crate::failure::Failure;
use anyhow::Result;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) fn run(args: &KeepArgs) -> Result<Answer> {
    if let Some(missing) = args.files.iter().find(|file| !file.exists()) {
        let what = format!("{}: no such file", missing.display());
        let help = "name a safetensors file, as in `gapless keep model.safetensors --name llama`";
        return Err(Failure::new(what, help).into());
    }
    let python = interpreter();
    let package = package(&python)?;
    let mut command = Command::new(&python);
    command.args(["-m", "gapless.keep", "--device", &args.device.to_string()]);
    if let Some(name) = &args.name {
        command.arg(format!("--name={name}"));
    }
    command.arg("--").args(&args.files);
    command.env("PYTHONPATH", path(&package)?);
    // `exec` returns only if the program cannot be started.
    Err(not_started(&command.exec(), &python))
}
