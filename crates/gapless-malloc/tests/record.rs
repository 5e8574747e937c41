//! Recordings: programs run as before while every few bytes are a sample, and the records are what happened.

mod programs;

use gapless_ingest::ReadOptions;
use gapless_trace::trace::{HostSample, Trace};
use gapless_trace::{Bytes, leaks};
use programs::{build, passes, run, words};
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}_{}.gtrace", std::process::id()))
}

fn read(path: &Path) -> (Trace, HostSample) {
    let trace = gapless_ingest::open(path, &ReadOptions::default()).expect("a recording");
    let sample = trace.host_sample.clone().expect("of host memory");
    (trace, sample)
}

/// Runs `leak.c` with a sample every 2 KiB.
fn leak(how: &str, name: &str) -> (Trace, HostSample, String) {
    let path = file(name);
    let text = path.to_str().expect("a name");
    let output = run(
        &build("leak.c"),
        &[how],
        &[("GAPLESS_HOST_RECORD", text), ("GAPLESS_HOST_RECORD_EVERY", "2KiB")],
    );
    let (out, error) = words(&output);
    assert_eq!(error, "");
    let (trace, sample) = read(&path);
    (trace, sample, out)
}

#[test]
fn programs_run_as_before_while_nearly_every_block_is_a_sample() {
    for (number, every) in ["1", "700", "64KiB"].into_iter().enumerate() {
        let path = file(&format!("same{number}"));
        let set =
            [("GAPLESS_HOST_RECORD", path.to_str().expect("a name")), ("GAPLESS_HOST_RECORD_EVERY", every)];
        passes(&build("api.c"), &[], &set, "ok");
        passes(&build("cxx.cpp"), &[], &set, "ok");
        passes(&build("unload.c"), &[], &set, "ok");
        passes(&build("stress.c"), &["2", "300"], &set, "ok, 0 bytes of large buffers left");
        let (_, sample) = read(&path);
        assert!(sample.is_whole && !sample.blocks.is_empty());
    }
}

#[test]
fn children_that_are_forked_while_samples_are_written_do_not_hang() {
    let path = file("forks");
    let set = [("GAPLESS_HOST_RECORD", path.to_str().expect("a name")), ("GAPLESS_HOST_RECORD_EVERY", "700")];
    passes(&build("fork.c"), &["60"], &set, "60 forks, 0 hangs, 0 failures");
    // Each child has a file of its own.
    let folder = path.parent().expect("a folder");
    let start = path.file_stem().expect("a name").to_str().expect("a name").to_owned();
    for entry in std::fs::read_dir(folder).expect("a folder").filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&start)) {
            std::fs::remove_file(entry.path()).expect("it goes");
        }
    }
}

#[test]
fn a_leak_is_found_with_its_line_and_an_estimate_that_holds() {
    let (trace, sample, _) = leak("", "leak");
    let growing = leaks::growing(&trace, &sample);
    let labels: Vec<&str> = growing.iter().map(|one| one.line.label.as_str()).collect();
    assert_eq!(labels, ["leak.c:13 leaks"]);
    // 150 KB a step; about one block in 1.3 is a sample, so four standard errors are 5 %.
    assert!((growing[0].rate / 150_000.0 - 1.0).abs() < 0.1, "{}", growing[0].rate);
    let all = leaks::never_freed(&trace, &sample);
    let kept = all.iter().find(|line| line.label == "leak.c:13 leaks").expect("never freed");
    assert!((kept.kept.bytes.0 as f64 / 3e6 - 1.0).abs() < 0.08, "{:?}", kept.kept);
    assert!(all.iter().all(|line| !line.label.contains("comes_and_goes")), "{all:?}");
    // Every large buffer, to the byte.
    let large: Vec<Bytes> = sample.blocks.iter().filter(|b| b.variance == 0.0).map(|b| b.size).collect();
    assert_eq!(large, [Bytes(5 << 20), Bytes(9 << 20)]);
    assert_eq!(sample.steps.len(), 20);
    assert!(sample.is_whole && sample.lost == 0);
}

#[test]
fn a_killed_program_leaves_a_recording_that_says_so() {
    let (trace, sample, _) = leak("killed", "killed");
    assert!(!sample.is_whole);
    assert!(trace.source.notes.iter().any(|note| note.code == "recording-cut"));
    assert_eq!(sample.blocks.last().map(|block| block.size), Some(Bytes(9 << 20)), "up to the last record");
    assert_eq!(leaks::growing(&trace, &sample).len(), 1);
}

#[test]
fn a_forked_child_writes_a_file_of_its_own_with_its_own_blocks() {
    let (_, parent, out) = leak("fork", "forked");
    let path = file("forked");
    let (trace, child) = read(&path.with_extension(format!("{}.gtrace", out.trim())));
    assert_eq!(parent.steps.len(), 20);
    assert_eq!(child.steps.len(), 20, "the child's own");
    let own = leaks::never_freed(&trace, &child);
    assert!((own[0].kept.bytes.0 as f64 / 3e6 - 1.0).abs() < 0.08, "{own:?}");
}

#[test]
fn a_place_that_cannot_be_written_and_bad_values_end_the_program_with_2() {
    let path = file("wrong");
    let good = path.to_str().expect("a name");
    let checked = ("GAPLESS_HOST_CHECK", "1");
    for (set, said) in [
        (vec![("GAPLESS_HOST_RECORD", "/nonexistent/run.gtrace")], "its folder does not exist"),
        (vec![("GAPLESS_HOST_RECORD", "/")], "cannot be written"),
        (vec![("GAPLESS_HOST_RECORD", good), ("GAPLESS_HOST_RECORD_EVERY", "0")], "from 1 to 1 GiB"),
        (vec![("GAPLESS_HOST_RECORD", good), checked], "checked mode is on"),
    ] {
        let output = run(Path::new("/bin/true"), &[], &set);
        let (_, error) = words(&output);
        assert_eq!(output.status.code(), Some(2), "{set:?}: {error}");
        assert!(error.contains(said) && error.contains("for example"), "{error}");
    }
}
