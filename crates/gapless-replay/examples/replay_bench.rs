//! Measures the promises of the replay and prints the figures: exactness, predictions against runs that were really
//! made, smallest cards, speed.
//!
//! `cargo run --release -p gapless-replay --example bench -- [exact|what-if|cards|speed|sweep|FILE]...` Without
//! arguments, everything on the recorded traces. A file is replayed with its own settings and compared with itself.

use gapless_replay::answer::min_capacity;
use gapless_replay::machine::TorchMachine;
use gapless_replay::run::{replay, verify};
use gapless_replay::sweep::{self, Progress};
use gapless_replay::torch::{Torch, TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Machine, Placement, Question, Script, SimDevice, outcome};
use gapless_trace::{Bytes, History, Trace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

const TRACES: [&str; 8] = [
    "gpt2_train",
    "gpt2_train_stacks",
    "llama1b_varlen_ckpt",
    "llama_offload",
    "resnet_varbatch",
    "mixtral_moe",
    "mixtral_moe_expandable",
    "multistream",
];
const NATIVE: [&str; 6] =
    ["gpt2_train", "llama1b_varlen_ckpt", "llama_offload", "resnet_varbatch", "mixtral_moe", "multistream"];
const CONFS: [(&str, &str); 2] = [("native", ""), ("expandable", "expandable_segments:True")];
/// Settings in a sweep, and repetitions whose best counts.
const SETTINGS: usize = 200;
const ROUNDS: usize = 9;

struct Run {
    trace: Trace,
    history: History,
    script: Script,
    version: TorchVersion,
    settings: TorchSettings,
}

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn load(path: &Path) -> Option<Run> {
    let trace = match gapless_ingest::open(path, &gapless_ingest::ReadOptions::default()) {
        Ok(trace) => trace,
        Err(error) => {
            println!("{}: {error}", path.display());
            return None;
        }
    };
    let device = trace.devices.first()?;
    let history = History::rebuild(&trace, device).ok()?;
    let version = TorchVersion::of_producer(&trace.source.producer);
    let settings = TorchSettings::recorded(&trace.settings.clone().unwrap_or_default(), version);
    let script = Script::refined(&trace, device, &history, &settings, version);
    Some(Run { trace, history, script, version, settings })
}

fn recorded(name: &str) -> Run {
    load(&testdata(&format!("traces/{name}.pickle.gz"))).expect("a recorded trace")
}

fn torch(conf: &str) -> Machine {
    let version = TorchVersion::DEFAULT;
    let settings = TorchSettings::parse(conf, version).expect("a good configuration");
    Machine::Torch(TorchMachine { version, settings, recorded: false })
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    let text = std::fs::read_to_string(testdata("traces/ground_truth.json")).expect("the runs' reports");
    let truth: Value = serde_json::from_str(&text).expect("JSON");
    for path in asked.iter().map(PathBuf::from).filter(|p| p.is_file()) {
        if let Some(run) = load(&path) {
            exact(&path.display().to_string(), &run);
        }
    }
    if wants("exact") {
        println!("Replayed with their own settings, against the recording (wanted: no difference)");
        for name in TRACES {
            exact(name, &recorded(name));
        }
        let mut cases: Vec<PathBuf> = std::fs::read_dir(testdata("cases"))
            .map(|dir| {
                dir.flatten().map(|entry| entry.path()).filter(|p| p.extension().is_some_and(|e| e == "gz"))
            })
            .map(Iterator::collect)
            .unwrap_or_default();
        cases.sort();
        for path in cases {
            if let Some(run) = load(&path).filter(|run| !run.trace.devices[0].events.is_empty()) {
                exact(&path.file_name().unwrap_or_default().to_string_lossy(), &run);
            }
        }
    }
    if wants("what-if") {
        println!(
            "\nPredicted from the native trace, against the run that was made (wanted: 0.5 %, multistream 10 %)"
        );
        for name in NATIVE {
            let run = recorded(name);
            for (kind, conf) in CONFS {
                let outcome = outcome(&run.script, &torch(conf), &Question::default());
                let real = &truth[name]["runs"][format!("{kind}.run")]["reserved_bytes.all.peak"];
                let real = real.as_u64().unwrap_or_default();
                let got = outcome.stats.reserved.peak;
                let error = 100.0 * (got as f64 / real as f64 - 1.0);
                let limit = if name == "multistream" { 10.0 } else { 0.5 };
                println!(
                    "  {name:22} {kind:11} {real:>14} {got:>14} {error:+8.3} %  {}",
                    met(error.abs() <= limit)
                );
            }
        }
    }
    if wants("cards") {
        println!("\nThe smallest card, against the smallest cap that was found by running (wanted: 2 %)");
        for name in NATIVE {
            let run = recorded(name);
            for (kind, conf) in CONFS {
                let Some(real) = truth[name]["mincap"][kind]["gib"].as_f64() else { continue };
                let got = min_capacity(&run.script, &torch(conf), Placement::Lowest).share_of(Bytes::GIB);
                let error = 100.0 * (got / real - 1.0);
                println!(
                    "  {name:22} {kind:11} {real:>10.3} GiB {got:>10.3} GiB {error:+8.3} %  {}",
                    met(error.abs() <= 2.0)
                );
            }
        }
    }
    if wants("speed") {
        println!("\nEvents a second on one core, the best of {ROUNDS} (wanted: 10 million)");
        for name in NATIVE {
            let run = recorded(name);
            for (kind, conf) in CONFS {
                let settings =
                    TorchSettings::parse(conf, TorchVersion::DEFAULT).expect("a good configuration");
                let best = (0..ROUNDS).map(|_| once(&run.script, &settings)).fold(f64::MAX, f64::min);
                let rate = f64::from(run.script.events) / best / 1e6;
                println!("  {name:22} {kind:11} {rate:>8.1} million  {}", met(rate >= 10.0));
            }
        }
    }
    if wants("sweep") {
        let run = recorded("llama1b_varlen_ckpt");
        let mut candidates = sweep::candidates(&run.settings, run.version);
        candidates.truncate(SETTINGS);
        let start = Instant::now();
        let trials =
            sweep::sweep(&run.script, run.version, &candidates, Bytes(1 << 40), 2, Progress::default());
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "\n{} settings x {} events on two threads: {seconds:.2} s (wanted: 10)  {}",
            trials.len(),
            run.script.events,
            met(seconds <= 10.0)
        );
    }
}

fn met(yes: bool) -> &'static str {
    if yes { "met" } else { "MISSED" }
}

fn once(script: &Script, settings: &TorchSettings) -> f64 {
    let start = Instant::now();
    let device = SimDevice::new(1 << 40);
    let mut torch = Torch::new(settings.clone(), TorchVersion::DEFAULT, device, &script.lanes);
    let failure = replay(script, &mut torch, &mut ());
    assert!(failure.is_none(), "a card of a TiB is enough");
    std::hint::black_box(torch.stats());
    start.elapsed().as_secs_f64()
}

fn exact(name: &str, run: &Run) {
    let exactness = verify(&run.script, &run.settings, run.version, &mut ());
    let (allocs, frees) = History::device_calls(&run.trace.devices[0]);
    let stats = &exactness.stats;
    let equal = exactness.is_exact()
        && stats.reserved.peak == run.history.usage.reserved.peak.0
        && stats.segments.peak == u64::from(run.history.segments_peak)
        && (stats.device_allocs, stats.device_frees) == (allocs as u64, frees as u64);
    println!(
        "  {name:28} {:>7} placed, {} elsewhere; peak reserved {:>12} of {:>12}; {} + {} device calls of {allocs} + {frees}  {}",
        exactness.placed,
        exactness.misplaced,
        stats.reserved.peak,
        run.history.usage.reserved.peak.0,
        stats.device_allocs,
        stats.device_frees,
        met(equal)
    );
}
