//! The allocator on a device that knows time: random programs that are right on native PyTorch violate no rule, and
//! they reach the states in which rules could be violated. `examples/check.rs` runs more of them.

use gapless_checker::{Campaign, Config, Op, Plans, Program, Rule, Totals, generate, run};
use gapless_pool::Options;

const OPERATIONS: u64 = 200_000;

/// The least counts; with fewer, the programs prove less than they claim.
fn least(totals: &Totals) -> [(&'static str, u64, u64); 36] {
    [
        ("requests served", totals.requests, 30_000),
        ("requests out of memory", totals.out_of_memory, 500),
        ("uses announced", totals.announced, 2000),
        ("uses with waits both ways", totals.borrowed, 500),
        ("late waits", totals.late_waits, 500),
        ("streams destroyed with work queued", totals.destroyed_busy, 50),
        ("frees of blocks announced on dead streams", totals.announced_dead, 20),
        ("handles used again", totals.handles_reused, 20),
        ("uses of handle 2", totals.per_thread, 500),
        ("uses by another context", totals.foreign, 200),
        ("captures", totals.captures, 50),
        ("frees of others during captures", totals.capture_frees, 100),
        ("captures begun or ended between driver calls", totals.meddles, 1000),
        ("events that captures took in", totals.captured_records, 200),
        ("replays after other requests", totals.replays_after_activity, 200),
        ("requests to private pools", totals.private_requests, 500),
        ("trims", totals.trims, 200),
        ("trims of private pools", totals.pool_trims, 50),
        ("restores", totals.restores, 20),
        ("requests refused by budgets", totals.refused, 50),
        ("device calls that failed", totals.failures, 50),
        ("pages lent", totals.lent, 500),
        ("windows made", totals.windows, 500),
        ("windows used again", totals.window_hits, 200),
        ("windows made in private pools", totals.private_windows, 200),
        ("requests in captures that windows served", totals.captured_windows, 100),
        ("replays into windows", totals.replayed_windows, 50),
        ("restores of pools of graphs", totals.restored_graphs, 50),
        ("allocations in windows brought back", totals.restored_windows, 50),
        ("pools of graphs used again", totals.pools_again, 20),
        ("private pools that fell asleep", totals.slept, 30),
        ("requests served by plans", totals.planned, 500),
        ("requests served by fronts alone", totals.fronts, 500),
        ("waits outside of the pool", totals.outside_waits, 500),
        ("operations of other threads meanwhile", totals.meanwhile, 500),
        ("requests that wait for nobody natively", totals.native, 100),
    ]
}

#[test]
fn right_programs_break_no_rule_and_reach_what_matters() {
    let seed = 1;
    let outcome = Campaign::new(seed, OPERATIONS).run();
    println!(
        "{} operations, seeds {} to {}",
        outcome.totals.operations,
        outcome.seeds.0,
        outcome.seeds.1 - 1
    );
    if let Some(found) = outcome.found.first() {
        panic!("{found}");
    }
    for (what, count, least) in least(&outcome.totals) {
        assert!(count >= least, "{what}: {count}, and at least {least} are wanted");
    }
}

#[test]
fn the_same_program_gives_the_same_result() {
    for seed in 100..110 {
        let program = generate(seed);
        assert_eq!(run(&program, &Rule::ALL), run(&program, &Rule::ALL));
    }
}

/// Runs programs that once violated a rule.
fn runs_clean(ops: &[Op]) {
    let config = Config {
        capacity: 512 << 20,
        options: Options::default(),
        is_shared: false,
        is_asking: false,
        planner: Plans::Nobody,
        addresses: 1 << 47,
        most_cards: 64,
    };
    let program = Program { seed: 0, config, ops: ops.to_vec() };
    if let (_, Some(violation)) = run(&program, &[]) {
        panic!("{violation}\n{program}");
    }
}

#[test]
fn a_restore_that_finds_its_memory_gone_changes_nothing() {
    let request = |id, stream| Op::Alloc { id, stream, pool: 1, size: 7 << 20, budget: None };
    runs_clean(&[
        Op::UsePool { pool: 1, again: false },
        request(0, 0),
        Op::Save { pool: 1 },
        Op::Free { id: 0, thread: 0 },
        Op::ReleasePool { pool: 1 },
        Op::Trim,
        Op::UsePool { pool: 1, again: true },
        request(1, 1),
        Op::Restore { pool: 1 },
        Op::Free { id: 1, thread: 0 },
    ]);
}

/// Every replay of a graph uses again what the graph's pool has freed. The pool may be released during a replay, and
/// memory that no work uses goes back to the device without a wait.
#[test]
fn a_pool_that_is_released_under_a_replay_keeps_its_memory_until_that_is_done() {
    for of_all in [true, false] {
        runs_clean(&[
            Op::BeginCapture { graph: 0, stream: 1, pool: 1 },
            Op::Alloc { id: 0, stream: 1, pool: 0, size: 96 << 20, budget: None },
            Op::Free { id: 0, thread: 0 },
            Op::EndCapture,
            // A wait after the free, which ends before the replay begins.
            Op::Trim,
            Op::Alloc { id: 1, stream: 2, pool: 0, size: 8 << 20, budget: None },
            Op::Replay { graph: 0, stream: 2 },
            Op::DropGraph { graph: 0 },
            Op::TrimBehind { of_all },
            Op::Run { stream: 2, most: u16::MAX },
            Op::TrimBehind { of_all },
            Op::Free { id: 1, thread: 0 },
        ]);
    }
}
