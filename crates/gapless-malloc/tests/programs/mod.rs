//! Programs in C and C++, compiled and run under the library.
#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The library of this build: beside the test's own binary, or one folder above.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folders = test.ancestors().skip(1).take(2);
    let mut found: Vec<PathBuf> =
        folders.map(|folder| folder.join("libgapless_malloc.so")).filter(|path| path.is_file()).collect();
    found.sort_by_key(|path| path.metadata().and_then(|meta| meta.modified()).ok());
    found.pop().expect("cargo built the library before its tests")
}

/// Compiles a program of `tests/programs/`. Tests run side by side, so each has a file of its own.
pub fn build(name: &str) -> PathBuf {
    compile(name, &[])
}

/// Compiles a library of `tests/programs/`.
pub fn build_library(name: &str) -> PathBuf {
    compile(name, &["-shared".as_ref(), "-fPIC".as_ref()])
}

/// Compiles a program that needs a library, which is loaded with it.
pub fn build_with(name: &str, library: &Path) -> PathBuf {
    compile(name, &["-Wl,--no-as-needed".as_ref(), library.as_os_str()])
}

fn compile(name: &str, more: &[&OsStr]) -> PathBuf {
    static BUILT: AtomicU32 = AtomicU32::new(0);
    let number = BUILT.fetch_add(1, Ordering::Relaxed);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{}_{}_{number}",
        name.replace('.', "_"),
        std::process::id()
    ));
    let compiler = if name.ends_with(".cpp") { "c++" } else { "cc" };
    let done = Command::new(compiler)
        // Without the flags the compiler leaves out allocations that have no effect, and refuses planted mistakes.
        .args(["-O1", "-g", "-w", "-fno-builtin", "-rdynamic", "-pthread", "-o"])
        .args([&binary, &source])
        .args(more)
        .arg("-ldl")
        .output()
        .expect("a C compiler is there");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    binary
}

pub fn run(program: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.args(args).env("LD_PRELOAD", library()).envs(variables.iter().copied());
    command.output().expect("the program starts")
}

pub fn words(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

pub fn passes(program: &Path, args: &[&str], variables: &[(&str, &str)], said: &str) {
    let output = run(program, args, variables);
    let (out, error) = words(&output);
    assert!(output.status.success() && out.contains(said), "{:?}\n{out}\n{error}", output.status);
}

/// Runs a program without the library and then with it: right without must be right with. A program that hangs is
/// ended.
pub fn same(program: &Path, args: &[&str], variables: &[(&str, &str)]) {
    for library in [None, Some(library())] {
        let mut command = Command::new("timeout");
        command.arg("--signal=KILL").arg("120").arg(program).args(args);
        if let Some(library) = &library {
            command.env("LD_PRELOAD", library).envs(variables.iter().copied());
        }
        let output = command.output().expect("the program starts");
        let (out, error) = words(&output);
        let with = if library.is_some() { "with" } else { "without" };
        assert!(
            output.status.success() && out.trim_end().ends_with("ok"),
            "{args:?} {with} the library, {variables:?}: {:?}\n{out}\n{error}",
            output.status
        );
    }
}
