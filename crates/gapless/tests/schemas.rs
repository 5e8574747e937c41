//! The JSON of `diff`, `check` and `plan` keeps to `schema/`, on real runs.

mod support;

use serde_json::{Value, json};
use std::fs;
use support::{all_traces, repo, run, run_in, schema};

fn keeps(name: &str, args: &[&str], codes: &[i32]) -> Value {
    let done = run(args);
    assert!(codes.contains(&done.code), "{args:?}: {}", done.err);
    holds(name, &done.out)
}

fn holds(name: &str, text: &str) -> Value {
    let value: Value = serde_json::from_str(text).expect("JSON");
    let wrong = schema::against(name, &value);
    assert!(wrong.is_empty(), "gapless.{name}: {}", wrong.join("\n"));
    value
}

#[test]
fn diff_keeps_its_schema() {
    let traces = all_traces();
    let mut with_holders = 0;
    // Runs with and without steps, stacks and a clock; and runs that have little in common.
    for pair in traces.windows(2) {
        let [before, after] = [&pair[0].1, &pair[1].1].map(|path| path.display().to_string());
        let diff = keeps("diff", &["diff", &before, &after, "--format", "json"], &[0]);
        let devices = diff["devices"].as_array().expect("devices");
        with_holders +=
            devices.iter().filter(|d| d["holders"].as_array().is_some_and(|h| !h.is_empty())).count();
    }
    assert!(with_holders > 0, "holders are checked too");
}

#[test]
fn check_keeps_its_schema() {
    for (_, path) in all_traces() {
        let path = path.display().to_string();
        for limit in ["1MiB", "4TiB"] {
            let budget = ["--max-peak-reserved", limit, "--max-fragmentation", "50%", "--format", "json"];
            let done = run(&[&["check", &path][..], &budget].concat());
            // Code 2 means that a figure is not known. Any JSON that is written keeps to the schema.
            assert!((0..=2).contains(&done.code), "{}", done.err);
            if !done.out.is_empty() {
                holds("check", &done.out);
            }
        }
    }
    let path = repo("testdata/traces/gpt2_train_stacks.pickle.gz").display().to_string();
    let over = keeps("check", &["check", &path, "--max-peak-reserved", "1MiB", "--format", "json"], &[1]);
    assert!(!over["holders"].as_array().expect("holders").is_empty());
}

#[test]
fn plan_keeps_its_schema() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("buffers.csv", "id,lower,upper,size,accesses\na,0,4,8,1\nb,2,6,8,5\nc,5,9,8,1\n");
    write(
        "spaces.toml",
        "[[space]]\nname = \"sram\"\ncapacity = \"8\"\ncost = 1\n[[space]]\nname = \"dram\"\ncost = 10\n",
    );
    let ask = |more: &[&str], code: i32| {
        let done =
            run_in(folder.path(), &[&["plan", "buffers.csv", "--format", "json"], more].concat(), None);
        assert_eq!(done.code, code, "{}", done.err);
        holds("plan", &done.out)
    };
    ask(&[], 0);
    ask(&["--capacity", "16B"], 0);
    let tight = ask(&["--capacity", "15B"], 1);
    assert!(!tight["conflict"].as_array().expect("a conflict").is_empty());
    let spaces = ask(&["--spaces", "spaces.toml"], 0);
    assert_eq!(spaces["spaces"].as_array().expect("spaces").len(), 2);
}

#[test]
fn what_is_against_a_schema_is_found() {
    for name in ["diff", "check", "plan"] {
        assert!(!schema::against(name, &json!({"schema": format!("gapless.{name}/2")})).is_empty(), "{name}");
    }
    let row = json!({"figure": "peak reserved", "device": 0, "unit": "furlongs", "value": 1, "limit": 1,
        "passed": true, "against": "budget"});
    let verdict = json!({"schema": "gapless.check/1", "path": "a", "passed": true, "rows": [row], "holders": [], "more": 1});
    let wrong = schema::against("check", &verdict);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}
