//! `gapless run --host`: puts `libgapless_malloc.so` below the program with LD_PRELOAD, which its children inherit.
//!
//! A budget is a page that all these processes share. `gapless run` makes its file, named after its own process
//! number, which the program will have, and removes those of programs that have ended.

use crate::cli::run::RunArgs;
use crate::failure::Failure;
use crate::sizes;
use anyhow::Result;
use gapless_stats::{Folder, Process, folder, process};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(super) const LIBRARY: &str = "libgapless_malloc.so";
/// The variable that names a library at another place.
const VARIABLE: &str = "GAPLESS_HOST_LIBRARY";
/// The ending of a budget's file.
const END: &str = ".host";

/// The variables that put the library below the program. `package`: the Python package, if there is one.
pub(super) fn variables(args: &RunArgs, package: Option<&Path>) -> Result<Vec<(String, OsString)>> {
    // The limit is parsed before the library is searched, so that an invalid value is reported even without a library.
    let limit = args.host_limit.as_deref().map(limit).transpose()?;
    let library = library(package)?;
    let mut set = vec![("LD_PRELOAD".to_owned(), preload(&library)?)];
    // Statistics cost two writes a second, in processes that have large buffers.
    if std::env::var_os("GAPLESS_HOST_STATS").is_none() {
        set.push(("GAPLESS_HOST_STATS".to_owned(), "1".into()));
    }
    if args.host_check {
        set.push(("GAPLESS_HOST_CHECK".to_owned(), "1".into()));
    }
    if let Some(file) = &args.host_record {
        set.push(("GAPLESS_HOST_RECORD".to_owned(), super::recording("--host-record", file)?.into()));
    }
    if let Some(limit) = limit {
        set.push(("GAPLESS_HOST_LIMIT".to_owned(), limit.into()));
        set.push(("GAPLESS_HOST_LIMIT_FILE".to_owned(), budget_file()?.into_os_string()));
        if args.host_limit_gpu {
            set.push(("GAPLESS_HOST_LIMIT_GPU".to_owned(), "1".into()));
        }
    }
    Ok(set)
}

fn limit(text: &str) -> Result<String> {
    if text.trim().eq_ignore_ascii_case("auto") {
        return Ok("auto".to_owned());
    }
    let bytes = sizes::positive("--host-limit", text, "200GiB")?;
    Ok(bytes.0.to_string())
}

/// The library's path: named by the variable, beside this binary, or in the Python package.
fn library(package: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        if named.is_file() {
            return Ok(std::path::absolute(named)?);
        }
        let what = format!("{VARIABLE} names {}, which is not a file", named.display());
        return Err(Failure::new(what, format!("it must name {LIBRARY}, or be unset")).into());
    }
    let binary = std::env::current_exe().ok().map(|path| path.canonicalize().unwrap_or(path));
    let beside = binary.as_deref().and_then(Path::parent).map(|folder| folder.join(LIBRARY));
    let inside = package.map(|package| package.join(LIBRARY));
    let found = inside.into_iter().chain(beside).find(|path| path.is_file());
    found.ok_or_else(|| {
        let help = format!(
            "`pip install .` installs it, `cargo build --release -p gapless-malloc` builds it; {VARIABLE} names one \
             that is elsewhere"
        );
        Failure::new(format!("--host: {LIBRARY} is not installed"), help).into()
    })
}

/// The value of LD_PRELOAD with the library in front. Spaces and colons separate names in it.
fn preload(library: &Path) -> Result<OsString> {
    let name = library.as_os_str();
    if name.as_encoded_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        let what = format!("{} cannot be preloaded: its name has a space or a colon", library.display());
        return Err(Failure::new(what, "copy the library to a folder without them").into());
    }
    let mut all = name.to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        let is_other = |part: &&[u8]| !part.is_empty() && *part != name.as_encoded_bytes();
        for part in before.as_encoded_bytes().split(|byte| b" :".contains(byte)).filter(is_other) {
            all.push(":");
            all.push(OsStr::from_bytes(part));
        }
    }
    Ok(all)
}

/// A new file for the budget's page. The program replaces this process, so the file is named after this process.
fn budget_file() -> Result<PathBuf> {
    let wrong = |what: String| {
        let help = format!("{} names a folder that only you can access", folder::VARIABLE);
        Failure::new(format!("--host-limit: the budget's file cannot be made: {what}"), help)
    };
    let folder = Folder::make(&folder::candidates()).map_err(|error| wrong(error.to_string()))?;
    sweep(&folder);
    let own = Process::current("gapless run").ok_or_else(|| wrong("there is no /proc".to_owned()))?;
    let path = folder.path().join(own.file_name()).with_extension(&END[1..]);
    let _ = std::fs::remove_file(&path);
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// Removes the budgets of programs that have ended.
fn sweep(folder: &Folder) {
    let here = process::namespace();
    for entry in std::fs::read_dir(folder.path()).into_iter().flatten().filter_map(Result::ok).take(4096) {
        let name = entry.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(END));
        let Some((pid, start, namespace)) =
            stem.and_then(|stem| process::parse_name(&format!("{stem}.stats")))
        else {
            continue;
        };
        if here == Some(namespace) && process::start_of(pid) != Some(start) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
