//! `gapless FILE` without a verb, `--open`, and `--watch`.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::{repo, run, run_in, trace};

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn a_file_alone_is_reported_on() {
    let path = trace("leak");
    let (short, long) = (run(&[&path, "--top", "3"]), run(&["report", &path, "--top", "3"]));
    assert_eq!((short.code, short.out), (0, long.out), "{}", short.err);
    let bytes = fs::read(&path).expect("the trace");
    let piped = run_in(&repo("testdata"), &["-", "--format", "json"], Some(&bytes));
    assert_eq!(piped.code, 0, "{}", piped.err);
    assert!(piped.out.contains("gapless.report/1"));
}

#[test]
fn a_misspelt_verb_has_its_suggestion_and_a_missing_file_is_told() {
    let done = run(&["reprot", "x"]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("did you mean report?"), "{}", done.err);
    for name in ["missing.pickle", "runs/missing"] {
        let done = run(&[name]);
        assert_eq!((done.code, done.out.as_str()), (2, ""));
        assert!(
            done.err.contains("there is no such file") && done.err.contains("diff, check"),
            "{}",
            done.err
        );
    }
}

/// A folder with an `xdg-open` that notes the file that it was asked to open.
fn opener(folder: &Path, exit: u32) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("xdg-open");
    let opened = folder.join("opened").display().to_string();
    fs::write(&path, format!("#!/bin/sh\nprintf %s \"$1\" > '{opened}'\nexit {exit}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
}

fn with_path(folder: &Path, path: &Path, args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(args)
        .current_dir(folder)
        .env("PATH", path)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

#[test]
fn open_writes_the_page_and_opens_it() {
    let (tools, folder) = (temp(), temp());
    opener(tools.path(), 0);
    let done = with_path(folder.path(), tools.path(), &["report", &trace("leak"), "--open"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && done.stdout.is_empty(), "{err}");
    let page = folder.path().join("leak.html");
    assert!(fs::read_to_string(&page).expect("the page").contains("<!doctype html>"));
    let opened = fs::read_to_string(tools.path().join("opened")).expect("opened");
    assert!(opened.ends_with("/leak.html") && Path::new(&opened).is_absolute(), "{opened}");
    assert!(err.contains("and opened it"), "{err}");

    let done =
        with_path(folder.path(), tools.path(), &["report", &trace("leak"), "--open", "-o", "named.html"]);
    assert!(done.status.success());
    assert!(fs::read_to_string(tools.path().join("opened")).expect("opened").ends_with("/named.html"));
}

#[test]
fn without_an_opener_the_path_is_told() {
    let (tools, folder) = (temp(), temp());
    let told = |args: &[&str]| {
        let done = with_path(folder.path(), tools.path(), args);
        assert!(done.status.success());
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let err = told(&["report", &trace("leak"), "--open"]);
    assert!(
        err.contains("leak.html; no program here could open it") && err.contains("not installed"),
        "{err}"
    );
    opener(tools.path(), 3);
    let err = told(&["report", &trace("leak"), "--open"]);
    assert!(err.contains("xdg-open failed"), "{err}");
}

#[test]
fn open_refuses_what_cannot_be_opened() {
    let path = trace("leak");
    for (args, word) in [(["--format", "json"], "another format"), (["-o", "-"], "standard output")] {
        let done = run(&["report", &path, "--open", args[0], args[1]]);
        assert_eq!(done.code, 2);
        assert!(done.err.contains(word), "{}", done.err);
    }
}

#[test]
fn watch_refuses_standard_input() {
    let done = run(&["report", "-", "--watch"]);
    assert_eq!((done.code, done.out.as_str()), (2, ""));
    assert!(done.err.contains("standard input cannot be read twice"), "{}", done.err);
}

fn interrupt(child: &mut Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
    assert!(child.wait().expect("it ends").success(), "Ctrl-C is how a watch ends");
}

#[test]
fn watch_follows_a_recording_that_grows() {
    let folder = temp();
    let whole = folder.path().join("whole.gtrace");
    let to = whole.to_str().expect("UTF-8");
    assert_eq!(run(&["export", &trace("gpt2_train"), "--to", "gtrace", "-o", to]).code, 0);
    let bytes = fs::read(&whole).expect("the recording");
    let path = folder.path().join("run.gtrace");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    let mut child = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(["report", "run.gtrace", "--watch"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut until = |word: &str| {
        let found = lines.by_ref().map(|line| line.expect("UTF-8")).find(|line| line.contains(word));
        found.unwrap_or_else(|| panic!("the output ended before {word:?}"))
    };
    until("the file ends in the middle of block");
    let few = until("Device 0");
    fs::write(&path, &bytes).expect("written");
    until("=== report 2");
    let all = until("Device 0");
    assert!(all.contains("26,389 events") && few != all, "{few} then {all}");
    interrupt(&mut child);
}

#[test]
fn watch_rewrites_a_page_when_the_file_is_replaced() {
    let folder = temp();
    let path = folder.path().join("run.pickle.gz");
    let page = folder.path().join("page.json");
    // A file that is not a trace yet does not end the watch.
    fs::write(&path, "half").expect("written");
    let mut child = Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(["report", "run.pickle.gz", "--watch", "--format", "json", "-o", "page.json"])
        .current_dir(folder.path())
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let waits =
        lines.by_ref().map(|line| line.expect("UTF-8")).any(|line| line.contains("waiting for the file"));
    assert!(waits && !page.exists());
    let beside = folder.path().join("new");
    fs::copy(trace("leak"), &beside).expect("copied");
    fs::rename(&beside, &path).expect("replaced");
    // The page appears whole: whenever it is there, it can be read.
    let report: serde_json::Value = loop {
        if let Ok(text) = fs::read_to_string(&page) {
            break serde_json::from_str(&text).expect("a whole page");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert_eq!(report["schema"], "gapless.report/1");
    interrupt(&mut child);
}
