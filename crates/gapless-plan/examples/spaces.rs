//! Small random questions about several memories with our answers, as JSON: for an exact solver to be held against.
//!
//! `cargo run --release -p gapless-plan --example spaces -- [COUNT [SEED]]` prints a list, one entry a question:
//! `spaces` (capacity or null, cost), `buffers` (lifetime, size, allowed spaces, `count` of accesses or the `times` of
//! them, between which it may move), and ours: `traffic`, `lower_bound`, `moved`, `seconds`. Every plan has passed the
//! judge. In turns two spaces and counts, two and times, three and counts, three and times, with too little room for
//! all.

use std::time::Instant;

use gapless_plan::{
    Accesses, Buffer, Options, Problem, Space, Spaces, Usage, Watch, solve_spaces, validate_spaces,
};
use serde_json::{Value, json};

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().unwrap_or(1));
    let (count, seed) = (args.next().unwrap_or(50), args.next().unwrap_or(1));
    let mut dice = Dice(seed);
    let rows: Vec<Value> = (0..count).map(|round| question(&mut dice, round % 4)).collect();
    println!("{}", Value::Array(rows));
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound
    }
}

fn question(dice: &mut Dice, kind: u64) -> Value {
    let (timed, three) = (kind % 2 == 1, kind >= 2);
    let horizon = if timed { 16 } else { 8 };
    let last = if three { 2 } else { 1 };
    let (mut buffers, mut usages) = (Vec::new(), Vec::new());
    for _ in 0..6 + dice.below(if timed { 2 } else { 4 }) {
        let length = if timed { 4 + dice.below(13) } else { 1 + dice.below(horizon - 1) };
        let start = dice.below(horizon - length + 1);
        buffers.push(Buffer::new(start as i64, (start + length) as i64, 1 + dice.below(20)));
        let usage = if timed {
            // Some at the beginning, some at the end: only a pause between them makes a move worth its cost.
            let mut times: Vec<i64> = (0..2 + dice.below(5))
                .map(|at| {
                    let near = dice.below(3.min(length));
                    (if at % 2 == 0 { start + near } else { start + length - 1 - near }) as i64
                })
                .collect();
            times.sort_unstable();
            Usage::at(times)
        } else {
            Usage::count(1 + dice.below(9))
        };
        usages.push(if dice.below(8) == 0 { usage.only_in(&[last]) } else { usage });
    }
    let mut all = vec![Space::new("near", Some(14 + dice.below(20)), 1)];
    if three {
        all.push(Space::new("middle", Some(16 + dice.below(20)), 3 + dice.below(4)));
    }
    all.push(Space::new("far", None, 8 + dice.below(12)));
    let problem = Problem::new(buffers).expect("a valid problem");
    let spaces = Spaces::new(all).expect("valid spaces");
    let begin = Instant::now();
    let plan = solve_spaces(&problem, &usages, &spaces, &Options::default(), &mut Watch::default())
        .expect("the far space is unlimited");
    let seconds = begin.elapsed().as_secs_f64();
    if let Err(invalid) = validate_spaces(&problem, &usages, &spaces, &plan) {
        panic!("the plan is INVALID: {invalid}");
    }
    let rows: Vec<Value> = problem.buffers().iter().zip(&usages).map(row(&spaces)).collect();
    let room =
        |space: &Space| json!({ "capacity": space.capacity.map(|capacity| capacity.0), "cost": space.cost });
    json!({
        "spaces": spaces.all().iter().map(room).collect::<Vec<Value>>(),
        "buffers": rows,
        "moved": plan.moved(),
        "traffic": plan.traffic as u64,
        "lower_bound": plan.lower_bound as u64,
        "seconds": seconds,
    })
}

fn row(spaces: &Spaces) -> impl Fn((&Buffer, &Usage)) -> Value {
    let count = spaces.all().len();
    move |(buffer, usage)| {
        let allowed: Vec<usize> = (0..count).filter(|space| usage.allowed.contains(*space)).collect();
        let (accesses, times) = match &usage.accesses {
            Accesses::Count(count) => (Some(*count), None),
            Accesses::At(times) => (None, Some(times.to_vec())),
        };
        json!({
            "start": buffer.lifetime.start,
            "end": buffer.lifetime.end,
            "size": buffer.size.0,
            "allowed": allowed,
            "count": accesses,
            "times": times,
        })
    }
}
