//! A panic in any worker of any pipeline ends the command: at once, with its message and exit code 101, and with
//! nothing half-written. In development builds, `GAPLESS_TEST_PANIC` names the place of a panic (`gapless-threads`).

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{repo, trace};

/// Pipelines that no command of this list runs, and their tests.
const ELSEWHERE: &[(&str, &str)] = &[
    ("load", "crates/gapless-loader/tests/loading.rs"),
    ("watch of nodes", "a service: its thread ends the process"),
    ("watch of pods", "a service"),
    ("retries", "a service"),
    ("expiry", "a service"),
    ("fleet agent", "a service"),
];

/// Files that start threads themselves, and the reason.
const OWN_THREADS: &[(&str, &str)] = &[
    ("gapless-threads/src/", "the mechanism"),
    ("gapless-loader/src/load.rs", "a loading that its caller waits for: a panic becomes its error"),
    ("gapless-plan/src/exact/mod.rs", "a stack of its own size; it is joined at once, and its panic goes on"),
    ("gapless-grpc/src/server.rs", "a service: a panic ends its connection"),
    ("gapless-kube/src/serve.rs", "a service"),
    ("gapless-kube/src/auto.rs", "a service: a panic becomes the answer, which tells its pods"),
    ("gapless/src/commands/metrics/server.rs", "a service: a panic ends its connection"),
    ("gapless/src/commands/fleet/", "a service"),
    ("gapless/src/commands/top/terminal.rs", "waits for keys"),
    ("gapless-torch/", "threads of a library within a program"),
    ("gapless-cuda/", "as above"),
    ("gapless-host/", "as above"),
    ("gapless-malloc/", "as above"),
    ("gapless-pool/", "as above"),
];

/// A pipeline, a command that runs it in a folder with the files of `prepare`, and the files that it would write.
const CASES: &[(&str, &[&str], &[&str])] = &[
    ("decompression", &["report", "TRACE", "-o", "out.txt"], &["out.txt"]),
    ("events", &["report", "TRACE", "-o", "out.txt"], &["out.txt"]),
    ("analysis", &["report", "TRACE", "-o", "out.txt"], &["out.txt"]),
    ("curve", &["report", "TRACE", "--format", "html", "-o", "out.html"], &["out.html"]),
    ("page", &["report", "TRACE", "--format", "html", "-o", "out.html"], &["out.html"]),
    ("ranks", &["report", "ranks", "-o", "out.txt"], &["out.txt"]),
    ("replays", &["replay", "TRACE", "-o", "out.txt"], &["out.txt"]),
    ("sweep", &["advise", "TRACE", "-o", "out.txt"], &["out.txt"]),
    ("replay of a fit", &["fit", "gpt2", "--batch", "4", "--seq", "512", "--gpu", "4090"], &[]),
    ("plan", &["plan", "buffers.csv", "--threads", "2", "-o", "out.csv"], &["out.csv"]),
    (
        "plan of several memories",
        &["plan", "busy.csv", "--spaces", "spaces.toml", "--threads", "2", "-o", "out.json"],
        &["out.json"],
    ),
    ("pack", &["weights", "pack", "model", "-o", "out", "--threads", "3"], &["out/a.safetensors"]),
    ("pack", &["weights", "pack", "model", "-o", "out", "--threads", "1"], &["out/a.safetensors"]),
    ("unpack", &["weights", "unpack", "packed", "-o", "out", "--threads", "3"], &["out/a.safetensors"]),
    ("unpack", &["weights", "verify", "packed", "--threads", "3"], &[]),
    (
        "rows",
        &["weights", "unpack", "packed", "-o", "out", "--rank", "0", "--world", "2", "--threads", "3"],
        &["out/a.safetensors"],
    ),
    (
        "quantize",
        &["weights", "quantize", "model", "-o", "out", "--scheme", "fp8", "--threads", "3"],
        &["out"],
    ),
];

/// Files of all cases.
fn prepare(folder: &Path) {
    let at = |name: &str| folder.join(name);
    fs::create_dir_all(at("ranks")).expect("made");
    for rank in 0..3 {
        fs::copy(trace("gpt2_train"), at(&format!("ranks/rank{rank}.pickle.gz"))).expect("copied");
    }
    let rows: Vec<String> = (0..40u64)
        .map(|at| format!("{at},{},{},{}", at % 7, at % 7 + 3 + at % 5, 64 * (1 + at * 37 % 11)))
        .collect();
    fs::write(at("buffers.csv"), format!("id,lower,upper,size\n{}\n", rows.join("\n"))).expect("written");
    fs::write(at("busy.csv"), "id,lower,upper,size,accesses\na,0,4,8,1\nb,0,4,8,5\nc,4,6,8,1\n")
        .expect("written");
    let spaces =
        "[[space]]\nname = \"sram\"\ncapacity = \"8\"\ncost = 1\n[[space]]\nname = \"dram\"\ncost = 10\n";
    fs::write(at("spaces.toml"), spaces).expect("written");
    fs::create_dir(at("model")).expect("made");
    let values: Vec<u8> = (0..200_000u64)
        .flat_map(|at| ((((at * 37 % 101) as f32 - 50.0) * 0.01).to_bits() >> 16).to_le_bytes()[..2].to_vec())
        .collect();
    let header = "{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[400,500],\"data_offsets\":[0,400000]}}";
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &values].concat();
    fs::write(at("model/a.safetensors"), file).expect("written");
    let done = support::run_in(folder, &["weights", "pack", "model", "-o", "packed"], None);
    assert_eq!(done.code, 0, "{}", done.err);
}

/// Exit code and standard error of a command in which `panic` happens; an error if it does not end.
fn run(folder: &Path, args: &[&str], panic: &str) -> (Option<i32>, String) {
    let (err, train) = (folder.join("err"), trace("gpt2_train"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(args.iter().map(|arg| if *arg == "TRACE" { train.as_str() } else { arg }))
        .current_dir(folder)
        .env("GAPLESS_TEST_PANIC", panic)
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&err).expect("made"))
        .spawn()
        .expect("the binary starts");
    let began = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status.code(),
            // Far above any run's time, so it only catches a command that hangs.
            None if began.elapsed() > Duration::from_secs(120) => {
                child.kill().expect("killed");
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    (status, fs::read_to_string(&err).expect("written"))
}

#[test]
fn a_panic_in_any_worker_ends_the_command_with_its_message() {
    let folder = tempfile::tempdir().expect("a folder");
    prepare(folder.path());
    for (name, args, outputs) in CASES {
        // The first piece of work, and a later one, which may be on another thread.
        for (number, must_panic) in [(0, true), (1, false)] {
            let (code, err) = run(folder.path(), args, &format!("{name}:{number}"));
            let told = format!("{name}:{number}, {args:?}: {code:?} {err}");
            let message = format!("a test asked for a panic of {name}, piece of work {number}");
            if !must_panic && code == Some(0) {
                // This pipeline has only one piece of work.
                outputs.iter().for_each(|path| remove(&folder.path().join(path)));
                remove(&folder.path().join("out"));
                continue;
            }
            assert_eq!(code, Some(101), "{told}");
            assert_eq!(err.matches(&message).count(), 1, "{told}");
            assert!(err.contains("this is a bug in gapless: please report it"), "{told}");
            for path in *outputs {
                assert!(!folder.path().join(path).exists(), "{told}: {path} is there");
            }
            let parts = parts(folder.path());
            assert!(parts.is_empty(), "{told}: {parts:?}");
            remove(&folder.path().join("out"));
        }
    }
}

fn remove(path: &Path) {
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// Unfinished files of writers, anywhere below a folder.
fn parts(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().ends_with(".part") {
            found.push(path);
        } else if path.is_dir() {
            found.extend(parts(&path));
        }
    }
    found
}

/// All Rust sources of the crates, without tests and examples.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_pipeline_is_in_this_list_and_no_other_code_starts_threads() {
    let (mut files, mut names) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(repo("crates")).expect("crates").flatten() {
        sources(&entry.path().join("src"), &mut files);
    }
    assert!(files.len() > 300, "{}", files.len());
    let root = repo("crates");
    for file in files {
        let path = file.strip_prefix(&root).expect("below").to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).expect("text");
        // Unit tests may start threads themselves.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_own = OWN_THREADS.iter().any(|(known, _)| path.starts_with(known));
        let starts =
            ["thread::spawn", "thread::scope", "spawn_scoped"].iter().any(|word| text.contains(word));
        assert!(
            is_own || !starts || path.ends_with("tests.rs"),
            "{path} starts threads: use gapless-threads"
        );
        if path.starts_with("gapless-threads/") {
            continue;
        }
        for call in ["each(", "ordered(", "both(", "alongside(", "crew(", "or_exit(", "point("] {
            for (at, _) in text.match_indices(call) {
                let is_ours = text[..at].ends_with("gapless_threads::") || call == "or_exit(";
                let rest = text[at + call.len()..].trim_start();
                if let Some(name) = rest.strip_prefix('"').filter(|_| is_ours) {
                    names.insert(name.split('"').next().unwrap_or_default().to_owned());
                } else {
                    assert!(!is_ours, "{path}: a pipeline needs a name that stands there: {}", &rest[..40]);
                }
            }
        }
    }
    let listed: BTreeSet<String> = CASES
        .iter()
        .map(|case| case.0)
        .chain(ELSEWHERE.iter().map(|other| other.0))
        .map(str::to_owned)
        .collect();
    assert_eq!(names, listed);
}
