//! Small random steps, whose choices are all tried: no choice is below the bound, and the search finds the best one or
//! is near it.

use gapless_train::bound::bound;
use gapless_train::step::{SCHEMA, Watch};
use gapless_train::{Mode, Op, Options, Step, Value, simulate, solve};
use std::time::Duration;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A forward of `n` operators, each of which makes a value from one or two earlier ones, and a backward that asks for
/// most of them in reverse.
fn step(n: usize, dice: &mut Dice) -> Step {
    let (mut ops, mut values) = (Vec::new(), Vec::new());
    let backward = |v: usize| (2 * n - 1 - v) as u32;
    let saved: Vec<bool> = (0..n).map(|_| dice.below(4) > 0).collect();
    let mut ins: Vec<Vec<u32>> = Vec::new();
    for v in 0..n {
        let mut from: Vec<u32> =
            (0..dice.below(3)).filter(|_| v > 0).map(|_| dice.below(v as u64) as u32).collect();
        from.sort_unstable();
        from.dedup();
        ins.push(from);
    }
    for (v, &is_saved) in saved.iter().enumerate() {
        let last = (v + 1..n).filter(|&w| ins[w].contains(&(v as u32))).max().unwrap_or(v);
        let end = if is_saved { backward(v) + 1 } else { last as u32 + 1 };
        values.push(Value {
            size: (1 + dice.below(8)) << 20,
            birth: v as u32,
            natural: last as u32 + 1,
            death: end.max(last as u32 + 1).min(2 * n as u32),
            need: is_saved.then(|| backward(v)),
            drop: is_saved,
            hold: true,
            alike: v as u32 % 3,
        });
    }
    let size_at =
        |at: u32| -> u64 { values.iter().filter(|v| v.birth <= at && at < v.death).map(|v| v.size).sum() };
    for (at, made) in (0..2 * n as u32).zip((0..n).map(Some).chain(std::iter::repeat(None))) {
        let before = values.iter().filter(|v| v.birth < at && at < v.death).map(|v| v.size).sum();
        ops.push(Op {
            name: "op".to_owned(),
            place: String::new(),
            cost: (1 + dice.below(20)) as f64,
            ins: made.map_or_else(Vec::new, |v| ins[v].clone()),
            outs: made.map_or_else(Vec::new, |v| vec![v as u32]),
            call: made.map(|v| v as u32),
            again: made.is_some_and(|_| dice.below(5) > 0),
            before,
            crest: size_at(at),
        });
    }
    let asks = (0..n).rev().filter(|&v| saved[v]).map(|v| (backward(v), v as u32)).collect();
    let step = Step {
        schema: SCHEMA.to_owned(),
        ops,
        values,
        asks,
        time_us: 1000.0,
        launch_us: 1.0,
        watch: Watch::default(),
    };
    step.check().expect("the step is sound");
    step
}

#[test]
fn no_choice_is_below_the_bound_and_the_search_is_near_the_best() {
    let mut dice = Dice(7);
    let (mut found, mut best_found) = (0, 0);
    for round in 0..150 {
        let n = 4 + (round % 6);
        let step = step(n, &mut dice);
        let least = bound(&step, u64::MAX).peak;
        let budget = least + (step.peak() - least) * (dice.below(10)) / 10;
        let limit = bound(&step, budget);
        let mut best: Option<f64> = None;
        for bits in 0..1u32 << n {
            let choice: Vec<Mode> =
                (0..n).map(|v| if bits >> v & 1 == 1 { Mode::Again } else { Mode::Keep }).collect();
            if choice
                .iter()
                .enumerate()
                .any(|(v, mode)| *mode == Mode::Again && step.values[v].drop && !step.can_drop(v as u32))
            {
                continue;
            }
            let Some(outcome) = simulate(&step, &choice, budget) else { continue };
            assert!(outcome.peak >= limit.peak, "round {round}: a peak below the least");
            if outcome.over == 0 {
                assert!(
                    outcome.time_us >= limit.time_us - 1e-6,
                    "round {round}: {} is below the bound {}",
                    outcome.time_us,
                    limit.time_us
                );
                best = Some(best.map_or(outcome.time_us, |best| best.min(outcome.time_us)));
            }
        }
        let options = Options { time_limit: Duration::from_secs(5), changes: 2000, ..Options::default() };
        let plan = solve(&step, budget, &options);
        if let Some(best) = best {
            found += 1;
            assert!(plan.fits, "round {round}: a choice within the budget exists, and none was found");
            assert!(plan.outcome.time_us >= best - 1e-6);
            best_found += usize::from(plan.outcome.time_us <= best + 1e-6);
        } else {
            assert!(!plan.fits);
        }
    }
    assert!(found > 60, "{found} steps had a choice within the budget");
    assert!(best_found * 20 >= found * 19, "the best choice was found in {best_found} of {found}");
}

#[test]
fn files_that_are_no_step_are_told() {
    let told = |text: &str| Step::read(text.as_bytes()).expect_err("refused").to_string();
    assert!(told("{}").contains("not valid JSON of a recorded step"));
    let empty = r#"{"schema":"gapless.step/9","ops":[],"values":[],"asks":[],"time_us":1}"#;
    assert!(told(empty).contains("gapless.step/9"));
    let value =
        r#"{"size":1,"birth":3,"natural":0,"death":0,"need":null,"drop":false,"hold":false,"alike":0}"#;
    let late = format!(r#"{{"schema":"gapless.step/1","ops":[],"values":[{value}],"asks":[],"time_us":1}}"#);
    assert!(told(&late).contains("value 0 has birth 3"));
}
