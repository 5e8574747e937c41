//! `gapless top --once` and `gapless metrics` as a user runs them, over the statistics file of a live
//! process: this test's own.

mod support;

use gapless_stats::{Card, Counters, Folder, Holder, Lane, Process, Sample, Statistics, Writer, process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::schema::against;

const MIB: u64 = 1 << 20;
pub(crate) const UUID: [u8; 16] = [0x6a, 0x70, 0xc0, 0xde, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1];

/// A statistics file of this process in `folder`.
fn write_statistics(folder: &Path) -> Writer {
    let folder = Folder::make(&[folder.to_owned()]).expect("a folder");
    let own = Process::current("gapless test").expect("/proc");
    let mut writer = Writer::create(&folder, &own).expect("a statistics file");
    let now = process::now();
    let sample = |age: u64, allocations| Sample {
        time: now - age * 1_000_000,
        live: 200 * MIB,
        reserved: 256 * MIB,
        allocations,
    };
    let card = Card {
        index: 0,
        uuid: Some(UUID),
        name: "Stand-in card".to_owned(),
        total: 4096 * MIB,
        free: 3000 * MIB,
        limit: Some(512 * MIB),
        live: 192 * MIB,
        peak_live: 240 * MIB,
        requested: 191 * MIB,
        active: 192 * MIB,
        reserved: 256 * MIB,
        peak_reserved: 300 * MIB,
        stranded: 3 * MIB,
        blocks: 24,
        counters: Counters {
            allocations: 1500,
            frees: 1476,
            ooms: 2,
            driver_ns: 1_500_000_000,
            ..Counters::default()
        },
        lanes: vec![Lane { stream: 0, pool: (0, 0), blocks: 24, live: 192 * MIB, reserved: 256 * MIB }],
        more_lanes: 0,
        holders: vec![Holder { what: "24 blocks of 8.00 MiB".to_owned(), bytes: 192 * MIB, blocks: 24 }],
        samples: vec![sample(2, 1000), sample(1, 1500)],
        regions: Vec::new(),
    };
    let statistics = Statistics { time: now, cards: vec![card], ..Statistics::new(own) }
        .with_tenant("team-a", Some(512 * MIB));
    writer.write(&statistics).expect("written");
    writer
}

fn gapless(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    command.args(args).env("GAPLESS_RUN_DIR", folder).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let done = gapless(folder, args).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (done.status.code().expect("an exit code"), text(done.stdout), text(done.stderr))
}

fn temp() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("files");
    (folder, files)
}

#[test]
fn top_once_shows_a_process_as_text_and_as_json_by_the_schema() {
    let (_temp, files) = temp();
    let _writer = write_statistics(&files);
    let pid = std::process::id().to_string();
    let (code, out, err) = run(&files, &["top", "--once", "--format", "json", "--pid", &pid]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(against("top", &value), Vec::<String>::new());
    let process = &value["processes"][0];
    assert_eq!(process["pid"].to_string(), pid);
    assert_eq!(
        (&process["tenant"]["name"], &process["tenant"]["limit"]),
        (&"team-a".into(), &(512 * MIB).into())
    );
    let gpu = &process["gpus"][0];
    assert_eq!(gpu["uuid"], "GPU-6a70c0de-0000-4000-8000-000000000001");
    let memory = &gpu["memory"];
    assert_eq!((&memory["allocated"], &memory["reserved"]), (&(192 * MIB).into(), &(256 * MIB).into()));
    assert_eq!(memory["fragmentation"], 1.0 - 240.0 / 300.0);
    assert_eq!(memory["allocations_per_second"], 500.0);
    assert_eq!(memory["holders"][0]["what"], "24 blocks of 8.00 MiB");
    let (code, out, _) = run(&files, &["top", "--once", "--pid", &pid]);
    assert_eq!(code, 0);
    let row = out.lines().find(|line| line.trim_start().starts_with(&pid)).expect("a row");
    for part in ["192 MiB", "256 MiB", "20 %", "500"] {
        assert!(row.contains(part), "{part} in {row}");
    }
    // Without a terminal, `top` prints the same once.
    assert_eq!(run(&files, &["top", "--pid", &pid]).1.lines().count(), out.lines().count());
}

#[test]
fn nobody_and_nothing_are_told_in_words() {
    let (_temp, files) = temp();
    let (code, out, _) = run(&files, &["top", "--once"]);
    assert_eq!(code, 0);
    // A machine with a driver may list others.
    assert!(out.contains("gapless run -- python train.py") || out.contains("COMMAND"), "{out}");
    let (code, out, err) = run(&files, &["top", "--once", "--pid", "4194305"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("no process 4194305") && err.contains("help"), "{err}");
    let (code, _, err) = run(&files, &["top", "--format", "json"]);
    assert!(code == 2 && err.contains("--once"), "{err}");
    for wrong in ["0", "-1", "nan", "1e9", "x"] {
        assert_eq!(run(&files, &["top", "--once", &format!("--interval={wrong}")]).0, 2, "{wrong}");
    }
}

#[test]
fn a_folder_that_others_may_enter_is_refused() {
    let (_temp, files) = temp();
    let _writer = write_statistics(&files);
    std::fs::set_permissions(&files, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    for args in [&["top", "--once"][..], &["metrics", "--once"], &["metrics", "--listen", "127.0.0.1:0"]] {
        let (code, out, err) = run(&files, args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains("open to others (mode 755") && err.contains("GAPLESS_RUN_DIR"), "{err}");
    }
}

#[test]
fn a_damaged_page_is_a_note_and_the_others_are_shown() {
    let (_temp, files) = temp();
    let writer = write_statistics(&files);
    let own = Process::current("x").expect("/proc");
    let other = Process { namespace: own.namespace + 1, ..own };
    std::fs::write(files.join(other.file_name()), "garbage, and more of it").expect("a file");
    let (code, out, _) = run(&files, &["top", "--once", "--format", "json"]);
    assert_eq!(code, 0);
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert!(value["notes"][0].as_str().is_some_and(|note| note.contains("not a statistics file")), "{out}");
    assert!(
        value["processes"].as_array().is_some_and(|all| all.iter().any(|p| p["pid"] == std::process::id()))
    );
    drop(writer);
}

#[test]
fn metrics_are_printed_written_and_served() {
    let (temp, files) = temp();
    let _writer = write_statistics(&files);
    let (code, printed, _) = run(&files, &["metrics", "--once"]);
    assert_eq!(code, 0);
    let series = |text: &str, name: &str| -> String {
        let of =
            |line: &&str| line.starts_with(name) && line.contains(&format!("pid=\"{}\"", std::process::id()));
        text.lines().find(of).unwrap_or_else(|| panic!("{name} in {text}")).to_owned()
    };
    let live = series(&printed, "gapless_allocated_bytes{");
    assert!(live.ends_with(" 201326592"), "{live}");
    for label in ["UUID=\"GPU-6a70c0de-0000-4000-8000-000000000001\"", "gpu=\"0\"", "tenant=\"team-a\""] {
        assert!(live.contains(label), "{label} in {live}");
    }
    assert!(printed.contains("model=\"Stand-in card\""), "{printed}");
    assert!(series(&printed, "gapless_driver_seconds_total{").ends_with(" 1.5"));
    let file = temp.path().join("gapless.prom");
    let name = file.to_str().expect("UTF-8");
    let (code, out, _) = run(&files, &["metrics", "-o", name]);
    assert_eq!((code, out.as_str()), (0, ""));
    assert_eq!(series(&std::fs::read_to_string(&file).expect("the file"), "gapless_allocated_bytes{"), live);

    let mut server = gapless(&files, &["metrics", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut line = String::new();
    BufReader::new(server.stderr.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let address = line
        .trim()
        .strip_prefix("serving http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .expect("where");
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(series(&answer, "gapless_allocated_bytes{"), live);
    // The address is in use now.
    let (code, _, err) = run(&files, &["metrics", "--listen", address]);
    assert!(code == 2 && err.contains("cannot be served") && err.contains("--listen"), "{err}");
    server.kill().expect("a signal");
    server.wait().expect("its end");
}
