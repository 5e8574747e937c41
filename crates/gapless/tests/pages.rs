//! The pages of `plan` and `fit` show their own answers: the data of the page in the file that was written.

mod support;

use serde_json::Value;
use std::fs;
use support::{run, run_in, schema};

/// The report that a page carries.
fn carried(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"report\">").expect("a report");
    let (json, _) = rest.split_once("</script>").expect("its end");
    let report: Value = serde_json::from_str(json).expect("JSON");
    let wrong = schema::against("report", &report);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    report
}

fn tile<'v>(report: &'v Value, name: &str) -> &'v str {
    let tiles = report["headline"]["tiles"].as_array().expect("tiles");
    let found = tiles.iter().find(|tile| tile["name"] == name).unwrap_or_else(|| panic!("no tile {name}"));
    found["value"].as_str().expect("a value")
}

const BUFFERS: &str = "id,lower,upper,size,alignment,offset\na,0,4,8,4,\nb,2,6,8,1,0\nc,5,9,8,1,\n";

#[test]
fn a_plan_shows_peak_bound_gap_and_whether_it_fits() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("buffers.csv"), BUFFERS).expect("written");
    let plan = |more: &[&str]| {
        let done =
            run_in(folder.path(), &[&["plan", "buffers.csv", "--format", "html"][..], more].concat(), None);
        assert!(done.code < 2, "{}", done.err);
        carried(&done.out)
    };
    let free = plan(&[]);
    assert_eq!(
        (tile(&free, "Peak"), tile(&free, "Lower bound"), tile(&free, "Gap")),
        ("16 B", "16 B", "none")
    );
    let title = free["headline"]["title"].as_str().expect("a title");
    assert!(title.contains("proven optimal"), "{title}");
    let buffers =
        free["headline"]["tiles"].as_array().expect("tiles").iter().find(|t| t["name"] == "Buffers");
    let note = buffers.and_then(|t| t["note"].as_str()).expect("a note");
    assert!(note.contains("1 fixed") && note.contains("1 aligned, to 4 B"), "{note}");
    let fits = plan(&["--capacity", "20B"]);
    assert_eq!((fits["headline"]["tone"].as_str(), tile(&fits, "Capacity")), (Some("good"), "20 B"));
    let never = plan(&["--capacity", "12B"]);
    assert_eq!(never["headline"]["tone"], "bad");
    assert_eq!(never["headline"]["lists"][0]["rows"].as_array().map(Vec::len), Some(2), "who is in conflict");
}

#[test]
fn fit_shows_its_verdict_its_card_and_its_plans() {
    let asked = ["fit", "gpt2", "--batch", "8", "--seq", "512", "--format", "html"];
    let done = run(&[&asked[..], &["--memory", "80GiB"]].concat());
    assert_eq!(done.code, 0, "{}", done.err);
    let fits = carried(&done.out);
    assert_eq!(fits["headline"]["tone"], "good");
    assert!(!tile(&fits, "Peak allocated").is_empty());
    assert_eq!(fits["headline"]["bar"]["limit"], 80_u64 << 30);
    assert_eq!(fits["devices"].as_array().map(Vec::len), Some(1), "the step over time");
    let done = run(&[&asked[..], &["--memory", "3GiB", "--top", "2"]].concat());
    let tight = carried(&done.out);
    let plans = tight["headline"]["lists"][0]["rows"].as_array().expect("plans");
    assert!(!plans.is_empty(), "{}", tight["headline"]);
}

#[test]
fn an_answer_from_closed_forms_is_a_page_too() {
    let asked = ["fit", "llama-3-8b", "--gpus", "8", "--batch", "1", "--zero", "3", "--format", "html"];
    let done = run(&asked);
    assert!(done.code < 2, "{}", done.err);
    let report = carried(&done.out);
    assert_eq!(report["devices"].as_array().map(Vec::len), Some(0), "no step was simulated");
    assert!(report["headline"]["title"].as_str().is_some_and(|title| title.contains("fit")));
}
