//! `gapless run`: starts a program on the Gapless allocator, through its environment.
//!
//! The Python package has a folder whose `sitecustomize.py` installs an import hook. `gapless run` puts this folder
//! first in PYTHONPATH, which child processes inherit, and turns flags into GAPLESS_* variables. It checks the names of
//! options; the package checks the values of those without a flag when torch is imported. On Unix the program replaces
//! this process, so signals and the exit code are its own. Only `--host-leaks` waits for it.
//!
//! `--host` also puts Gapless below `malloc`. A program without torch may have it alone, so the package may be missing
//! then, unless an option for the GPU was given.

#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod leaks;

use crate::Answer;
use crate::cli::run::{RecordStacks, RunArgs};
use crate::failure::{self, Failure};
use crate::{near, options, sizes};
use anyhow::{Context, Result};
use gapless_ledger::Share;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file by which the package's folder is recognized.
const HOOK: &str = "_run/sitecustomize.py";
const LIBRARY: &str = "libgapless_torch.so";

pub(crate) fn run(args: &RunArgs) -> Result<Answer> {
    let (program, rest) = args.command.split_first().context("clap asks for a command")?;
    let options = options(args)?;
    let package = match package_with_library(program) {
        Err(_) if args.host && options.is_empty() => None,
        package => Some(package?),
    };
    let mut command = Command::new(program);
    command.args(rest);
    if let Some(package) = &package {
        command.envs(options).env("GAPLESS_RUN", "1").env("PYTHONPATH", python_path(package)?);
    }
    if args.host {
        command.envs(host_variables(args, package.as_deref())?);
    }
    #[cfg(target_os = "linux")]
    if args.host_leaks {
        let recordings = leaks::Recordings::prepare(args.host_record.as_deref())?;
        command.env("GAPLESS_HOST_RECORD", recordings.file());
        return leaks::run(command, program, recordings);
    }
    start(command, program)
}

#[cfg(target_os = "linux")]
fn host_variables(args: &RunArgs, package: Option<&Path>) -> Result<Vec<(String, OsString)>> {
    host::variables(args, package)
}

#[cfg(not(target_os = "linux"))]
fn host_variables(_: &RunArgs, _: Option<&Path>) -> Result<Vec<(String, OsString)>> {
    Err(Failure::new("--host works on Linux only", "leave it out").into())
}

/// The flags as variables. Sizes are checked here, so that a mistake is reported before the program starts.
fn options(args: &RunArgs) -> Result<Vec<(String, String)>> {
    let mut set = Vec::new();
    for (is_given, old, name) in [
        (args.budget.is_some(), "budget", "process-limit"),
        (args.stacks.is_some(), "stacks", "record-stacks"),
    ] {
        if is_given {
            failure::note(&format!("--{old} is the old name of --{name}: use --{name}"));
        }
    }
    let sizes = [
        ("reserve", &args.reserve),
        ("limit", &args.limit),
        ("process-limit", args.process_limit.as_ref().map_or(&args.budget, |_| &args.process_limit)),
        ("record-limit", &args.record_limit),
        ("stream-weights", &args.stream_weights),
        ("train-in", &args.train_in),
    ];
    for (name, value) in sizes {
        if let Some(text) = value {
            let bytes = sizes::parse(&format!("--{name}"), text, "60GiB")?;
            set.push((variable(&name.replace('-', "_")), bytes.0.to_string()));
        }
    }
    if let Some(text) = &args.tenant {
        set.push((variable("tenant"), share(text)?));
    }
    if args.stats {
        set.push((variable("stats"), "1".to_owned()));
    }
    if args.check {
        set.push((variable("check"), "1".to_owned()));
    }
    if let Some(file) = &args.record {
        set.push((variable("record"), recording("--record", file)?));
        if args.stacks.unwrap_or(args.record_stacks) == RecordStacks::Python {
            set.push((variable("record_stacks"), "python".to_owned()));
        }
    }
    for pair in &args.set {
        let wrong = || {
            Failure::new(format!("--set {pair:?} is not NAME=VALUE"), "for example --set largest_page=32MiB")
        };
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        let name = name.trim();
        if name.is_empty() || value.contains('\0') {
            return Err(wrong().into());
        }
        let known: Vec<options::Row> = options::rows().filter(options::Row::is_keyword).collect();
        if !known.iter().any(|row| row.name == name || row.old == name) {
            let names: Vec<&str> = known.iter().map(|row| row.name).collect();
            let near = near::near(name, names.iter().copied());
            let help = if near.is_empty() {
                names.join(", ")
            } else {
                format!("did you mean {}?", near::alternatives(&near))
            };
            return Err(Failure::new(format!("--set {pair:?}: there is no option {name:?}"), help).into());
        }
        set.push((variable(name), value.trim().to_owned()));
    }
    Ok(set)
}

/// A tenant's share, in the form that the package reads. The ledger's own parser checks it.
fn share(text: &str) -> Result<String> {
    let checked = text.parse::<Share>();
    checked.map_err(|error| {
        Failure::new(format!("--tenant: {error}"), "for example --tenant a:30GiB, a:60% or a:30GiB:borrow")
    })?;
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    if let Some(size) = parts.get(1).filter(|size| !size.ends_with('%')) {
        sizes::parse("--tenant", size, "30GiB")?;
    }
    Ok(parts.join(":"))
}

/// The absolute path of the recording, because the program may change its folder.
fn recording(flag: &str, file: &Path) -> Result<String> {
    let help = format!("for example {flag} run.gtrace");
    let wrong = |what: &str| Failure::new(format!("{flag} {}: {what}", file.display()), help.clone());
    let whole = std::path::absolute(file).map_err(|error| wrong(&error.to_string()))?;
    if whole.is_dir() || file.file_name().is_none() {
        return Err(wrong("is a folder").into());
    }
    if !whole.parent().is_some_and(Path::is_dir) {
        return Err(wrong("its folder does not exist").into());
    }
    Ok(whole.to_str().ok_or_else(|| wrong("the name is not UTF-8"))?.to_owned())
}

fn variable(option: &str) -> String {
    format!("GAPLESS_{}", option.to_ascii_uppercase())
}

fn python_path(package: &Path) -> Result<OsString> {
    let hook = package.join("_run");
    let before = std::env::var_os("PYTHONPATH").filter(|path| !path.is_empty());
    let rest: Vec<PathBuf> =
        before.iter().flat_map(std::env::split_paths).filter(|folder| *folder != hook).collect();
    std::env::join_paths(std::iter::once(hook.clone()).chain(rest)).map_err(|_| {
        let what = format!("{} cannot be a part of PYTHONPATH", hook.display());
        Failure::new(what, "install gapless in a folder without `:` in its name").into()
    })
}

/// The Python package: beside this binary (both come in one wheel), or the one that the program's Python imports.
pub(crate) fn package(program: &OsStr) -> Result<PathBuf> {
    beside_binary().or_else(|| imported(program)).ok_or_else(|| {
        let help = "`pip install .` in the repository installs it, with this command beside it";
        Failure::new("the Python package gapless is not installed", help).into()
    })
}

/// The package, with the library that torch loads.
fn package_with_library(program: &OsStr) -> Result<PathBuf> {
    let package = package(program)?;
    if std::env::var_os("GAPLESS_LIBRARY").is_none() && !package.join(LIBRARY).is_file() {
        let what = format!("the Python package in {} has no {LIBRARY}", package.display());
        let help = "`pip install .` builds it; GAPLESS_LIBRARY names one that is elsewhere";
        return Err(Failure::new(what, help).into());
    }
    Ok(package)
}

/// `bin/gapless` and `lib/python3.X/site-packages/gapless` of one environment; in a source tree, `python/gapless` above
/// `target`.
fn beside_binary() -> Option<PathBuf> {
    let binary = std::env::current_exe().ok()?;
    let binary = binary.canonicalize().unwrap_or(binary);
    let is_package = |folder: &PathBuf| folder.join(HOOK).is_file();
    let environment = binary.parent()?.parent()?;
    let mut installed: Vec<PathBuf> = ["lib", "lib64"]
        .iter()
        .filter_map(|lib| std::fs::read_dir(environment.join(lib)).ok())
        .flat_map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())))
        .flat_map(|python| ["site-packages/gapless", "dist-packages/gapless"].map(|tail| python.join(tail)))
        .filter(is_package)
        .collect();
    installed.sort();
    installed
        .pop()
        .or_else(|| binary.ancestors().map(|folder| folder.join("python/gapless")).find(is_package))
}

/// The package that the program's own interpreter finds; if the program is not an interpreter, the one on the PATH.
fn imported(program: &OsStr) -> Option<PathBuf> {
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let own = name.starts_with("python").then(|| program.to_owned());
    own.into_iter().chain(["python3".into(), "python".into()]).find_map(|python: OsString| {
        let ask = "import importlib.util as u; print(u.find_spec('gapless').submodule_search_locations[0])";
        let done = Command::new(python).args(["-c", ask]).stdin(Stdio::null()).output().ok()?;
        let folder = PathBuf::from(String::from_utf8(done.stdout).ok()?.trim());
        (done.status.success() && folder.join(HOOK).is_file()).then_some(folder)
    })
}

#[cfg(unix)]
fn start(mut command: Command, program: &OsStr) -> Result<Answer> {
    use std::os::unix::process::CommandExt;
    // `exec` returns only if the program cannot be started.
    Err(not_started(&command.exec(), program))
}

#[cfg(not(unix))]
fn start(mut command: Command, program: &OsStr) -> Result<Answer> {
    let status = command.status().map_err(|error| not_started(&error, program))?;
    std::process::exit(status.code().unwrap_or(2))
}

fn not_started(error: &std::io::Error, program: &OsStr) -> anyhow::Error {
    let name = program.to_string_lossy();
    let help = if error.kind() == std::io::ErrorKind::NotFound {
        "is it on the PATH? the command comes after `--`, as in `gapless run -- python train.py`"
    } else {
        "the command comes after `--`, as in `gapless run -- python train.py`"
    };
    Failure::new(format!("{name} cannot be started: {error}"), help).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_passes_here_exactly_where_the_ledger_accepts_it() {
        let long = format!("{}:1GiB", "n".repeat(64));
        for text in [
            "a:30GiB",
            "a:60%",
            "a:60%:borrow",
            " a : 1.5g : borrow ",
            "a:12.5%",
            "a b:60%",
            "a/b:1",
            "é:1GiB",
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:0%",
            "a:101%",
            "a:1e9",
            "a:33.333%",
            "a:1:lend",
            "a:1:borrow:x",
            "a:+5%",
            "a:NaN%",
            "a:1PiB",
            &long,
        ] {
            let accepted = text.parse::<Share>();
            assert_eq!(share(text).is_ok(), accepted.is_ok(), "{text:?}");
            if let Ok(handed) = share(text) {
                assert_eq!(handed.parse::<Share>(), accepted, "the program reads the same: {text:?}");
            }
        }
        assert!(share("a:30").is_err_and(|error| error.to_string().contains("has no unit")));
    }
}
