//! A request that ended the run counts: an allocator survives only if it serves it. One after which the program went on
//! does not count.

use gapless_replay::allocator::{Lane, LaneIndex};
use gapless_replay::answer::survives;
use gapless_replay::script::{Op, Script};
use gapless_replay::{Machine, Placement, Question, outcome};
use gapless_trace::{Bytes, PoolId, StreamId, Tick, Trace};

const MIB: u64 = 1 << 20;

/// Holds `held` blocks of `size` bytes each, is refused `asked` bytes, and then does `after`.
fn script(held: u32, size: u64, asked: u64, after: &[Op]) -> Script {
    let lane = LaneIndex::default();
    let mut ops: Vec<Op> = (0..held).map(|slot| Op::Alloc { slot, size: Bytes(size), lane }).collect();
    ops.push(Op::Failed { size: Bytes(asked), lane });
    ops.extend(after);
    let ticks = (1..=ops.len() as u32).map(Tick).collect();
    let lanes = vec![Lane { stream: StreamId(0), pool: PoolId::default() }];
    Script { ticks, ops, lanes, slots: held + 1, pools: vec![PoolId::default()], ..Script::default() }
}

/// Every allocator, with its defaults.
fn machines() -> Vec<Machine> {
    let spec = |name: &str| name.parse::<gapless_replay::Spec>().expect(name).machine(&Trace::default());
    gapless_replay::machine::names().into_iter().map(|name| spec(name).expect(name)).collect()
}

#[test]
fn a_run_survives_where_the_request_that_ended_it_is_served() {
    let lane = LaneIndex::default();
    let free = Op::Free { slot: 0 };
    let again = Op::Alloc { slot: 4, size: Bytes(MIB), lane };
    // The program's actions after the refusal, and true if that refusal was its end.
    let after: [(&[Op], bool); 6] = [
        (&[], true),
        (&[free], true),
        (&[free, Op::EmptyCache { pool: None }], true),
        (&[free, again], false),
        (&[again], false),
        (&[again, free], false),
    ];
    for machine in machines() {
        for asked in [1, 512, MIB, 100 * MIB, 3 << 30] {
            for (ops, ended) in after {
                let script = script(4, 64 * MIB, asked, ops);
                assert_eq!(script.ended_by(), ended.then_some(4), "{ops:?}");
                let question = Question { min_capacity: true, ..Question::default() };
                let name = machine.name();
                let least = outcome(&script, &machine, &question).min_capacity.expect("it was asked for");
                let live = 4 * 64 * MIB;
                assert!(least.0 >= live, "{name}: {least} for {live} that are held");
                if ended {
                    assert!(
                        least.0 >= live + asked,
                        "{name}: a card of {least} refuses {asked} beside {live}"
                    );
                }
                if !matches!(machine, Machine::Plan) {
                    assert!(survives(&script, &machine, least, Placement::Lowest), "{name}");
                }
            }
        }
    }
}
