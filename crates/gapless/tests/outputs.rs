//! Output of commands: whole and in the right file, or a failure that names the file, with the right exit code.

mod support;

use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use support::{run, run_in, trace};

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

const BUFFERS: &str = "id,lower,upper,size\na,0,4,8\n";

/// Every verb that writes a file, with its input at IN and its output at OUT.
const WRITERS: &[&[&str]] = &[
    &["report", "IN", "-o", "OUT"],
    &["report", "IN", "--format", "html", "-o", "OUT"],
    &["diff", "IN", "other.csv", "-o", "OUT"],
    &["diff", "other.csv", "IN", "-o", "OUT"],
    &["check", "IN", "--max-peak-allocated", "1GiB", "-o", "OUT"],
    &["check", "other.csv", "--baseline", "IN", "-o", "OUT"],
    &["replay", "IN", "--with", "torch:default", "-o", "OUT"],
    &["export", "IN", "--to", "csv", "-o", "OUT"],
    &["export", "IN", "--to", "gtrace", "-o", "OUT"],
    &["export", "IN", "--to", "minimalloc", "-o", "OUT"],
    &["plan", "IN", "-o", "OUT"],
    &["plan", "other.csv", "--old", "IN", "-o", "OUT"],
    &["advise", "IN", "-o", "OUT"],
    &["oom", "IN", "-o", "OUT"],
    &["fit", "IN", "-o", "OUT"],
    &["fit", "IN", "--html", "OUT"],
];

#[test]
fn no_verb_writes_over_what_it_reads() {
    let folder = temp();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("other.csv"), BUFFERS).expect("written");
    fs::write(path("in.csv"), BUFFERS).expect("written");
    std::os::unix::fs::symlink("in.csv", path("soft.csv")).expect("a link");
    fs::hard_link(path("in.csv"), path("hard.csv")).expect("a link");
    fs::create_dir(path("inner")).expect("a folder");
    for verb in WRITERS {
        for (input, output) in [
            ("in.csv", "in.csv"),
            ("in.csv", "inner/../in.csv"),
            ("in.csv", "soft.csv"),
            ("soft.csv", "in.csv"),
            ("in.csv", "hard.csv"),
        ] {
            let word = |word: &&'static str| match *word {
                "IN" => input,
                "OUT" => output,
                word => word,
            };
            let args: Vec<&str> = verb.iter().map(word).collect();
            let done = run_in(folder.path(), &args, None);
            assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
            assert!(done.err.contains(&format!("cannot write {output}")), "{args:?}: {}", done.err);
            assert!(done.err.contains("help:"), "{args:?}: {}", done.err);
            assert_eq!(fs::read_to_string(path("in.csv")).expect("still there"), BUFFERS, "{args:?}");
            assert!(fs::symlink_metadata(path("soft.csv")).is_ok_and(|m| m.is_symlink()), "{args:?}");
        }
    }
    // Standard input is a file as well.
    let done = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(["export", "-", "--to", "csv", "-o", "in.csv"])
        .current_dir(folder.path())
        .stdin(fs::File::open(path("in.csv")).expect("a file"))
        .output()
        .expect("the binary runs");
    assert_eq!(done.status.code(), Some(2), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(fs::read_to_string(path("in.csv")).expect("still there"), BUFFERS);
    // Another file that is there already is replaced.
    assert_eq!(run_in(folder.path(), &["export", "in.csv", "--to", "csv", "-o", "other.csv"], None).code, 0);
    assert_ne!(fs::read_to_string(path("other.csv")).expect("there"), BUFFERS);
}

#[test]
fn a_full_disk_is_told_with_the_name_of_the_file() {
    let folder = temp();
    fs::write(folder.path().join("b.csv"), BUFFERS).expect("written");
    let leak = trace("leak");
    for args in [
        &["report", &leak][..],
        &["report", &leak, "--format", "json"],
        &["report", &leak, "--format", "html"],
        &["diff", &leak, &leak],
        &["check", &leak, "--max-peak-allocated", "1GiB"],
        &["check", &leak, "--max-peak-allocated", "1GiB", "--format", "junit"],
        &["export", &leak, "--to", "csv"],
        &["export", &leak, "--to", "parquet"],
        &["export", &leak, "--to", "perfetto"],
        &["export", &leak, "--to", "minimalloc"],
        &["export", &leak, "--to", "gtrace"],
        &["replay", "b.csv", "--with", "torch:default"],
        &["plan", "b.csv"],
        &["plan", "b.csv", "--format", "json"],
        &["plan", "b.csv", "--format", "html"],
    ] {
        let mut named = args.to_vec();
        named.extend(["-o", "/dev/full"]);
        let done = run_in(folder.path(), &named, None);
        assert_eq!(done.code, 2, "{named:?}: {}", done.err);
        assert!(done.err.contains("cannot write /dev/full"), "{named:?}: {}", done.err);
        assert_eq!(done.err.matches("No space left").count(), 1, "{named:?}: {}", done.err);
        let (code, err) = into_full(args, folder.path());
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains("cannot write to standard output"), "{args:?}: {err}");
    }
}

/// Runs with standard output on a full disk.
fn into_full(args: &[&str], folder: &std::path::Path) -> (i32, String) {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let done = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(args)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .expect("the binary runs");
    (done.status.code().expect("a code"), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let folder = temp();
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["help"],
        &["help", "plan"],
        &["plan", "--help"],
        &["explain"],
        &["explain", "GAP101"],
        &["completions", "bash"],
        &["fit", "--list"],
    ] {
        let fine = run(args);
        assert_eq!((fine.code, fine.out.is_empty()), (0, false), "{args:?}: {}", fine.err);
        let (code, err) = into_full(args, folder.path());
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains("cannot write to standard output"), "{args:?}: {err}");
    }
    let wrong = run(&["plan", "--no-such-flag"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (2, ""), "{}", wrong.err);
}

#[test]
fn a_budget_that_cannot_be_known_hides_none_that_is_exceeded() {
    let folder = temp();
    fs::write(folder.path().join("b.csv"), BUFFERS).expect("written");
    // A list of buffers has no segments and no steps: two of the three figures are not known.
    let check = |limit: &str, more: &[&str]| {
        let mut args = vec!["check", "b.csv", "--max-peak-reserved", "1GiB", "--max-growth-per-step", "1B"];
        args.extend(["--max-peak-allocated", limit]);
        args.extend(more);
        run_in(folder.path(), &args, None)
    };
    let over = check("1B", &[]);
    assert_eq!(over.code, 1, "{}", over.err);
    assert!(over.out.contains("over") && over.out.contains("peak allocated"), "{}", over.out);
    assert_eq!(over.out.matches("not known").count(), 2, "{}", over.out);
    let within = check("1GiB", &[]);
    assert_eq!(within.code, 2, "not known is not passed: {}", within.out);
    assert!(within.out.contains("ok") && within.err.contains("is not known, because"), "{within:?}");
    let json = check("1B", &["--format", "json"]);
    let value: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!((value["passed"].as_bool(), json.code), (Some(false), 1));
    assert_eq!(value["rows"].as_array().map(Vec::len), Some(1), "{value}");
    assert_eq!(value["unknown"].as_array().map(Vec::len), Some(2), "{value}");
    for (format, marks) in [("github", ["::error", "not known"]), ("junit", ["<failure", "<error"])] {
        let done = check("1B", &["--format", format]);
        assert_eq!(done.code, 1);
        assert!(marks.iter().all(|mark| done.out.contains(mark)), "{format}: {}", done.out);
    }
}

#[test]
fn a_name_with_control_characters_does_not_reach_a_terminal() {
    let folder = temp();
    let name = "a\u{1b}]0;b\u{7}\n.csv";
    fs::write(folder.path().join(name), BUFFERS).expect("written");
    for format in ["github", "junit"] {
        let args =
            ["check", name, "--max-peak-allocated", "1B", "--max-peak-reserved", "1B", "--format", format];
        let done = run_in(folder.path(), &args, None);
        assert_eq!(done.code, 1, "{}", done.err);
        let wild = done.out.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(wild, None, "{format}: {:?}", done.out);
    }
}

#[test]
fn a_code_that_is_near_to_none_gets_the_list() {
    let far = run(&["explain", "GAP999"]);
    assert_eq!(far.code, 2);
    assert!(!far.err.contains("did you mean") && far.err.contains("GAP101, GAP102"), "{}", far.err);
    let near = run(&["explain", "GAP109"]);
    assert!(near.err.contains("did you mean GAP10"), "{}", near.err);
}

#[test]
fn one_of_a_thing_is_told_as_one() {
    let folder = temp();
    fs::write(folder.path().join("b.csv"), BUFFERS).expect("written");
    fs::write(folder.path().join("s.toml"), "[[space]]\nname = \"one\"\ncost = 1\n").expect("written");
    let plan = run_in(folder.path(), &["plan", "b.csv"], None).out;
    let spaces = run_in(folder.path(), &["plan", "b.csv", "--spaces", "s.toml"], None).out;
    for text in [plan, spaces] {
        assert!(
            text.contains("1 buffer") && !text.contains("1 buffers") && !text.contains("1 spaces"),
            "{text}"
        );
    }
}

#[test]
fn an_ending_of_another_format_gets_no_text() {
    let folder = temp();
    fs::write(folder.path().join("in.csv"), BUFFERS).expect("written");
    let verbs: [&[&str]; 5] = [
        &["report", "in.csv"],
        &["plan", "in.csv"],
        &["replay", "in.csv"],
        &["fit", "gpt2"],
        &["diff", "in.csv", "in.csv"],
    ];
    for ending in ["pdf", "PDF", "png", "xlsx", "yaml", "gz", "pickle", "parquet"] {
        let name = format!("out.{ending}");
        for verb in verbs {
            let done = run_in(folder.path(), &[verb, &["-o", &name][..]].concat(), None);
            let asks = format!("its name asks for {}", ending.to_lowercase());
            assert!(done.code == 2 && done.err.contains(&asks), "{verb:?} {name}: {}", done.err);
            assert!(!folder.path().join(&name).exists());
            // The flag says it clearly.
            let done = run_in(folder.path(), &[verb, &["--format", "JSON", "-o", &name][..]].concat(), None);
            assert!(
                done.code < 2 && done.err.contains("gets json, as --format says"),
                "{verb:?}: {}",
                done.err
            );
            fs::remove_file(folder.path().join(&name)).expect("written");
        }
        if ending != "parquet" {
            let done = run_in(folder.path(), &["export", "in.csv", "-o", &name], None);
            let words = format!("no output format has the ending .{}", ending.to_lowercase());
            assert!(done.code == 2 && done.err.contains(&words), "{name}: {}", done.err);
        }
    }
}
