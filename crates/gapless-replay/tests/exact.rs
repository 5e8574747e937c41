//! Replaying a recording with its own settings gives the recording: every block's address, every device call, every
//! peak.

use gapless_replay::run::verify;
use gapless_replay::script::Script;
use gapless_replay::torch::{TorchSettings, TorchVersion};
use gapless_trace::{History, Trace};
use std::path::{Path, PathBuf};

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn open(path: &Path) -> Trace {
    gapless_ingest::open(path, &gapless_ingest::ReadOptions::default())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The differences from the recording, in words; empty if there are none.
fn differences(trace: &Trace) -> Vec<String> {
    let mut all = Vec::new();
    for device in &trace.devices {
        let history = History::rebuild(trace, device).expect("a consistent recording");
        let version = TorchVersion::of_producer(&trace.source.producer);
        let settings = TorchSettings::recorded(&trace.settings.clone().unwrap_or_default(), version);
        let script = Script::refined(trace, device, &history, &settings, version);
        let exactness = verify(&script, &settings, version, &mut ());
        let mut differ = |what: &str, recorded: u64, replayed: u64| {
            if recorded != replayed {
                all.push(format!("{what}: {recorded} recorded, {replayed} replayed"));
            }
        };
        let stats = &exactness.stats;
        differ("peak reserved", history.usage.reserved.peak.0, stats.reserved.peak);
        differ("peak allocated", history.usage.allocated.peak.0, stats.allocated.peak);
        differ("peak active", history.usage.active.peak.0, stats.active.peak);
        differ("peak segments", u64::from(history.segments_peak), stats.segments.peak);
        let (allocs, frees) = History::device_calls(device);
        differ("device allocs", allocs as u64, stats.device_allocs);
        differ("device frees", frees as u64, stats.device_frees);
        if !exactness.is_exact() {
            all.push(format!(
                "{} of {} misplaced, first {:?}; {} device calls differ",
                exactness.misplaced, exactness.placed, exactness.first, exactness.call_differences
            ));
        }
    }
    all
}

#[test]
fn recorded_traces_replay_to_the_byte() {
    let mut failed = Vec::new();
    for name in [
        "gpt2_train",
        "gpt2_train_stacks",
        "llama1b_varlen_ckpt",
        "llama_offload",
        "resnet_varbatch",
        "mixtral_moe",
        "mixtral_moe_expandable",
        "multistream",
    ] {
        let found = differences(&open(&testdata(&format!("traces/{name}.pickle.gz"))));
        if !found.is_empty() {
            failed.push(format!("{name}: {found:#?}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn recorded_cases_replay_to_the_byte() {
    let mut failed = Vec::new();
    for name in [
        "ring",
        "ring_exp",
        "oom",
        "oom_exp",
        "retries",
        "graphs",
        "split_round",
        "gc_cap",
        "exp_empty",
        "cpppickle",
        "cppstacks",
        "compiled",
        "leak",
        "infer_cnn",
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
        let found = differences(&open(&testdata(&format!("cases/{name}.pickle.gz"))));
        if !found.is_empty() {
            failed.push(format!("{name}: {found:#?}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn recordings_of_newer_releases_replay_as_what_they_are() {
    let mut failed = Vec::new();
    for (minor, cases) in [
        (13, &["train", "late", "ring", "expandable", "address"][..]),
        (14, &["train", "late", "ring", "expandable", "address"]),
        (15, &["train", "late", "ring", "expandable", "address", "reserve"]),
    ] {
        for case in cases {
            let name = format!("{case}_2_{minor}");
            let trace = open(&testdata(&format!("newer/{name}.pickle.gz")));
            // 2.15 differs from 2.14 only if its own features were used.
            let told = minor == 15 && !["address", "reserve"].contains(case);
            let expected = TorchVersion(2, if told { 14 } else { minor });
            let found = differences(&trace);
            let version = TorchVersion::of_producer(&trace.source.producer);
            if !found.is_empty() || version != expected {
                failed.push(format!("{name}, by {} as {version}: {found:#?}", trace.source.producer));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
