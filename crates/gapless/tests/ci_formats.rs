//! The output of `check` for CI systems, and baselines: each format has the members that its readers require.

mod support;

use serde_json::Value;
use std::fs;
use support::{run, run_in, trace};

fn checked(name: &str, format: &str, limit: &str) -> (i32, String) {
    let done = run(&["check", &trace(name), "--max-peak-reserved", limit, "--format", format]);
    assert!(done.code < 2, "{}", done.err);
    (done.code, done.out)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn text<'v>(value: &'v Value, at: &str) -> &'v str {
    value
        .pointer(at)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| panic!("{at} of {value}"))
}

#[test]
fn sarif_has_what_its_schema_requires() {
    let (code, out) = checked("leak", "sarif", "256MiB");
    assert_eq!(code, 1);
    let log = json(&out);
    assert_eq!((text(&log, "/version"), log["runs"].as_array().map(Vec::len)), ("2.1.0", Some(1)));
    assert!(text(&log, "/$schema").contains("sarif-2.1.0"));
    let run = &log["runs"][0];
    assert_eq!(text(run, "/tool/driver/name"), "gapless");
    let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
    for rule in rules {
        assert!(!text(rule, "/id").contains(' '));
        for at in ["/shortDescription/text", "/help/text", "/help/markdown"] {
            text(rule, at);
        }
        assert!(["note", "warning", "error"].contains(&text(rule, "/defaultConfiguration/level")));
    }
    let results = run["results"].as_array().expect("results");
    assert!(results.len() >= 2, "a limit and a finding");
    for result in results {
        let index = result["ruleIndex"].as_u64().expect("an index") as usize;
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(["note", "warning", "error"].contains(&text(result, "/level")));
        text(result, "/message/text");
        let uri = text(result, "/locations/0/physicalLocation/artifactLocation/uri");
        assert_eq!(uri, "cases/leak.pickle.gz");
        assert_eq!(result.pointer("/locations/0/physicalLocation/region/startLine"), Some(&Value::from(1)));
        assert_eq!(text(result, "/partialFingerprints/gaplessIssue~1v1").len(), 32);
    }
    assert_eq!((text(&results[0], "/ruleId"), text(&results[0], "/level")), ("peak-reserved", "error"));
    let coded = results.iter().find(|r| text(r, "/ruleId").starts_with("GAP")).expect("a finding");
    let rule = &rules[coded["ruleIndex"].as_u64().expect("an index") as usize];
    assert!(text(rule, "/help/markdown").contains("## What to do"), "the explanation is the help");
}

#[test]
fn gitlab_gets_a_list_with_stable_fingerprints() {
    let prints = |limit: &str| {
        let (_, out) = checked("leak", "gitlab", limit);
        let list = json(&out).as_array().expect("a list").clone();
        for entry in &list {
            for at in ["/description", "/check_name", "/fingerprint", "/severity", "/location/path"] {
                text(entry, at);
            }
            assert!(["info", "minor", "major", "critical", "blocker"].contains(&text(entry, "/severity")));
            assert!(entry.pointer("/location/lines/begin").is_some_and(Value::is_u64));
            assert!(!text(entry, "/description").contains('\n'));
        }
        let mut prints: Vec<String> =
            list.iter().map(|entry| text(entry, "/fingerprint").to_owned()).collect();
        prints.sort();
        prints
    };
    let first = prints("256MiB");
    assert_eq!(first, prints("200MiB"), "another figure is the same issue");
    let mut once = first.clone();
    once.dedup();
    assert_eq!(once, first, "two issues never share one");
    assert_eq!(prints("1TiB").len() + 1, first.len(), "within the limit one entry is gone");
}

#[test]
fn markdown_says_the_verdict_first() {
    let (code, over) = checked("leak", "markdown", "256MiB");
    assert_eq!(code, 1);
    assert!(over.starts_with("### Memory: ❌ over 1 limit\n"), "{over}");
    assert!(over.contains("| ❌ | device 0 peak reserved | **286 MiB** | 256 MiB |"), "{over}");
    assert!(over.contains("<details><summary>What holds the peak</summary>"), "{over}");
    assert_eq!(over.matches("<details>").count(), over.matches("</details>").count());
    let (code, within) = checked("leak", "markdown", "1TiB");
    assert_eq!(code, 0);
    assert!(within.starts_with("### Memory: ✅ within all limits\n"), "{within}");
    for line in over.lines().filter(|line| line.starts_with('|')) {
        assert!(line.ends_with('|'), "{line}");
    }
}

#[test]
fn reports_and_diffs_come_as_markdown_too() {
    let report = run(&["report", &trace("gpt2_train"), "--format", "markdown"]);
    assert_eq!(report.code, 0, "{}", report.err);
    assert!(report.out.starts_with("### Memory of <code>"), "{}", report.out);
    assert!(report.out.contains("| 0 | 14.2 GiB | 12.7 GiB | 11 % |"), "{}", report.out);
    let diff = run(&["diff", &trace("gpt2_train"), &trace("split_round"), "--format", "markdown"]);
    assert_eq!(diff.code, 0, "{}", diff.err);
    assert!(
        diff.out.contains("| peak reserved | 14.2 GiB |") && diff.out.contains("What grew"),
        "{}",
        diff.out
    );
}

#[test]
fn a_baseline_is_written_and_held_against_the_next_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |args: &[&str]| run_in(folder.path(), args, None);
    let path = trace("leak");
    let wrote = run(&["check", &path, "--write-baseline", "main.baseline"]);
    assert_eq!((wrote.code, wrote.out.as_str()), (0, ""), "{}", wrote.err);
    assert!(wrote.err.contains("wrote main.baseline"), "{}", wrote.err);
    let same = run(&["check", &path, "--baseline", "main.baseline"]);
    assert_eq!(same.code, 0, "whatever the file is called: {}", same.err);
    let larger = run(&["check", &trace("gpt2_train"), "--baseline", "main.baseline"]);
    assert_eq!(larger.code, 1, "{}", larger.err);
    // The run is compared with the old baseline, and then replaces it.
    let moved =
        ["check", &trace("gpt2_train"), "--baseline", "main.baseline", "--write-baseline", "main.baseline"];
    assert_eq!(run(&moved).code, 1);
    assert_eq!(run(&["check", &trace("gpt2_train"), "--baseline", "main.baseline"]).code, 0);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left beside it");
}

#[test]
fn a_baseline_of_many_ranks_is_held_against_each_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |args: &[&str]| run_in(folder.path(), args, None);
    for (rank, name) in ["leak", "leak", "gc_split"].iter().enumerate() {
        fs::copy(trace(name), folder.path().join(format!("rank{rank}.pickle.gz"))).expect("copied");
    }
    let wrote = run(&["check", ".", "--write-baseline", "ranks.baseline"]);
    assert_eq!((wrote.code, wrote.out.as_str()), (0, ""), "{}", wrote.err);
    let same = run(&["check", ".", "--baseline", "ranks.baseline"]);
    assert_eq!(same.code, 0, "{}{}", same.out, same.err);
    assert_eq!(same.out.matches("baseline").count(), 6, "two peaks of three ranks: {}", same.out);
    // One rank takes more than before, the others do not.
    fs::copy(trace("gpt2_train"), folder.path().join("rank1.pickle.gz")).expect("copied");
    let larger = run(&["check", ".", "--baseline", "ranks.baseline", "--format", "json"]);
    assert_eq!(larger.code, 1, "{}", larger.err);
    let verdict: serde_json::Value = serde_json::from_str(&larger.out).expect("JSON");
    let rows = verdict["rows"].as_array().expect("rows");
    let over: Vec<_> = rows.iter().filter(|row| row["passed"] == false).map(|row| &row["rank"]).collect();
    assert!(!over.is_empty() && over.iter().all(|rank| **rank == 1), "{over:?}");
    // A rank that the baseline does not know is an error, not skipped.
    fs::copy(trace("leak"), folder.path().join("rank3.pickle.gz")).expect("copied");
    let unknown = run(&["check", "rank0.pickle.gz", "rank3.pickle.gz", "--baseline", "ranks.baseline"]);
    assert_eq!(unknown.code, 2, "{}", unknown.out);
    // A baseline of many ranks does not serve for one rank, and a damaged one is an error.
    let one = run(&["check", "rank0.pickle.gz", "--baseline", "ranks.baseline"]);
    assert_eq!(one.code, 2);
    assert!(one.err.contains("the figures of many ranks"), "{}", one.err);
    let text = fs::read_to_string(folder.path().join("ranks.baseline")).expect("read");
    fs::write(folder.path().join("ranks.baseline"), &text[..text.len() / 2]).expect("written");
    let damaged = run(&["check", ".", "--baseline", "ranks.baseline"]);
    assert_eq!(damaged.code, 2);
    assert!(damaged.err.contains("a damaged report of many ranks"), "{}", damaged.err);
}

#[test]
fn a_baseline_never_replaces_the_trace_or_a_file_that_it_cannot() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("run.pickle.gz");
    fs::copy(trace("leak"), &copy).expect("copied");
    let before = fs::read(&copy).expect("read");
    let done =
        run_in(folder.path(), &["check", "run.pickle.gz", "--write-baseline", "./run.pickle.gz"], None);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("the same file as the input"), "{}", done.err);
    assert_eq!(fs::read(&copy).expect("read"), before);
    let done = run_in(folder.path(), &["check", "run.pickle.gz", "--write-baseline", "none/main.json"], None);
    assert_eq!(done.code, 2);
}
