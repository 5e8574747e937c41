//! The source of input does not change the answer: a file, its `.gz`, its `.zst` and a pipe give the same. A torn
//! file is an error, not a panic.

mod support;

use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Run, run_in, trace};

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).expect("memory");
    out.finish().expect("memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    gapless_formats::zstd::compress(bytes)
}

/// A plan without its name and its time.
fn plan(folder: &Path, args: &[&str], input: Option<&[u8]>) -> Value {
    let mut all = vec!["plan"];
    all.extend(args);
    all.extend(["--format", "json", "--threads", "1"]);
    let done = run_in(folder, &all, input);
    assert_eq!(done.code, 0, "{args:?}: {}", done.err);
    let mut plan: Value = serde_json::from_str(&done.out).expect("JSON");
    let members = plan.as_object_mut().expect("an object");
    members.remove("path");
    members.remove("time_ms");
    plan
}

const ROWS: &str = "w,0,9,100,64,,1024,\nx,1,5,100,64,2-3,,\n\"y,1\",4,9,100,1,,,\nz,5,9,7,8,,,64\n";

#[test]
fn every_way_to_give_a_list_of_buffers_gives_the_same_plan() {
    let folder = temp();
    let mut first: Option<Value> = None;
    let mut same = |what: &str, plan: Value| {
        let expected = first.get_or_insert_with(|| plan.clone());
        assert_eq!(&plan, expected, "{what}");
    };
    for header in [
        "id,lower,upper,size,alignment,gaps,offset,hint",
        "id,start,end,size,alignment,gaps,offset,hint",
        "buffer,begin,upper,size,alignment,gaps,offset,hint",
        "Buffer_ID,Lower,END,Size,Alignment,Gaps,Offset,Hint",
        "name,\"start\",upper,size,alignment,gaps,offset,hint",
        "\u{feff}id,lower,end,size,alignment,gaps,offset,hint",
        "\n\nid, lower , upper, size, alignment, gaps, offset, hint",
    ] {
        let text = format!("{header}\n{ROWS}");
        let (packed, squeezed) = (gzip(text.as_bytes()), zstd(text.as_bytes()));
        for (name, bytes) in [
            ("b.csv", text.as_bytes()),
            ("b.csv.gz", &packed),
            ("b.csv.zst", &squeezed),
            ("b.csv.zst.gz", &gzip(&squeezed)),
            ("b", text.replace('\n', "\r\n").as_bytes()),
        ] {
            fs::write(folder.path().join(name), bytes).expect("written");
            same(&format!("{header}: {name}"), plan(folder.path(), &[name], None));
            same(&format!("{header}: {name} from a pipe"), plan(folder.path(), &["-"], Some(bytes)));
        }
    }
    let plan = first.expect("a plan");
    let offsets: Vec<u64> =
        plan["buffers"].as_array().expect("buffers").iter().filter_map(|b| b["offset"].as_u64()).collect();
    assert_eq!(plan["peak"], 1124, "the fixed offset counts: {plan}");
    assert_eq!((offsets[0], offsets[1] % 64), (1024, 0), "{plan}");
    assert_eq!(plan["buffers"][2]["id"], "y,1");
}

#[test]
fn an_earlier_plan_and_further_columns_come_from_compressed_files_too() {
    let folder = temp();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
    let shared = "id,start,end,size,Shares\na,0,4,8,\nb,3,6,8,a\n";
    write("shared.csv.gz", &gzip(shared.as_bytes()));
    assert_eq!(plan(folder.path(), &["shared.csv.gz"], None)["peak"], 8);
    write("old.csv.zst", &zstd(b"id,lower,upper,size,offset\na,0,4,8,8\nb,3,6,8,0\n"));
    write("new.csv", b"id,lower,upper,size\na,0,4,8\nb,3,6,8\n");
    let again = plan(folder.path(), &["new.csv", "--old", "old.csv.zst"], None);
    assert_eq!(again["buffers"][0]["offset"], 8, "{again}");
    let list = br#"[{"id": "a", "lower": 0, "upper": 4, "size": 8}]"#;
    assert_eq!(plan(folder.path(), &["-"], Some(&gzip(list)))["peak"], 8);
}

#[test]
fn a_trace_from_a_pipe_is_planned_as_its_file_is() {
    let folder = temp();
    let path = trace("leak");
    let packed = fs::read(&path).expect("a trace");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes).expect("gzip");
    let own = folder.path().join("leak.gtrace");
    let own = own.to_str().expect("UTF-8");
    assert_eq!(run_in(folder.path(), &["export", &path, "-o", own], None).code, 0);
    let expected = plan(folder.path(), &[&path, "--steps", "2"], None);
    for input in [packed, bytes.clone(), zstd(&bytes), fs::read(own).expect("a trace")] {
        assert_eq!(plan(folder.path(), &["-", "--steps", "2"], Some(&input)), expected);
    }
}

/// Starts `plan -` and feeds it `piece` until it closes its end. Returns the bytes that it took.
fn fed_without_end(head: &[u8], piece: &[u8]) -> (u64, Run) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(["plan", "-"])
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut taken = 0;
    let mut next = head;
    // 64 MiB is far more than a reader takes that refuses early, and little enough for one that does not.
    while taken < 64 << 20 && input.write_all(next).is_ok() {
        taken += next.len() as u64;
        next = piece;
    }
    drop(input);
    let done = child.wait_with_output().expect("the binary ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = done.status.code().expect("an exit code, not a signal");
    (taken, Run { code, out: text(done.stdout), err: text(done.stderr) })
}

#[test]
fn a_pipe_is_refused_at_its_first_wrong_line() {
    let line = b"id,lower,upper,size\n".repeat(500);
    for (head, piece, expected) in [
        (&line[..], &line[..], "line 2"),
        (b"id,lower,upper,size\n", &b"x".repeat(10_000)[..], "line 2"),
        (b"nothing that is known\n", &line[..], "text that begins with"),
        (&b"\n".repeat(5000)[..], &b"\xff\x00".repeat(5000)[..], "not a trace"),
    ] {
        let (taken, done) = fed_without_end(head, piece);
        assert!(taken < 8 << 20, "{taken} bytes were read before the refusal: {}", done.err);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{}", done.err);
        assert!(done.err.contains(expected), "{}", done.err);
    }
}

/// Every verb that reads a trace, with the trace's name at FILE.
const VERBS: &[&[&str]] = &[
    &["report", "FILE"],
    &["report", "FILE", "--format", "json"],
    &["report", "FILE", "--format", "html", "-o", "page.html"],
    &["diff", "FILE", "FILE"],
    &["check", "FILE", "--max-peak-reserved", "1B"],
    &["check", "FILE", "--max-peak-allocated", "1B"],
    &["check", "FILE", "--baseline", "FILE"],
    &["replay", "FILE", "--with", "torch:default"],
    &["advise", "FILE"],
    &["oom", "FILE"],
    &["export", "FILE", "--to", "csv"],
    &["export", "FILE", "--to", "parquet", "-o", "out.parquet"],
    &["export", "FILE", "--to", "perfetto"],
    &["export", "FILE", "--to", "minimalloc"],
    &["export", "FILE", "--to", "gtrace", "-o", "out.gtrace"],
    &["plan", "FILE", "--threads", "1"],
];

#[test]
fn a_file_that_is_torn_anywhere_is_answered_in_words_by_every_verb() {
    let folder = temp();
    fs::write(folder.path().join("b.csv"), format!("id,lower,upper,size,alignment,gaps,offset,hint\n{ROWS}"))
        .expect("written");
    assert_eq!(run_in(folder.path(), &["export", "b.csv", "-o", "whole.gtrace"], None).code, 0);
    let whole = fs::read(folder.path().join("whole.gtrace")).expect("a trace");
    let file = folder.path().join("torn.gtrace");
    // Every place within the first headers, where the reader knows nothing yet, and some within each later block.
    let places =
        (0..whole.len()).filter(|&at| at % 8 == 0 && at < 96 || at % 61 == 0 || at + 1 == whole.len());
    for at in places {
        fs::write(&file, &whole[..at]).expect("written");
        for verb in VERBS {
            let args: Vec<&str> =
                verb.iter().map(|&word| if word == "FILE" { "torn.gtrace" } else { word }).collect();
            let done = run_in(folder.path(), &args, None);
            let told =
                format!("{args:?} after {at} of {} bytes: exit {}\n{}", whole.len(), done.code, done.err);
            assert!((0..=2).contains(&done.code), "{told}");
            assert!(!done.err.contains("panicked") && !done.err.contains("no budget"), "{told}");
            assert_eq!(done.code == 2, done.err.contains("error:"), "{told}");
            if done.code == 2 {
                assert!(done.err.contains("torn.gtrace") || verb[0] == "diff", "it names the file: {told}");
            }
        }
    }
}

#[test]
fn a_recording_torn_in_its_first_block_has_nothing_to_export_plan_or_check() {
    let folder = temp();
    assert_eq!(run_in(folder.path(), &["export", &trace("leak"), "-o", "whole.gtrace"], None).code, 0);
    let whole = fs::read(folder.path().join("whole.gtrace")).expect("a trace");
    fs::write(folder.path().join("torn.gtrace"), &whole[..100]).expect("written");
    for args in [
        &["export", "torn.gtrace", "--to", "csv"][..],
        &["export", "torn.gtrace", "--to", "minimalloc"],
        &["plan", "torn.gtrace"],
        &["check", "torn.gtrace", "--max-peak-reserved", "1GiB"],
    ] {
        let done = run_in(folder.path(), args, None);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
        assert!(done.err.contains("torn.gtrace: the trace has no device"), "{args:?}: {}", done.err);
        assert!(done.err.contains("help:"), "{args:?}: {}", done.err);
    }
}

/// Every verb that reads a file of a user, with the file as IN.
const READERS: &[&[&str]] = &[
    &["report", "IN"],
    &["oom", "IN"],
    &["check", "IN", "--max-peak-reserved", "1GiB"],
    &["check", "good.csv", "--baseline", "IN"],
    &["diff", "good.csv", "IN"],
    &["replay", "IN"],
    &["advise", "IN"],
    &["export", "IN", "--to", "csv"],
    &["plan", "IN"],
    &["fit", "IN"],
    &["fit-into", "IN"],
    &["weights", "info", "IN"],
    &["weights", "verify", "IN"],
    &["weights", "pack", "IN", "-o", "out"],
];

/// Names of inputs that no verb can read, and words of which the message has one.
const STRANGERS: &[(&str, &[&str])] = &[
    ("empty", &["is empty"]),
    ("folder", &["directory", "folder"]),
    ("missing.pickle", &["there is no such file"]),
    ("https://example.org/run.pickle", &["an address", "there is no such file"]),
    ("hello.txt", &["text", "not the description of a model", "not a recorded step"]),
    ("short.txt", &["text", "not the description of a model", "not a recorded step"]),
    ("object.json", &["a JSON text", "rather than", "model_type", "recorded step", "report of schema"]),
    ("list.json", &["a JSON text", "an empty trace", "is a list", "recorded step"]),
    ("gzip.gz", &["text", "not the description of a model", "not a recorded step", "compressed"]),
    (
        "/dev/zero",
        &["no kind that Gapless knows", "not a regular file", "neither a file", "not a recorded step"],
    ),
];

#[test]
fn every_verb_tells_each_stranger_for_what_it_is() {
    let folder = temp();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("folder")).expect("made");
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("hello.txt", b"hello, this is no trace of anything\n"),
        ("short.txt", b"hello\n"),
        ("object.json", b"{}\n"),
        ("list.json", b"[]\n"),
        ("gzip.gz", &gzip(b"hello, this is no trace of anything\n")),
        ("good.csv", b"id,lower,upper,size\na,0,4,8\n"),
    ] {
        fs::write(path(name), bytes).expect("written");
    }
    for verb in READERS {
        for (name, words) in STRANGERS {
            let args: Vec<&str> = verb.iter().map(|word| if *word == "IN" { *name } else { *word }).collect();
            let done = run_in(folder.path(), &args, None);
            assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
            assert!(done.err.contains(name), "{args:?} lacks the name: {}", done.err);
            assert!(words.iter().any(|word| done.err.contains(word)), "{args:?}: {}", done.err);
            // Words of the machine in place of the tool's.
            for raw in ["os error", "expected value", "the length of the header", "a header of"] {
                assert!(!done.err.contains(raw), "{args:?}: {}", done.err);
            }
            assert!(!path("out").exists(), "{args:?} left a file");
        }
    }
    // A pipe whose first command failed.
    let done = run_in(folder.path(), &["report", "-"], Some(b""));
    assert!(done.code == 2 && done.err.contains("nothing came from the standard input"), "{}", done.err);
}
