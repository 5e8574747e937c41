//! Unknown figures are reported as unknown. No part of a question is dropped in silence.

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use support::{Run, run_in, trace};

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn in_folder(folder: &Path) -> impl Fn(&[&str]) -> Run + '_ {
    move |args| run_in(folder, args, None)
}

/// Writes `torn.gtrace`: a recording cut before the end of its first block.
fn torn(folder: &Path) {
    let done = run_in(folder, &["export", &trace("leak"), "--to", "gtrace", "-o", "whole.gtrace"], None);
    assert_eq!(done.code, 0, "{}", done.err);
    let whole = fs::read(folder.join("whole.gtrace")).expect("read");
    fs::write(folder.join("torn.gtrace"), &whole[..300]).expect("written");
}

#[test]
fn a_trace_without_devices_is_not_called_fine() {
    let folder = temp();
    torn(folder.path());
    let run = in_folder(folder.path());
    for format in ["text", "markdown"] {
        let report = run(&["report", "torn.gtrace", "--format", format]);
        let words = report.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("nothing is known of its memory"), "{}", report.out);
        assert!(!report.out.contains("nothing needs a change"), "{}", report.out);
    }
    let oom = run(&["oom", "torn.gtrace"]);
    assert_eq!(oom.code, 2);
    assert!(oom.err.contains("whether a request failed is not known"), "{}", oom.err);
    for sides in [["torn.gtrace", "whole.gtrace"], ["whole.gtrace", "torn.gtrace"]] {
        let diff = run(&["diff", sides[0], sides[1]]);
        assert_eq!((diff.code, diff.out.as_str()), (2, ""));
        assert!(diff.err.contains("torn.gtrace: the trace has no device"), "{}", diff.err);
    }
}

#[test]
fn one_card_is_compared_under_whatever_number_it_was_seen() {
    let folder = temp();
    let run = in_folder(folder.path());
    // The same run, once as device 0 and once as device 3.
    let snapshot = |devices: usize| {
        let events = r#"{"action":"segment_alloc","addr":4096,"size":2097152,"stream":0,"time_us":1},
            {"action":"alloc","addr":4096,"size":512,"stream":0,"time_us":2}"#;
        let block = r#"{"address":4096,"size":512,"requested_size":512,"state":"active_allocated"},
            {"address":4608,"size":2096640,"requested_size":0,"state":"inactive"}"#;
        let segment = format!(
            r#"{{"device":{},"address":4096,"total_size":2097152,"stream":0,"segment_type":"small","blocks":[{block}]}}"#,
            devices - 1
        );
        let empty = "[],".repeat(devices - 1);
        format!(r#"{{"segments":[{segment}],"device_traces":[{empty}[{events}]]}}"#)
    };
    fs::write(folder.path().join("a.json"), snapshot(1)).expect("written");
    fs::write(folder.path().join("b.json"), snapshot(4)).expect("written");
    let diff = run(&["diff", "a.json", "b.json", "--format", "json"]);
    assert_eq!(diff.code, 0, "{}", diff.err);
    let diff: serde_json::Value = serde_json::from_str(&diff.out).expect("JSON");
    assert_eq!(diff["devices"].as_array().map(Vec::len), Some(1), "{diff}");
    assert_eq!(diff["unmatched_devices"], serde_json::json!([]));
}

#[test]
fn what_follows_compressed_data_is_told_from_a_cut() {
    let folder = temp();
    let run = in_folder(folder.path());
    let whole = fs::read(trace("leak")).expect("read");
    let with = |more: &[u8]| {
        fs::write(folder.path().join("run.gz"), [&whole[..], more].concat()).expect("written");
        run(&["report", "run.gz"])
    };
    for junk in [&b"junk"[..], b"more than ten bytes of junk", b"\n"] {
        let done = with(junk);
        assert_eq!(done.code, 2, "{junk:?}");
        assert!(done.err.contains("something else follows it"), "{}", done.err);
    }
    assert_eq!(with(&[0; 700]).code, 0, "zeros fill up a block of a tape or an archive");
    let mut second = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    second.write_all(b"").expect("memory");
    assert_eq!(with(&second.finish().expect("memory")).code, 0, "a second member, here an empty one");
    fs::write(folder.path().join("run.gz"), &whole[..whole.len() - 20]).expect("written");
    let cut = run(&["report", "run.gz"]);
    assert_eq!(cut.code, 2);
    assert!(cut.err.contains("in the middle of the compressed data"), "{}", cut.err);
}

#[test]
fn a_column_that_the_planner_does_not_know_is_named() {
    let folder = temp();
    let run = in_folder(folder.path());
    fs::write(folder.path().join("a.csv"), "id,lower,upper,size,align\na,0,9,100,64\nb,0,9,100,64\n")
        .expect("written");
    let plan = run(&["plan", "a.csv"]);
    assert_eq!(plan.code, 0, "{}", plan.err);
    assert!(plan.err.contains("does not know were left out: align"), "{}", plan.err);
    fs::write(folder.path().join("b.csv"), "id,lower,upper,size,alignment,shares\na,0,9,100,64,\n")
        .expect("written");
    let plan = run(&["plan", "b.csv"]);
    assert_eq!((plan.code, plan.err.as_str()), (0, ""));
}

#[test]
fn a_limit_that_would_not_be_checked_is_refused() {
    let folder = temp();
    let run = in_folder(folder.path());
    let path = trace("leak");
    let config = |text: &str| {
        fs::write(folder.path().join("gapless.toml"), text).expect("written");
        run(&["check", &path, "--max-peak-allocated", "1TiB"])
    };
    assert_eq!(config("[check]\npeak_reserved = \"1TiB\"\n").code, 0);
    for outside in ["peak_reserved = \"1MiB\"\n", "[chek]\npeak_reserved = \"1MiB\"\n"] {
        let done = config(outside);
        assert_eq!(done.code, 2, "{outside}: {}", done.out);
        assert!(done.err.contains("gapless.toml") && done.err.contains("unknown field"), "{}", done.err);
    }
    fs::remove_file(folder.path().join("gapless.toml")).expect("removed");
    let alone = run(&["check", &path, "--max-peak-reserved", "280MiB", "--tolerance", "5%"]);
    assert_eq!(alone.code, 2, "a tolerance of a budget does not exist: {}", alone.out);
    assert!(alone.err.contains("--tolerance is about a baseline"), "{}", alone.err);
    let share = run(&["check", &path, "--max-fragmentation", "150%"]);
    assert!(share.err.contains("\"150%\""), "as it was given: {}", share.err);
}

#[test]
fn a_baseline_without_the_figure_does_not_pass() {
    let folder = temp();
    let run = in_folder(folder.path());
    fs::write(folder.path().join("base.csv"), "id,lower,upper,size\na,0,9,99000000000\n").expect("written");
    let done = run(&["check", &trace("leak"), "--baseline", "base.csv"]);
    assert_eq!(done.code, 2, "{}", done.out);
    assert!(done.err.contains("the baseline has no segments"), "{}", done.err);
    let same = run(&["check", "base.csv", "--baseline", "base.csv"]);
    assert_eq!(same.code, 0, "neither has segments: {}", same.err);
    let lacking = run(&["check", "base.csv", "--baseline", &trace("leak")]);
    assert_eq!(lacking.code, 1, "over the peak allocated: {}", lacking.out);
    assert!(lacking.out.contains("not known: the trace has no segments"), "{}", lacking.out);
}

#[cfg(unix)]
#[test]
fn a_pipe_in_a_folder_is_left_out_and_not_waited_for() {
    let folder = temp();
    let run = in_folder(folder.path());
    fs::copy(trace("leak"), folder.path().join("rank0.pickle.gz")).expect("copied");
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("rank1.pickle")).status();
    assert!(made.expect("mkfifo runs").success());
    let done = run(&["report", "."]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("left out") && done.out.contains("rank1.pickle"), "{}", done.out);
}

#[test]
fn one_file_is_not_two_ranks() {
    let folder = temp();
    let run = in_folder(folder.path());
    fs::copy(trace("leak"), folder.path().join("a.pickle.gz")).expect("copied");
    fs::copy(trace("leak"), folder.path().join("b.pickle.gz")).expect("copied");
    for files in [&["a.pickle.gz", "./a.pickle.gz"][..], &[".", "b.pickle.gz"]] {
        let done = run(&[&["report"], files].concat());
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{files:?}");
        assert!(done.err.contains("are the same file"), "{}", done.err);
    }
    assert_eq!(run(&["report", "a.pickle.gz", "b.pickle.gz"]).code, 0, "copies may be two ranks");
}

#[test]
fn an_invalid_value_is_named_with_what_to_write() {
    let folder = temp();
    std::fs::write(folder.path().join("b.csv"), "id,lower,upper,size,shares\na,0,4,8,\nb,4,8,8,x\n")
        .expect("written");
    std::fs::write(folder.path().join("c.csv"), "id,lower,upper,size,accesses\na,0,4,8,often\n")
        .expect("written");
    std::fs::write(folder.path().join("s.toml"), "[[space]]\nname = \"one\"\ncost = 1\n").expect("written");
    let run = in_folder(folder.path());
    for (args, wanted) in [
        (&["fit", "gpt2", "--lora", "r=x"][..], "invalid rank \"x\": use a whole number"),
        (&["run", "--host-limit", "0", "--host", "--", "true"], "invalid size \"0\": it must be more than 0"),
        (&["plan", "b.csv"], "invalid name \"x\" in its shares: no buffer has it"),
        (&["plan", "c.csv", "--spaces", "s.toml"], "invalid count of accesses \"often\": use a whole number"),
    ] {
        let done = run(args);
        assert_eq!(done.code, 2, "{args:?}: {}", done.out);
        assert!(done.err.contains(wanted), "{args:?}: {}", done.err);
    }
}

#[test]
fn a_snapshot_without_history_shows_a_moment_and_claims_no_peak() {
    let folder = temp();
    let run = in_folder(folder.path());
    let snapshot = trace("nohistory");
    let report = run(&["report", &snapshot, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&report.out).expect("JSON");
    let codes: Vec<&str> =
        json["findings"].as_array().expect("a list").iter().filter_map(|f| f["code"].as_str()).collect();
    assert_eq!(codes, ["GAP505"], "what was never needed at once only a history shows");
    assert!(json["devices"][0]["fragmentation"].is_null());
    let text = run(&["report", &snapshot]).out;
    assert!(!text.contains("at peak") && !text.contains("Peaks"), "{text}");
    // It holds 1.5 GiB: its peak was above 1 GiB for certain, and perhaps above 2 GiB.
    for (flag, limit, code, words) in [
        ("--max-peak-reserved", "1GiB", 1, "too much"),
        ("--max-peak-reserved", "2GiB", 2, "the snapshot has no history"),
        ("--max-peak-allocated", "1MiB", 1, "too much"),
        ("--max-peak-allocated", "1GiB", 2, "the snapshot has no history"),
        ("--max-fragmentation", "1%", 2, "the snapshot has no history"),
        ("--max-fragmentation", "99%", 2, "the snapshot has no history"),
        ("--max-growth-per-step", "1GiB", 2, "the snapshot has no history"),
    ] {
        let check = run(&["check", &snapshot, flag, limit]);
        let said = format!("{}{}", check.out, check.err).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(words), "{flag} {limit}: {said}");
        assert_eq!(check.code, code, "{flag} {limit}: {said}");
    }
}
