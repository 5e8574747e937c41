//! Every file in `testdata/hostile` ends in an error, or is accepted with a note if its name says so; none makes the
//! reader panic or hold more than 64 MiB. The memory of the whole process is measured, so this test has a file of its
//! own.

use gapless_ingest::{Problem, ReadOptions, open};
use gapless_trace::History;
use std::path::{Path, PathBuf};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hostile");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder of hostile files")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_none())
        .collect();
    files.sort();
    files
}

/// The most memory that the process held, in bytes; `None` if the system does not say.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn hostile_files_end_in_errors_and_stay_small() {
    let before = peak();
    let files = files();
    assert!(files.len() > 100, "{} files", files.len());
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let result = open(&path, &ReadOptions::default());
        match &result {
            Ok(trace) => {
                assert!(name.starts_with("accepted"), "{name} was accepted");
                for device in &trace.devices {
                    let _ = History::rebuild(trace, device);
                }
            }
            Err(error) => {
                assert!(!name.starts_with("accepted"), "{error}");
                let text = error.problem.to_string();
                assert!(text.len() > 20 && text.len() < 500, "{name}: {text}");
            }
        }
        match (name.strip_prefix("code_"), result) {
            (Some("inside_event"), Err(error)) => {
                assert!(matches!(error.problem, Problem::Code { opcode: "GLOBAL", .. }), "{error}");
            }
            (Some(opcode), Err(error)) => {
                let Problem::Code { opcode: found, offset } = error.problem else { panic!("{error}") };
                assert_eq!(found, opcode);
                assert!(offset >= 2);
            }
            _ => {}
        }
        if let (Some(before), Some(now)) = (before, peak()) {
            assert!(now < before + (64 << 20), "{name}: {} MiB", (now - before) >> 20);
        }
    }
}

#[test]
fn accepted_files_say_what_was_odd() {
    for (file, code) in [
        ("accepted_trailing_bytes", "trailing-bytes"),
        ("accepted_name_not_utf8", "names-not-utf8"),
        ("accepted_unknown_action", "unknown-actions"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hostile").join(file);
        let trace = open(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        let codes: Vec<&str> = trace.source.notes.iter().map(|note| note.code).collect();
        assert!(codes.contains(&code), "{file}: {codes:?}");
    }
}

#[test]
fn a_key_whose_memo_entry_was_overwritten_means_the_new_string() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hostile/accepted_memo_overwritten");
    let trace = open(&path, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let events: Vec<(u64, u64)> = trace.devices[0].events.iter().map(|e| (e.addr.0, e.size.0)).collect();
    assert_eq!(events, [(512, 8), (4096, 16), (8192, 32)]);
}
