//! Running the binary as a user does: arguments in, exit code and both streams out.
#![allow(dead_code)] // each test file uses its part

pub(crate) mod schema;

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The outcome of a run of the binary.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A file of the repository.
pub(crate) fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The traces and the cases, by name.
pub(crate) fn all_traces() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for folder in ["testdata/traces", "testdata/cases"] {
        for entry in std::fs::read_dir(repo(folder)).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if let Some(name) = name.strip_suffix(".pickle.gz") {
                found.push((name.to_owned(), path));
            }
        }
    }
    found.sort();
    assert!(found.len() >= 20, "the recorded traces are there");
    found
}

pub(crate) fn trace(name: &str) -> String {
    let in_folder = |folder: &str| repo(&format!("testdata/{folder}/{name}.pickle.gz"));
    let path = if in_folder("traces").exists() { in_folder("traces") } else { in_folder("cases") };
    path.to_str().expect("a UTF-8 path").to_owned()
}

/// Runs the binary in `folder`.
pub(crate) fn run_in(folder: &Path, args: &[&str], input: Option<&[u8]>) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(args)
        .current_dir(folder)
        .env_remove("CLICOLOR_FORCE")
        .env("NO_COLOR", "1")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("COLUMNS")
        .env("TERM", "xterm")
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    if let Some(input) = input {
        // The binary may close its end before it has read all.
        let _ = child.stdin.take().expect("a pipe").write_all(input);
    }
    let done = child.wait_with_output().expect("the binary ends");
    Run {
        code: done.status.code().expect("an exit code, not a signal"),
        out: String::from_utf8(done.stdout).expect("UTF-8 on standard output"),
        err: String::from_utf8(done.stderr).expect("UTF-8 on standard error"),
    }
}

/// Runs the binary in `testdata` with relative paths, so that shortened paths are the same in every checkout.
pub(crate) fn run(args: &[&str]) -> Run {
    let root = format!("{}/", repo("testdata").display());
    let args: Vec<&str> = args.iter().map(|arg| arg.strip_prefix(&root).unwrap_or(arg)).collect();
    run_in(&repo("testdata"), &args, None)
}

/// The JSON report of a trace.
pub(crate) fn report(path: &str) -> Value {
    let run = run(&["report", path, "--format", "json"]);
    assert_eq!(run.code, 0, "{}", run.err);
    serde_json::from_str(&run.out).expect("JSON")
}

/// Exit code and both streams, for a snapshot; the repository's own path left out.
pub(crate) fn shown(run: &Run) -> String {
    let root = repo("testdata").display().to_string();
    format!("exit {}\n--- out\n{}--- err\n{}", run.code, run.out, run.err).replace(&format!("{root}/"), "")
}
