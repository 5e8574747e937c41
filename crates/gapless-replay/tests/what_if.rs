//! Predictions of the models for runs that were really made: the same workload with expandable segments, and under ever
//! smaller caps.

use gapless_replay::answer::min_capacity;
use gapless_replay::machine::TorchMachine;
use gapless_replay::script::Script;
use gapless_replay::torch::{TorchSettings, TorchVersion};
use gapless_replay::{Machine, Placement, Question, outcome};
use gapless_trace::{Bytes, History};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn script(name: &str) -> Script {
    let path = testdata(&format!("traces/{name}.pickle.gz"));
    let trace =
        gapless_ingest::open(&path, &gapless_ingest::ReadOptions::default()).expect("a readable trace");
    let history = History::rebuild(&trace, &trace.devices[0]).expect("a consistent trace");
    Script::of(&trace, &trace.devices[0], &history)
}

fn truth() -> Value {
    let text = std::fs::read_to_string(testdata("traces/ground_truth.json")).expect("the runs' reports");
    serde_json::from_str(&text).expect("JSON")
}

fn machine(conf: &str) -> Machine {
    let version = TorchVersion(2, 11);
    let settings = TorchSettings::parse(conf, version).expect("a good configuration");
    Machine::Torch(TorchMachine { version, settings, recorded: false })
}

const CONFS: [(&str, &str); 2] = [("native", ""), ("expandable", "expandable_segments:True")];

/// Workloads whose requests repeat from run to run come out to the byte. Expert routing differs between runs, and with
/// many streams the times at which blocks become free do.
#[test]
fn other_settings_are_predicted_from_the_native_trace() {
    let truth = truth();
    for (name, tolerance) in [
        ("gpt2_train", 0.0),
        ("llama1b_varlen_ckpt", 0.0),
        ("llama_offload", 0.0),
        ("resnet_varbatch", 0.0),
        ("mixtral_moe", 0.005),
        ("multistream", 0.1),
    ] {
        let script = script(name);
        for (kind, conf) in CONFS {
            let run = &truth[name]["runs"][format!("{kind}.run")];
            let outcome = outcome(&script, &machine(conf), &Question::default());
            let real = run["reserved_bytes.all.peak"].as_u64().expect("a peak");
            let error = outcome.stats.reserved.peak as f64 / real as f64 - 1.0;
            assert!(
                error.abs() <= tolerance,
                "{name} {kind}: {} for {real}: {error:+.4}",
                outcome.stats.reserved.peak
            );
            if tolerance == 0.0 {
                assert_eq!(
                    Some(outcome.stats.device_allocs),
                    run["num_device_alloc"].as_u64(),
                    "{name} {kind}"
                );
            }
        }
    }
}

#[test]
fn the_smallest_card_is_that_under_which_the_real_run_survived() {
    let truth = truth();
    let mut compared = 0;
    for name in ["llama1b_varlen_ckpt", "resnet_varbatch", "mixtral_moe"] {
        let script = script(name);
        for (kind, conf) in CONFS {
            let Some(real) = truth[name]["mincap"][kind]["gib"].as_f64() else { continue };
            let found = min_capacity(&script, &machine(conf), Placement::Lowest).share_of(Bytes::GIB);
            let error = found / real - 1.0;
            assert!(error.abs() <= 0.02, "{name} {kind}: {found:.3} GiB for {real}: {error:+.4}");
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
}

#[test]
fn one_byte_less_than_the_smallest_card_is_too_little() {
    let script = script("resnet_varbatch");
    let machine = machine("");
    let least = min_capacity(&script, &machine, Placement::Lowest);
    let step = Bytes(2 << 20);
    for (capacity, fits) in [(least, true), (least - step, false)] {
        let question = Question { capacity: Some(capacity), min_capacity: false };
        let outcome = outcome(&script, &machine, &question);
        assert_eq!(outcome.oom.is_none(), fits, "{capacity}");
        assert!(outcome.stats.reserved.peak <= capacity.0);
        if let Some(oom) = outcome.oom {
            assert!(oom.failure.oom.free < oom.failure.oom.asked);
            assert!(oom.reserved.0 + oom.failure.oom.asked.0 > capacity.0);
            assert!(oom.active <= oom.reserved);
        }
    }
}

#[test]
fn the_floor_is_below_every_allocator_and_at_the_live_peak() {
    for name in ["gpt2_train", "resnet_varbatch"] {
        let script = script(name);
        let floor = outcome(&script, &Machine::Plan, &Question::default());
        let torch = outcome(&script, &machine("expandable_segments:True"), &Question::default());
        assert!(floor.stats.reserved.peak < torch.stats.reserved.peak);
        assert!(floor.stats.reserved.peak as f64 <= 1.001 * floor.stats.active.peak as f64);
        assert!(floor.stats.reserved.peak >= floor.stats.active.peak);
    }
}

#[test]
fn every_allocator_answers_and_none_holds_less_than_is_active() {
    let script = script("resnet_varbatch");
    let trace = gapless_trace::Trace::default();
    for name in gapless_replay::machine::names() {
        let machine = name.parse::<gapless_replay::Spec>().expect(name).machine(&trace).expect(name);
        let outcome = outcome(&script, &machine, &Question { capacity: None, min_capacity: true });
        assert!(outcome.oom.is_none(), "{name}");
        assert!(outcome.stats.reserved.peak >= outcome.stats.active.peak, "{name}");
        assert!(outcome.min_capacity.is_some_and(|c| c.0 >= outcome.stats.active.peak), "{name}");
        assert!(!outcome.curve.is_empty(), "{name}");
        let highest = outcome.curve.iter().map(|p| p.reserved.0).max();
        assert_eq!(highest, Some(outcome.stats.reserved.peak), "{name}: the curve keeps the peak");
        assert!(outcome.at_peak.reserved.0 == outcome.stats.reserved.peak, "{name}: the heap at the peak");
    }
}
