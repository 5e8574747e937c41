//! `gapless run` without a GPU and without Python: what the program finds in its environment, and what is said where it
//! cannot start.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An environment as pip makes it, with the command and (maybe) the package and its library.
struct Installed {
    folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// One at a time: a binary cannot be started while a process that another thread just forked still holds the file open
/// for writing.
static ALONE: Mutex<()> = Mutex::new(());

impl Installed {
    fn new(files: &[&str]) -> Installed {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let installed = Installed { folder: tempfile::tempdir().expect("a folder"), _alone: alone };
        let binary = installed.binary();
        fs::create_dir_all(binary.parent().expect("bin")).expect("a folder");
        fs::copy(env!("CARGO_BIN_EXE_gapless"), &binary).expect("copied");
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).expect("executable");
        for file in files {
            let path = installed.package().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, "").expect("written");
        }
        installed
    }

    fn root(&self) -> PathBuf {
        self.folder.path().canonicalize().expect("a path")
    }

    fn binary(&self) -> PathBuf {
        self.root().join("bin/gapless")
    }

    fn package(&self) -> PathBuf {
        self.root().join("lib/python3.9/site-packages/gapless")
    }

    /// Runs the command; only the shell and its tools are on the path, so no interpreter is asked.
    fn run(&self, args: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
        let tools = self.root().join("tools");
        fs::create_dir_all(&tools).expect("a folder");
        if !tools.join("sh").exists() {
            std::os::unix::fs::symlink(Path::new("/bin/sh"), tools.join("sh")).expect("linked");
        }
        let mut command = Command::new(self.binary());
        command.args(args).env_clear().env("PATH", tools).env("NO_COLOR", "1");
        command.envs(environment.iter().copied());
        let Output { status, stdout, stderr } = command.output().expect("the binary starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (status.code().expect("a code"), text(stdout), text(stderr))
    }
}

const WHOLE: &[&str] = &["_run/sitecustomize.py", "libgapless_torch.so"];

#[test]
fn the_program_gets_the_hook_the_options_its_arguments_and_its_exit_code() {
    let installed = Installed::new(WHOLE);
    let shown = "echo $PYTHONPATH $GAPLESS_RUN $GAPLESS_RESERVE $GAPLESS_LIMIT $GAPLESS_STATS $GAPLESS_CHECK $GAPLESS_LARGEST_PAGE \"$1\"; exit 7";
    let flags = ["run", "--reserve", "1GiB", "--stats", "--check", "--set", "largest_page=32MiB"];
    let words = [&flags[..], &["--", "sh", "-c", shown, "sh", "--a b"]].concat();
    let (code, out, err) = installed.run(&words, &[("PYTHONPATH", "/mine"), ("GAPLESS_LIMIT", "5GiB")]);
    let hook = installed.package().join("_run");
    assert_eq!(out, format!("{}:/mine 1 1073741824 5GiB 1 1 32MiB --a b\n", hook.display()));
    assert_eq!((code, err.as_str()), (7, ""));
}

#[test]
fn run_within_run_names_the_folder_once() {
    let installed = Installed::new(WHOLE);
    let inner = installed.binary().display().to_string();
    let words = ["run", "--", &inner, "run", "--", "sh", "-c", "echo $PYTHONPATH"];
    let (code, out, err) = installed.run(&words, &[]);
    assert_eq!(
        (code, out.trim_end()),
        (0, installed.package().join("_run").to_str().expect("UTF-8")),
        "{err}"
    );
}

#[test]
fn what_is_wrong_is_said_before_anything_starts() {
    let installed = Installed::new(WHOLE);
    for (args, part) in [
        (&["run", "--", "no-such-program"][..], "no-such-program cannot be started"),
        (&["run", "--reserve", "much", "--", "sh"], "--reserve"),
        (&["run", "--set", "slack", "--", "sh"], "is not NAME=VALUE"),
        (&["run", "--set", "Sl ack=1", "--", "sh"], "is not NAME=VALUE"),
        (&["run"], "<COMMAND>"),
    ] {
        let (code, out, err) = installed.run(args, &[]);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains(part), "{args:?}: {err}");
    }
}

#[test]
fn a_package_that_is_missing_or_has_no_library_is_said() {
    let (code, _, err) = Installed::new(&[]).run(&["run", "--", "sh"], &[]);
    assert_eq!(code, 2);
    assert!(err.contains("not installed") && err.contains("pip install ."), "{err}");
    let without = Installed::new(&["_run/sitecustomize.py"]);
    let (code, _, err) = without.run(&["run", "--", "sh", "-c", "exit 0"], &[]);
    assert_eq!(code, 2);
    assert!(err.contains("libgapless_torch.so"), "{err}");
    let (code, _, err) =
        without.run(&["run", "--", "sh", "-c", "exit 0"], &[("GAPLESS_LIBRARY", "/other.so")]);
    assert_eq!(code, 0, "{err}");
}
