//! How little memory is enough for the Gapless allocator: recorded and made-up runs finish under a limit that is hardly
//! more than their live bytes, and hold little more in ordinary use. `cargo test -p gapless-replay --test caps --
//! --nocapture` prints the figures.

#[path = "support/workloads.rs"]
mod workloads;

use gapless_pool::Options;
use gapless_replay::gapless::Gapless;
use gapless_replay::run::replay;
use gapless_replay::torch::{TorchSettings, TorchVersion};
use gapless_replay::{Allocator, Op, Script};
use gapless_trace::History;
use std::path::Path;

/// A limit as parts of 10,000 of the live peak, and every larger one must do as well.
const LIMITS: [u64; 9] = [10_050, 10_060, 10_075, 10_100, 10_200, 10_300, 10_500, 11_000, 15_000];

/// Runs with the most that they may hold in ordinary use, in parts of 100,000 of the live peak.
const RECORDED: [(&str, u64); 5] = [
    ("gpt2_train", 100_540),
    ("llama1b_varlen_ckpt", 100_680),
    ("llama_offload", 100_390),
    ("resnet_varbatch", 100_310),
    ("mixtral_moe", 100_990),
];

fn recorded(name: &str) -> Script {
    let path = format!("../../testdata/traces/{name}.pickle.gz");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let trace =
        gapless_ingest::open(&path, &gapless_ingest::ReadOptions::default()).expect("a readable trace");
    let device = &trace.devices[0];
    let history = History::rebuild(&trace, device).expect("a consistent trace");
    let version = TorchVersion::of_producer(&trace.source.producer);
    let settings = TorchSettings::recorded(&trace.settings.clone().unwrap_or_default(), version);
    Script::refined(&trace, device, &history, &settings, version)
}

/// The most bytes that the program holds at once, in blocks of 512 bytes.
fn live_peak(script: &Script) -> u64 {
    let mut sizes = vec![0; script.slots as usize + 1];
    let (mut live, mut peak) = (0u64, 0);
    for op in &script.ops {
        match *op {
            Op::Alloc { slot, size, .. } => {
                sizes[slot as usize] = size.0.div_ceil(512).max(1) * 512;
                live += sizes[slot as usize];
            }
            Op::Free { slot } | Op::FreeRequested { slot } => {
                live -= std::mem::take(&mut sizes[slot as usize]);
            }
            _ => {}
        }
        peak = peak.max(live);
    }
    peak
}

/// A run under a limit, or without one: the allocator after it, and where it failed.
fn run(script: &Script, limit: Option<u64>) -> (Gapless, Option<String>) {
    let options = Options { limit, ..Options::default() };
    let mut gapless = Gapless::planned(1 << 40, options, &script.lanes);
    let failure = replay(script, &mut gapless, &mut ());
    let told = failure.map(|failure| {
        let asked = failure.oom.requested.0;
        format!(
            "op {} of {} asks for {asked} bytes: {}",
            failure.op,
            script.ops.len(),
            gapless.pool().waste()
        )
    });
    (gapless, told)
}

/// What a run holds in ordinary use, and that it finishes under each limit from `from` on.
fn check(name: &str, script: &Script, ordinary: u64, from: u64) {
    let live = live_peak(script);
    let (free, _) = run(script, None);
    let held = free.stats().reserved.peak;
    println!("{name}: {:.5} of live bytes in ordinary use", held as f64 / live as f64);
    assert!(
        held * 100_000 <= live * ordinary,
        "{name} holds {held} bytes of {live} live ones: {}",
        free.pool().waste()
    );
    for part in LIMITS.into_iter().filter(|part| *part >= from) {
        let limit = live / 10_000 * part;
        if let (_, Some(why)) = run(script, Some(limit)) {
            panic!("{name} under {part} / 10,000 of its live bytes, {limit}: {why}");
        }
    }
}

#[test]
fn recorded_runs_finish_under_a_limit_next_to_their_live_bytes() {
    for (name, ordinary) in RECORDED {
        check(name, &recorded(name), ordinary, 10_050);
    }
}

/// Nine streams, each with pages that are used in part.
#[test]
fn a_run_of_many_streams_holds_little_more() {
    check("multistream", &recorded("multistream"), 104_600, 10_500);
}

#[test]
fn batches_and_resolutions_that_change_leave_no_gaps() {
    check("vision mix", &workloads::vision_mix(), 101_100, 10_050);
}

#[test]
fn rollouts_in_turns_with_training_leave_no_gaps() {
    check("roll-outs", &workloads::rollouts(), 101_100, 10_050);
}
