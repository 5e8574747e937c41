//! `gapless run` without a GPU and without Python: the environment of the program, and the message if it cannot start.
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

/// Lets one test run at a time, because a binary cannot be started while a process that another thread just forked
/// still holds the file open for writing.
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
fn flags_and_options_by_their_old_names_work_and_are_told() {
    let installed = Installed::new(WHOLE);
    let shown = "echo $GAPLESS_PROCESS_LIMIT $GAPLESS_RECORD_STACKS $GAPLESS_PAGES";
    let old =
        ["run", "--budget", "2GiB", "--record", "/tmp/x.gtrace", "--stacks", "python", "--set", "pages=0"];
    let (code, out, err) = installed.run(&[&old[..], &["--", "sh", "-c", shown]].concat(), &[]);
    assert_eq!((code, out.as_str()), (0, "2147483648 python 0\n"), "{err}");
    assert!(err.contains("use --process-limit") && err.contains("use --record-stacks"), "{err}");
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
        (&["run", "--set", "=1", "--", "sh"], "is not NAME=VALUE"),
        (&["run", "--set", "Sl ack=1", "--", "sh"], "did you mean slack?"),
        (&["run", "--set", "library=/x.so", "--", "sh"], "there is no option"),
        (&["run", "--budget", "1GiB", "--process-limit", "2GiB", "--", "sh"], "--process-limit"),
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

#[cfg(target_os = "linux")]
mod host {
    use super::*;

    const HOST: &[&str] = &["libgapless_malloc.so"];

    #[test]
    fn the_library_comes_first_and_the_budget_has_a_file_of_its_own() {
        let installed = Installed::new(&[WHOLE, HOST].concat());
        let run = installed.root().join("run").display().to_string();
        let shown = "cd /; echo $LD_PRELOAD $GAPLESS_HOST_LIMIT $GAPLESS_HOST_CHECK $GAPLESS_HOST_LIMIT_GPU; \
                     ls -s $GAPLESS_HOST_LIMIT_FILE";
        let flags = [
            "run",
            "--host",
            "--host-limit",
            "2GiB",
            "--host-limit-gpu",
            "--host-check",
            "--",
            "/bin/sh",
            "-c",
            shown,
        ];
        // The library's file is empty. The loader prints that and goes on, and its message shows the
        // value of LD_PRELOAD.
        let variables =
            [("GAPLESS_RUN_DIR", run.as_str()), ("PATH", "/bin:/usr/bin"), ("LD_PRELOAD", "/mine.so")];
        let mut command = Command::new(installed.binary());
        command.args(flags).env_clear().envs(variables);
        let output = command.output().expect("the binary starts");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let library = installed.package().join("libgapless_malloc.so");
        assert!(out.starts_with(&format!("{}:/mine.so 2147483648 1 1\n", library.display())), "{out}");
        assert!(out.contains(&run) && out.trim_end().ends_with(".host"), "{out}");
        let left = || fs::read_dir(&run).expect("the folder").count();
        assert_eq!(left(), 1);
        // The next run removes the file that the first left.
        assert!(Command::new(installed.binary()).args(flags).env_clear().envs(variables).output().is_ok());
        assert_eq!(left(), 1);
    }

    #[test]
    fn a_program_without_the_package_can_have_the_host_alone() {
        let alone = Installed::new(&[]);
        fs::write(alone.binary().with_file_name("libgapless_malloc.so"), "").expect("written");
        let (code, out, _) =
            alone.run(&["run", "--host", "--", "sh", "-c", "echo $LD_PRELOAD:$GAPLESS_RUN"], &[]);
        assert_eq!((code, out.trim_end().ends_with("/bin/libgapless_malloc.so:")), (0, true), "{out}");
        let (code, _, err) = alone.run(&["run", "--host", "--limit", "1GiB", "--", "sh"], &[]);
        assert_eq!(code, 2, "an option for the GPU needs the package");
        assert!(err.contains("not installed"), "{err}");
    }

    #[test]
    fn a_program_that_is_watched_for_leaks_ends_as_it_would_alone() {
        let installed = Installed::new(&[WHOLE, HOST].concat());
        // The library's file is empty: the program records nothing, and the message says so.
        let shown = "echo $GAPLESS_HOST_RECORD; exit 7";
        let (code, out, err) =
            installed.run(&["run", "--host", "--host-leaks", "--", "sh", "-c", shown], &[]);
        assert_eq!(code, 7, "{err}");
        let file = Path::new(out.trim_end());
        assert!(file.ends_with("run.gtrace") && !file.parent().expect("a folder").exists(), "{out}");
        assert!(err.contains("wrote no recording"), "{err}");
        let (code, _, _) =
            installed.run(&["run", "--host", "--host-leaks", "--", "sh", "-c", "kill -KILL $$"], &[]);
        assert_eq!(code, 128 + 9, "as a shell says it");
        // A file that is named stays where it is, and one of another process beside it is read too.
        let file = installed.root().join("mine.gtrace");
        let write = format!(
            "printf x > {0}; printf x > {1}",
            file.display(),
            file.with_extension("12.gtrace").display()
        );
        let flags = ["run", "--host", "--host-leaks", "--host-record", file.to_str().expect("a name"), "--"];
        let (code, _, err) = installed.run(&[&flags[..], &["sh", "-c", &write]].concat(), &[]);
        assert_eq!(code, 0, "{err}");
        assert!(file.is_file() && err.contains("mine.gtrace") && err.contains("mine.12.gtrace"), "{err}");
        // Signals are forwarded, so the program decides how to end.
        let script = "trap 'echo ended; exit 3' TERM; kill -TERM $PPID; i=0; while [ $i -lt 100 ]; do /bin/sleep 0.1; i=$((i+1)); done";
        let (code, out, err) =
            installed.run(&["run", "--host", "--host-leaks", "--", "sh", "-c", script], &[]);
        assert_eq!((code, out.as_str()), (3, "ended\n"), "{err}");
    }

    #[test]
    fn what_is_wrong_with_the_host_is_said() {
        let installed = Installed::new(WHOLE);
        for (args, variables, part) in [
            (&["run", "--host", "--", "sh"][..], &[][..], "libgapless_malloc.so is not installed"),
            (&["run", "--host-limit", "1GiB", "--", "sh"], &[], "--host"),
            (&["run", "--host", "--", "sh"], &[("GAPLESS_HOST_LIBRARY", "/nowhere.so")], "is not a file"),
        ] {
            let (code, out, err) = installed.run(args, variables);
            assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
            assert!(err.contains(part), "{args:?}: {err}");
        }
        drop(installed);
        let whole = Installed::new(&[WHOLE, HOST].concat());
        for wrong in ["much", "0", "-1"] {
            let limit = format!("--host-limit={wrong}");
            let (code, _, err) = whole.run(&["run", "--host", &limit, "--", "sh"], &[]);
            assert!(code == 2 && err.contains("--host-limit"), "{wrong}: {err}");
        }
    }
}
