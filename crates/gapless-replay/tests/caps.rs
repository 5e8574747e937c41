//! The memory that is enough for the Gapless allocator: recorded and made-up runs finish under a limit that is hardly
//! more than their live bytes, and hold little more in ordinary use. `cargo test -p gapless-replay --test caps --
//! --nocapture` prints the figures.

#[path = "support/scripts.rs"]
mod scripts;
#[path = "support/workloads.rs"]
mod workloads;

use gapless_pool::Options;
use gapless_replay::gapless::Gapless;
use gapless_replay::run::replay;
use gapless_replay::{Allocator, Script};
use scripts::live_peak;

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
    scripts::recorded(&scripts::trace(name)).expect("a readable trace")
}

/// A run under a limit, or without one: the allocator after it, and the request that failed.
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

/// Checks the bytes that a run holds in ordinary use, and that it finishes under each limit from `from` on.
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
    // Lent memory returns at the borrower's next request, since only then is it known that no work uses it.
    check("multistream", &recorded("multistream"), 104_300, 10_500);
}

#[test]
fn batches_and_resolutions_that_change_leave_no_gaps() {
    check("vision mix", &workloads::vision_mix(), 101_100, 10_050);
}

#[test]
fn rollouts_in_turns_with_training_leave_no_gaps() {
    check("roll-outs", &workloads::rollouts(), 101_100, 10_050);
}
