//! Arrows between crates point one way: this is the whole list of those allowed.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Crate, and the crates of ours that it may use. A new arrow is a decision: it is made here, and in ARCHITECTURE.md.
const ALLOWED: &[(&str, &[&str])] = &[
    ("gapless-size", &[]),
    ("gapless-threads", &[]),
    ("gapless-trace", &["gapless-size", "gapless-threads"]),
    ("gapless-formats", &["gapless-threads"]),
    ("gapless-weights", &["gapless-formats", "gapless-threads"]),
    ("gapless-ingest", &["gapless-formats", "gapless-threads", "gapless-trace"]),
    ("gapless-export", &["gapless-trace"]),
    ("gapless-plan", &["gapless-threads", "gapless-trace"]),
    ("gapless-problems", &["gapless-formats", "gapless-plan", "gapless-trace"]),
    ("gapless-train", &["gapless-trace"]),
    ("gapless-fleet", &["gapless-formats", "gapless-trace"]),
    ("gapless-grpc", &[]),
    ("gapless-aside", &[]),
    ("gapless-stats", &["gapless-aside"]),
    ("gapless-pool", &[]),
    ("gapless-checker", &["gapless-pool"]),
    ("gapless-ledger", &["gapless-size"]),
    (
        "gapless-kube",
        &["gapless-fleet", "gapless-grpc", "gapless-ledger", "gapless-threads", "gapless-trace"],
    ),
    ("gapless-host", &["gapless-aside", "gapless-size"]),
    ("gapless-malloc", &["gapless-host", "gapless-stats"]),
    ("gapless-cuda", &["gapless-pool"]),
    ("gapless-hip", &["gapless-cuda", "gapless-pool"]),
    ("gapless-loader", &["gapless-cuda", "gapless-formats", "gapless-threads", "gapless-weights"]),
    (
        "gapless-torch",
        &[
            "gapless-pool",
            "gapless-plan",
            "gapless-cuda",
            "gapless-hip",
            "gapless-ledger",
            "gapless-stats",
            "gapless-trace",
        ],
    ),
    ("gapless-replay", &["gapless-trace", "gapless-plan", "gapless-pool", "gapless-threads"]),
    (
        "gapless-fit",
        &["gapless-formats", "gapless-trace", "gapless-plan", "gapless-replay", "gapless-threads"],
    ),
    ("gapless-page", &["gapless-threads", "gapless-trace"]),
    (
        "gapless-report",
        &["gapless-trace", "gapless-replay", "gapless-fit", "gapless-page", "gapless-threads"],
    ),
    (
        "gapless",
        &[
            "gapless-trace",
            "gapless-ingest",
            "gapless-export",
            "gapless-cuda",
            "gapless-fit",
            "gapless-fleet",
            "gapless-host",
            "gapless-kube",
            "gapless-ledger",
            "gapless-size",
            "gapless-stats",
            "gapless-page",
            "gapless-plan",
            "gapless-problems",
            "gapless-replay",
            "gapless-report",
            "gapless-threads",
            "gapless-train",
            "gapless-weights",
        ],
    ),
    ("xtask", &[]),
];

/// Work that a crate leaves to others: parts of file names that none of its sources has.
const LEFT_TO_OTHERS: &[(&str, &[&str], &str)] = &[(
    "gapless-plan",
    &["baseline", "csv", "json", "onnx", "read", "generate."],
    "it packs: gapless-problems reads and makes problems, examples/plan_bench has the planners of others",
)];

/// The libraries that are loaded into a user's process, and a crate that ships with each.
const INSIDE: &[(&str, &str)] = &[("gapless-torch", "gapless-pool"), ("gapless-malloc", "gapless-host")];
/// Crates that must not come into that process with them: parsers, and tools of the command line.
const BANNED_INSIDE: &[&str] =
    &["serde", "serde_core", "serde_json", "regex", "clap", "anyhow", "flate2", "zstd"];

fn metadata(flags: &[&str]) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline"])
        .args(flags)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn packages() -> Vec<Value> {
    metadata(&["--no-deps"])["packages"].as_array().expect("packages").clone()
}

fn name(package: &Value) -> String {
    package["name"].as_str().expect("a name").to_owned()
}

#[test]
fn every_crate_uses_only_crates_below_it() {
    let packages = packages();
    let ours: Vec<String> = packages.iter().map(name).collect();
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for package in &packages {
        let user = name(package);
        let may = allowed.get(user.as_str()).unwrap_or_else(|| panic!("{user} has no row in ALLOWED"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let used = dependency["name"].as_str().expect("a name");
            // Tests may use crates above, so only shipped dependencies count.
            let ships = dependency["kind"].is_null();
            if ships && ours.iter().any(|o| o == used) {
                assert!(may.contains(&used), "{user} -> {used} is not allowed");
            }
        }
    }
}

#[test]
fn the_list_of_arrows_has_no_cycle_and_no_strangers() {
    let ours: Vec<String> = packages().iter().map(name).collect();
    for (i, (user, uses)) in ALLOWED.iter().enumerate() {
        assert!(ours.iter().any(|o| o == user), "{user} is no crate of ours");
        for used in *uses {
            let below = ALLOWED[..i].iter().any(|(name, _)| name == used);
            assert!(below, "{user} -> {used}: list a crate after those it uses");
        }
    }
}

fn sources_below(folder: &std::path::Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.path().is_dir() {
            sources_below(&entry.path(), found);
        }
        found.push(entry.file_name().to_string_lossy().into_owned());
    }
}

#[test]
fn a_crate_does_not_take_over_what_it_leaves_to_others() {
    for (of, parts, why) in LEFT_TO_OTHERS {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(of).join("src");
        let mut sources = Vec::new();
        sources_below(&folder, &mut sources);
        assert!(sources.len() > 5, "the walk finds the sources of {of}");
        for source in sources {
            let taken = parts.iter().find(|part| source.contains(**part));
            assert_eq!(taken, None, "{of} has {source}: {why}");
        }
    }
}

#[test]
fn every_dependency_says_why_it_is_there() {
    for package in packages() {
        let path = package["manifest_path"].as_str().expect("a path").to_owned();
        let text = std::fs::read_to_string(&path).expect("a manifest");
        let mut in_dependencies = false;
        for line in text.lines() {
            if line.starts_with('[') {
                in_dependencies = line.ends_with("dependencies]");
            } else if in_dependencies
                && line.contains('=')
                && !line.contains("path = \"")
                && !line.starts_with(' ')
            {
                assert!(line.contains('#'), "{path}: give a reason behind `{line}`");
            }
        }
    }
}

/// The names of all crates that ship with `root`.
fn shipped_with(root: &str) -> BTreeSet<String> {
    let metadata = metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let names: BTreeMap<String, String> =
        list(&metadata["packages"]).iter().map(|package| (text(&package["id"]), name(package))).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| (text(&node["id"]), node.clone())).collect();
    let mut found = BTreeSet::new();
    let mut left: Vec<String> =
        names.iter().filter(|(_, name)| *name == root).map(|(id, _)| id.clone()).collect();
    while let Some(id) = left.pop() {
        if !found.insert(names[&id].clone()) {
            continue;
        }
        for dependency in list(&nodes[&id]["deps"]) {
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                left.push(text(&dependency["pkg"]));
            }
        }
    }
    found
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

#[test]
fn no_parser_comes_into_a_training_process() {
    for (inside, known) in INSIDE {
        let shipped = shipped_with(inside);
        assert!(shipped.contains(*known), "the walk finds what is there");
        for banned in BANNED_INSIDE {
            assert!(!shipped.contains(*banned), "{inside} brings {banned} into other people's processes");
        }
    }
}
