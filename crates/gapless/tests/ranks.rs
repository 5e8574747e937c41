//! Many files are one run: `report`, `diff`, `check` and `advise` on folders and lists of files.

mod support;

use gapless_trace::Bytes;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use support::{Run, all_traces, repo, report, run, run_in, schema, trace};

/// A folder with copies of recorded runs under other names.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a folder"));
        for (name, of) in files {
            folder.copy(name, of);
        }
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn copy(&self, name: &str, of: &str) {
        let to = self.file(name);
        fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        fs::copy(trace(of), to).expect("copied");
    }

    fn run(&self, args: &[&str]) -> Run {
        run_in(self.path(), args, None)
    }
}

fn json(run: &Run, name: &str) -> Value {
    let value: Value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("JSON: {}", run.err));
    let wrong = schema::against(name, &value);
    assert!(wrong.is_empty(), "gapless.{name}: {}", wrong.join("\n"));
    value
}

fn ranks(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{}", run.err);
    json(run, "ranks")
}

/// Four ranks: two alike, one with other numbers, one in another format.
fn small() -> Folder {
    let folder = Folder::new(&[
        ("rank0.pickle.gz", "leak"),
        ("rank1.pickle.gz", "leak"),
        ("rank2.pickle.gz", "gc_split"),
    ]);
    let done = run(&[
        "export",
        &trace("leak"),
        "--to",
        "gtrace",
        "-o",
        &folder.file("rank3.gtrace").display().to_string(),
    ]);
    assert_eq!(done.code, 0, "{}", done.err);
    folder
}

#[test]
fn every_figure_equals_that_of_the_single_report_in_every_format() {
    let folder = small();
    for (i, (name, _)) in all_traces().iter().enumerate() {
        folder.copy(&format!("rank{}.pickle.gz", i + 4), name);
    }
    let all = ranks(&folder.run(&["report", ".", "--format", "json"]));
    let rows = all["ranks"].as_array().expect("rows");
    assert!(rows.len() >= 24, "{}", rows.len());
    for row in rows {
        let file = folder.file(row["file"].as_str().expect("a file"));
        let alone = report(&file.display().to_string());
        let device =
            alone["devices"].as_array().expect("devices").iter().find(|d| d["device"] == row["device"]);
        let device = device.expect("the device");
        for figure in ["peak_allocated", "peak_reserved", "fragmentation", "events"] {
            assert_eq!(row[figure], device[figure], "{figure} of {}", row["file"]);
        }
        assert_eq!(row["steps"], device["steps"]["count"]);
        assert_eq!(row["kinds"], device["kinds"]["at_peak"]);
        assert_eq!(row["ooms"], device["churn"]["ooms"]);
    }
    let peak = |row: &&Value| row["peak_reserved"].as_u64().unwrap_or(0);
    let worst = rows.iter().max_by_key(peak).expect("a row");
    assert_eq!(all["worst_rank"], worst["rank"]);
}

#[test]
fn text_and_markdown_show_the_figures_of_the_json() {
    let folder = small();
    for (i, (name, _)) in all_traces().iter().take(12).enumerate() {
        folder.copy(&format!("rank{}.pickle.gz", i + 4), name);
    }
    let all = ranks(&folder.run(&["report", ".", "--format", "json"]));
    let (text, markdown) =
        (folder.run(&["report", "."]), folder.run(&["report", ".", "--format", "markdown"]));
    for row in all["ranks"].as_array().expect("rows") {
        let shown = |figure: &str| Bytes(row[figure].as_u64().unwrap_or(0)).to_string();
        let (allocated, reserved) = (shown("peak_allocated"), shown("peak_reserved"));
        let line = text.out.lines().find(|line| line.starts_with(&format!("  rank {} ", row["rank"])));
        let line = line.unwrap_or_else(|| panic!("rank {} has a line: {}", row["rank"], text.out));
        assert!(line.contains(&allocated), "{allocated}: {line}");
        assert!(row["peak_reserved"].is_null() || line.contains(&reserved), "{reserved}: {line}");
    }
    let worst = &all["ranks"].as_array().expect("rows").iter().find(|row| row["rank"] == all["worst_rank"]);
    let worst = Bytes(worst.expect("the worst")["peak_reserved"].as_u64().expect("bytes")).to_string();
    for out in [&text.out, &markdown.out] {
        assert!(out.contains(&worst) && out.contains(&format!("rank {}", all["worst_rank"])), "{out}");
    }
}

#[test]
fn a_json_file_that_is_no_trace_is_left_out_and_changes_no_rank() {
    let folder = small();
    fs::write(folder.file("args.json"), "{\"lr\": 0.1, \"seeds\": [1, 2]}\n").expect("written");
    let all = ranks(&folder.run(&["report", ".", "--format", "json"]));
    let numbers: Vec<u64> =
        all["ranks"].as_array().expect("rows").iter().filter_map(|r| r["rank"].as_u64()).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert_eq!(all["skipped_files"].as_array().map(Vec::len), Some(1));
    // A file that is named is a row with its error, after the ranks that have numbers.
    let named =
        folder.run(&["report", "args.json", "rank0.pickle.gz", "rank2.pickle.gz", "--format", "json"]);
    let named = ranks(&named);
    assert_eq!(named["ranks"][1]["rank"], 2);
    assert!(named["ranks"][2]["error"].as_str().expect("an error").contains("not a trace"));
}

#[test]
fn files_and_a_folder_are_one_run_and_a_rank_of_it_is_the_ordinary_report() {
    let folder = small();
    let by_folder = ranks(&folder.run(&["report", ".", "--format", "json"]));
    let by_list = ranks(&folder.run(&[
        "report",
        "rank3.gtrace",
        "rank0.pickle.gz",
        "rank2.pickle.gz",
        "rank1.pickle.gz",
        "--format",
        "json",
    ]));
    for member in ["imbalance", "worst_rank", "odd_ranks", "groups", "timelines"] {
        assert_eq!(by_folder[member], by_list[member], "{member}");
    }
    let one = folder.run(&["report", ".", "--rank", "2", "--format", "json"]);
    let alone = folder.run(&["report", "./rank2.pickle.gz", "--format", "json"]);
    assert_eq!((one.code, &one.out), (0, &alone.out));
    let none = folder.run(&["report", ".", "--rank", "17"]);
    assert_eq!(none.code, 2);
    assert!(none.err.contains("no file is rank 17") && none.err.contains("ranks 0 to 3"), "{}", none.err);
}

#[test]
fn a_torn_file_is_a_row_and_other_files_of_a_folder_are_left_out() {
    let folder = small();
    let whole = fs::read(trace("oom")).expect("read");
    fs::write(folder.file("rank5.pickle.gz"), &whole[..whole.len() / 2]).expect("written");
    fs::write(folder.file("rank7.pickle"), b"").expect("written");
    fs::write(folder.file("README.md"), "notes\n").expect("written");
    let saved = folder.run(&["report", "rank0.pickle.gz", "--format", "json", "-o", "saved.json"]);
    assert_eq!(saved.code, 0, "{}", saved.err);
    let done = folder.run(&["report", ".", "--format", "json"]);
    let all = ranks(&done);
    let errors: Vec<(u64, &str)> = all["ranks"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| Some((row["rank"].as_u64()?, row["error"].as_str()?)))
        .collect();
    assert_eq!(errors.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [5, 7]);
    assert!(errors[0].1.contains("ends at byte") && errors[1].1.contains("empty"), "{errors:?}");
    assert_eq!(all["missing_ranks"], serde_json::json!([4, 6]));
    let skipped = all["skipped_files"].as_array().expect("a list");
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    let text = folder.run(&["report", "."]);
    assert!(
        text.out.contains("rank 5 could not be read") && text.out.contains("no file for ranks 4, 6"),
        "{}",
        text.out
    );
    // A file that is named and missing is a row too.
    let named =
        folder.run(&["report", "rank0.pickle.gz", "rank1.pickle.gz", "rank9.pickle", "--format", "json"]);
    assert!(ranks(&named)["ranks"][2]["error"].as_str().expect("an error").contains("no such file"));
}

#[test]
fn if_nothing_can_be_read_the_command_fails() {
    let folder = Folder::new(&[]);
    let nothing = folder.run(&["report", "."]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.err.contains("no file in this folder is a trace"), "{}", nothing.err);
    fs::write(folder.file("rank0.pickle"), b"\x80\x04.").expect("written");
    fs::write(folder.file("rank1.pickle"), b"").expect("written");
    let broken = folder.run(&["report", "."]);
    assert_eq!(broken.code, 2);
    assert!(broken.err.contains("none of the 2 files could be read"), "{}", broken.err);
    for args in [
        &["report", "-", "rank0.pickle"][..],
        &["report", ".", "--format", "html"],
        &["report", ".", "--advise"],
    ] {
        let done = folder.run(args);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
        assert!(done.err.contains("help"), "{}", done.err);
    }
}

#[test]
fn the_output_is_never_a_file_of_the_folder_that_is_read() {
    let folder = small();
    let before = fs::read(folder.file("rank1.pickle.gz")).expect("read");
    let done = folder.run(&["report", ".", "-o", "rank1.pickle.gz"]);
    assert_eq!(done.code, 2);
    assert_eq!(fs::read(folder.file("rank1.pickle.gz")).expect("read"), before);
}

#[test]
fn ranks_may_lie_in_folders_of_their_own_and_repeat() {
    let folder = Folder::new(&[("worker-0/mem.pickle.gz", "leak"), ("worker-1/mem.pickle.gz", "leak")]);
    let all = ranks(&folder.run(&["report", ".", "--format", "json"]));
    let numbers: Vec<u64> =
        all["ranks"].as_array().expect("rows").iter().filter_map(|r| r["rank"].as_u64()).collect();
    assert_eq!(numbers, [0, 1]);
    let twice = Folder::new(&[("rank0.gz", "leak"), ("rank1.gz", "leak"), ("rank1 copy.gz", "leak")]);
    let all = ranks(&twice.run(&["report", ".", "--format", "json"]));
    assert_eq!(all["duplicate_ranks"], serde_json::json!([1]));
    let one = twice.run(&["report", ".", "--rank", "1"]);
    assert_eq!(one.code, 2);
    assert!(one.err.contains("2 files are rank 1"), "{}", one.err);
}

#[test]
fn a_device_can_be_picked_and_one_that_is_not_there_is_told() {
    let path = trace("leak");
    let whole = run(&["report", &path, "--format", "json"]);
    let picked = run(&["report", &path, "--device", "0", "--format", "json"]);
    assert_eq!((picked.code, picked.out), (0, whole.out));
    for args in [
        &["report", &path, "--device", "3"][..],
        &["check", &path, "--device", "3", "--max-peak-reserved", "1GiB"],
        &["diff", &path, &path, "--device", "3"],
        &["advise", &path, "--device", "3"],
    ] {
        let none = run(args);
        assert_eq!(none.code, 2, "{args:?}");
        assert!(none.err.contains("no device 3") && none.err.contains("there is: 0"), "{}", none.err);
    }
}

#[test]
fn check_holds_every_rank_and_the_spread_against_budgets() {
    let folder = small();
    let check = |more: &[&str]| folder.run(&[&["check", ".", "--format", "json"], more].concat());
    let within = check(&["--max-peak-reserved", "1TiB"]);
    assert_eq!(within.code, 0, "{}", within.err);
    let rows = json(&within, "check")["rows"].as_array().expect("rows").clone();
    assert_eq!(rows.iter().filter_map(|row| row["rank"].as_u64()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let over = check(&["--max-peak-reserved", "1MiB"]);
    assert_eq!(over.code, 1);
    assert!(!json(&over, "check")["holders"].as_array().expect("holders").is_empty());
    assert_eq!(
        check(&["--max-spread", "0%"]).code,
        0,
        "replicas are alike, and the other rank is no replica"
    );
    // The run itself as the baseline, rank by rank; then a folder that lacks a rank.
    assert_eq!(check(&["--baseline", "."]).code, 0);
    let fewer = Folder::new(&[("rank0.pickle.gz", "leak")]);
    let unknown = check(&["--baseline", &fewer.name()]);
    assert_eq!(unknown.code, 2, "{}", unknown.out);
    // A rank that cannot be read does not pass.
    fs::write(folder.file("rank4.pickle"), b"").expect("written");
    let torn = check(&["--max-peak-reserved", "1TiB"]);
    assert_eq!(torn.code, 2);
    assert!(torn.err.contains("rank 4") && torn.err.contains("empty"), "{}", torn.err);
    let one = run(&["check", &trace("leak"), "--max-spread", "5%"]);
    assert_eq!(one.code, 2);
    assert!(one.err.contains("only one file"), "{}", one.err);
}

#[test]
fn diff_compares_rank_by_rank() {
    let (before, after) = (small(), small());
    after.copy("rank1.pickle.gz", "oom");
    fs::remove_file(after.file("rank2.pickle.gz")).expect("removed");
    let done = run(&["diff", &before.name(), &after.name(), "--format", "json"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let diff = json(&done, "ranks-diff");
    assert_eq!(diff["unmatched_ranks"], serde_json::json!([2]));
    let rows = diff["ranks"].as_array().expect("rows");
    assert_eq!(rows.len(), 3);
    for row in rows {
        let same = row["peak_allocated"]["before"] == row["peak_allocated"]["after"];
        assert_eq!(same, row["rank"] != 1, "{row}");
    }
    assert!(!diff["holders"].as_array().expect("holders").is_empty());
    let text = run(&["diff", &before.name(), &after.name()]);
    assert!(text.out.contains("rank 1") && text.out.contains("What"), "{}", text.out);
    let mixed = run(&["diff", &before.name(), &trace("leak")]);
    assert_eq!(mixed.code, 2);
    let one = run(&["diff", &before.name(), &trace("oom"), "--rank", "1", "--format", "json"]);
    assert_eq!(one.code, 0, "{}", one.err);
    assert!(schema::against("diff", &serde_json::from_str(&one.out).expect("JSON")).is_empty());
}

#[test]
fn the_page_of_two_runs_of_many_ranks_says_what_the_json_says() {
    let (before, after) = (small(), small());
    after.copy("rank1.pickle.gz", "oom");
    fs::remove_file(after.file("rank2.pickle.gz")).expect("removed");
    let page = after.file("diff.html");
    let path = page.display().to_string();
    let done = run(&["diff", &before.name(), &after.name(), "--format", "html", "-o", &path]);
    assert_eq!(done.code, 0, "{}", done.err);
    let html = fs::read_to_string(&page).expect("the page");
    assert!(html.contains("not readable: 2."), "the rank of one run is told");
    assert_eq!(html.matches("<g><title>rank ").count(), 3, "a column for each rank of both");
    // The rank that differs is shown whole, with the flame graph of its difference.
    assert!(html.contains("<h2 id=\"rank\">Rank 1<span>") && html.contains("flame-box"));
    let diff = json(&run(&["diff", &before.name(), &after.name(), "--format", "json"]), "ranks-diff");
    let odd = diff["odd_ranks"]["after"].as_array().expect("odd ranks");
    assert_eq!((odd.len(), &odd[0]["why"]), (1, &serde_json::json!("out-of-memory")), "{odd:?}");
    assert!(html.contains("<td class=\"grew\">after only</td><td>out-of-memory</td>"));
    for path in [before.name(), after.name()] {
        assert!(html.contains(&path));
    }
    let text = run(&["diff", &before.name(), &after.name()]);
    assert!(text.out.contains("Odd ranks after"), "{}", text.out);
}

/// The text of a member that must exist.
fn member<'v>(value: &'v Value, at: &str) -> &'v str {
    value.pointer(at).and_then(Value::as_str).unwrap_or_else(|| panic!("{at} of {value}"))
}

/// Five replicas of which rank 3 ran with other settings, and one file that cannot be read.
fn one_odd() -> Folder {
    let folder = Folder::new(&[]);
    for rank in 0..5 {
        let of = if rank == 3 { "split_round" } else { "gpt2_train" };
        folder.copy(&format!("rank{rank}.pickle.gz"), of);
    }
    fs::write(folder.file("rank5.pickle"), b"").expect("written");
    folder
}

#[test]
fn reports_and_diffs_of_many_ranks_come_as_markdown() {
    let folder = one_odd();
    let all = ranks(&folder.run(&["report", ".", "--format", "json"]));
    assert_eq!(all["odd_ranks"][0]["rank"], 3, "{}", all["odd_ranks"]);
    let done = folder.run(&["report", ".", "--format", "markdown"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.starts_with("### Memory of 6 ranks: <code>.</code>\n"), "{}", done.out);
    assert!(done.out.contains("GAP601: ") && done.out.contains("(rank 3)"), "{}", done.out);
    assert!(done.out.contains("* rank 5 could not be read: "), "{}", done.out);
    assert!(done.out.contains(&format!("| worst | rank {} |", all["worst_rank"])), "{}", done.out);
    let other = one_odd();
    other.copy("rank0.pickle.gz", "split_round");
    let diff = run(&["diff", &folder.name(), &other.name(), "--format", "markdown"]);
    assert_eq!(diff.code, 0, "{}", diff.err);
    assert!(diff.out.contains("Peaks differ on 1 of 5 ranks") && diff.out.contains("What "), "{}", diff.out);
    for text in [&done.out, &diff.out] {
        assert_eq!(text.matches("<details>").count(), text.matches("</details>").count());
        for line in text.lines().filter(|line| line.starts_with('|')) {
            assert!(line.ends_with('|'), "{line}");
        }
    }
}

#[test]
fn scanners_get_an_issue_for_every_rank_with_its_file() {
    let folder = one_odd();
    let check = |limit: &str, format: &str| {
        let done = folder.run(&["check", ".", "--max-peak-reserved", limit, "--format", format]);
        assert!(!done.out.is_empty(), "{}", done.err);
        done
    };
    let over = check("1GiB", "sarif");
    assert_eq!(over.code, 1, "{}", over.err);
    let log: Value = serde_json::from_str(&over.out).expect("JSON");
    let files = log["runs"][0]["artifacts"].as_array().expect("files");
    let results = log["runs"][0]["results"].as_array().expect("results");
    let of = |rule: &str| {
        let own = results.iter().filter(|r| member(r, "/ruleId") == rule);
        own.map(|r| member(r, "/locations/0/physicalLocation/artifactLocation/uri")).collect::<Vec<_>>()
    };
    let five: Vec<String> = (0..5).map(|rank| format!("./rank{rank}.pickle.gz")).collect();
    assert_eq!(of("peak-reserved"), five);
    assert_eq!(of("every-figure"), ["./rank5.pickle"], "a file that cannot be read");
    assert_eq!(of("GAP601"), ["./rank3.pickle.gz"], "the odd rank");
    for result in results {
        let place = result.pointer("/locations/0/physicalLocation/artifactLocation").expect("a place");
        let index = place["index"].as_u64().expect("an index") as usize;
        assert_eq!(files[index]["location"]["uri"], place["uri"]);
    }
    let list = |limit: &str| {
        let done = check(limit, "gitlab");
        let list: Vec<Value> = serde_json::from_str(&done.out).expect("a list");
        list.iter()
            .map(|e| (member(e, "/fingerprint").to_owned(), member(e, "/location/path").to_owned()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let found = list("1GiB");
    assert_eq!(found.len(), results.len(), "no two issues share a fingerprint");
    assert!(found.values().any(|path| path == "rank3.pickle.gz"), "{found:?}");
    assert_eq!(found, list("2GiB"), "another figure is the same issue");
    let markdown = check("1GiB", "markdown");
    assert_eq!(markdown.code, 1);
    let head = "### Memory: ❌ over 5 limits, and 1 limit could not be checked\n";
    assert!(markdown.out.starts_with(head), "{}", markdown.out);
    assert!(markdown.out.contains("| ❌ | rank 3 peak reserved |"), "{}", markdown.out);
    assert!(markdown.out.contains("GAP601"), "{}", markdown.out);
}

#[test]
fn advise_gives_one_setting_for_all_ranks() {
    let folder = Folder::new(&[("rank0.pickle.gz", "leak"), ("rank1.pickle.gz", "gc_split")]);
    let done = folder.run(&["advise", ".", "--format", "json"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let advice = json(&done, "ranks-advice");
    assert_eq!(advice["rows"].as_array().expect("rows").len(), 2);
    assert_eq!(advice["fails_before"], 0);
    // No setting helps a card that is too small for the live bytes.
    let small = folder.run(&["advise", ".", "--capacity", "2MiB", "--format", "json"]);
    assert_eq!(small.code, 1, "{}", small.err);
    assert_eq!(json(&small, "ranks-advice")["verdict"], "no-setting");
}

#[test]
fn what_is_against_the_schema_is_found() {
    let row = serde_json::json!({"schema": "gapless.ranks/2"});
    assert!(!schema::against("ranks", &row).is_empty());
    assert!(repo("schema/gapless.ranks.schema.json").exists());
}
