//! Every recorded run, through the binary: figures equal those that the run reported of itself, to the byte, and the
//! JSON contract holds.

mod support;

use serde_json::Value;
use support::schema::validate;
use support::{all_traces, repo, report};

/// The figures that the run of `name` reported; `None` if the recording cannot know it.
fn truth(name: &str) -> Option<Value> {
    let read = |path: &str| -> Value {
        serde_json::from_slice(&std::fs::read(repo(path)).expect("a file")).expect("JSON")
    };
    let cases = read("testdata/cases/truth.json");
    if let Some(case) = cases.get(name) {
        // This file has no history, so it has no peaks.
        return (name != "nohistory").then(|| case.clone());
    }
    let runs = read("testdata/traces/ground_truth.json");
    let (workload, run) = if let Some(workload) = name.strip_suffix("_stacks") {
        (workload, "native.stacks")
    } else if let Some(workload) = name.strip_suffix("_expandable") {
        (workload, "expandable.trace")
    } else {
        (name, "native.trace")
    };
    Some(runs[workload]["runs"][run].clone())
}

#[test]
fn figures_equal_what_the_run_reported_to_the_byte() {
    let (mut checked, mut figures) = (0, 0);
    for (name, path) in all_traces() {
        let Some(truth) = truth(&name) else { continue };
        let report = report(path.to_str().expect("UTF-8"));
        let device = &report["devices"][0];
        for (ours, theirs) in [
            ("peak_allocated", "allocated_bytes.all.peak"),
            ("peak_active", "active_bytes.all.peak"),
            ("peak_requested", "requested_bytes.all.peak"),
            ("peak_reserved", "reserved_bytes.all.peak"),
            ("segments_peak", "segment.all.peak"),
        ] {
            // Some runs reported only their peak of reserved memory.
            assert!(truth[theirs].is_u64() || ours != "peak_reserved", "{name}: {theirs} is known");
            if truth[theirs].is_u64() {
                assert_eq!(device[ours], truth[theirs], "{name}: {ours}");
                figures += 1;
            }
        }
        assert!(!has_note(&report, "final-state-differs"), "{name}");
        checked += 1;
    }
    assert!(checked >= 34 && figures >= 5 * 23 + 11, "{checked} runs and {figures} figures were checked");
}

#[test]
fn counts_equal_what_the_run_reported() {
    for name in ["oom", "oom_exp", "retries", "gc_cap", "graphs", "exp_empty", "leak", "cpppickle"] {
        let (truth, report) = (truth(name).expect("known"), report(&support::trace(name)));
        let device = &report["devices"][0];
        assert_eq!(device["allocations"], truth["allocation.all.allocated"], "{name}");
        assert_eq!(device["churn"]["device_allocs"], truth["num_device_alloc"], "{name}");
        assert_eq!(device["churn"]["device_frees"], truth["num_device_free"], "{name}");
        let ooms = device["churn"]["ooms"].as_array().expect("a list").len();
        assert_eq!(ooms as u64, truth["num_ooms"].as_u64().expect("a count"), "{name}");
        assert_eq!(device["end"]["reserved"], truth["reserved_bytes.all.current"], "{name}");
        assert_eq!(device["end"]["allocated"], truth["allocated_bytes.all.current"], "{name}");
    }
}

#[test]
fn device_calls_and_failures_equal_what_the_run_reported() {
    for name in [
        "compiled_trees",
        "exp48_cap",
        "gc_split",
        "graphs_exp",
        "graphs_native",
        "large64",
        "mempools",
        "mempools_exp",
        "serve",
        "split_cap",
        "threads",
    ] {
        let (truth, report) = (truth(name).expect("known"), report(&support::trace(name)));
        let device = &report["devices"][0];
        assert!(truth["events"].is_u64(), "{name}");
        assert_eq!(device["events"], truth["events"], "{name}");
        assert_eq!(device["churn"]["device_allocs"], truth["num_device_alloc"], "{name}");
        assert_eq!(device["churn"]["device_frees"], truth["num_device_free"], "{name}");
        let ooms = device["churn"]["ooms"].as_array().expect("a list").len();
        assert_eq!(ooms as u64, truth["num_ooms"].as_u64().expect("a count"), "{name}");
    }
}

#[test]
fn recordings_that_began_late_say_so_and_only_they_do() {
    for (name, path) in all_traces() {
        let late = has_note(&report(path.to_str().expect("UTF-8")), "recording-began-late");
        assert_eq!(late, ["ring", "ring_exp"].contains(&name.as_str()), "{name}");
    }
}

#[test]
fn losses_add_up_at_both_peaks() {
    for (name, path) in all_traces() {
        let report = report(path.to_str().expect("UTF-8"));
        let device = &report["devices"][0];
        for moment in ["at_peak_allocated", "at_peak_reserved"] {
            let m = &device[moment];
            let number = |value: &Value| value.as_u64().expect("a number");
            let (figures, losses) = (&m["figures"], &m["losses"]);
            assert_eq!(
                number(&figures["reserved"]) - number(&figures["active"]),
                number(&losses["external"]),
                "{name} {moment}"
            );
            assert!(number(&losses["stranded"]) <= number(&losses["external"]), "{name} {moment}");
            assert!(number(&losses["largest_gap"]) <= number(&losses["external"]), "{name} {moment}");
            let sum = |member: &str| {
                m["pools"].as_array().expect("pools").iter().map(|p| number(&p[member])).sum::<u64>()
            };
            assert_eq!(sum("reserved"), number(&figures["reserved"]), "{name} {moment}");
            assert_eq!(sum("active"), number(&figures["active"]), "{name} {moment}");
        }
        let at_peak = &device["kinds"]["at_peak"];
        let kinds: u64 =
            at_peak.as_object().expect("kinds").values().map(|v| v.as_u64().expect("bytes")).sum();
        let m = &device["at_peak_allocated"]["figures"];
        assert_eq!(
            kinds,
            m["reserved"].as_u64().expect("bytes"),
            "{name}: kinds and cached free are all there is"
        );
    }
}

#[test]
fn every_report_keeps_the_json_contract() {
    let schema: Value = serde_json::from_slice(
        &std::fs::read(repo("schema/gapless.report.schema.json")).expect("the schema"),
    )
    .expect("JSON");
    for (name, path) in all_traces() {
        let report = report(path.to_str().expect("UTF-8"));
        let mut wrong = Vec::new();
        validate(&schema, &schema, &report, "$", &mut wrong);
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
    }
    // The validator itself must be able to fail.
    let mut wrong = Vec::new();
    validate(
        &schema,
        &schema,
        &serde_json::json!({"schema": "gapless.report/2", "devices": 1}),
        "$",
        &mut wrong,
    );
    assert!(wrong.len() >= 5, "{wrong:?}");
}

fn has_note(report: &Value, code: &str) -> bool {
    report["source"]["notes"].as_array().expect("notes").iter().any(|note| note["code"] == code)
}
