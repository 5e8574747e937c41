//! Lines that grow and lines that do not: small ones by hand, and whole programs sampled with fixed seeds.

use super::*;
use crate::stacks::Frame;
use crate::testing::Dice;

/// A run of 1,000 ms; `blocks`: line, birth and death in ms (0: never), KiB.
fn run(blocks: &[(u32, u64, u64, u64)], steps: &[u64]) -> (Trace, HostSample) {
    let mut trace = Trace::default();
    let name = trace.strings.intern("work");
    let file = trace.strings.intern("train.py");
    let mut sample = HostSample::default();
    // The run's own first and last allocations.
    let around = [(0, 0, 1, 1), (0, 1000, 0, 1)];
    let mut all: Vec<_> = blocks.iter().chain(&around).copied().collect();
    all.sort_by_key(|(_, born, ..)| *born);
    for (line, born, died, kib) in all {
        let frame = trace.frames.intern(Frame { name, file, line });
        sample.blocks.push(SampledBlock {
            born: Micros(born * 1000),
            died: (died > 0).then_some(Micros(died * 1000)),
            size: Bytes(kib << 10),
            estimate: Bytes(kib << 10),
            variance: ((kib << 10) as f64).powi(2),
            stack: trace.stacks.intern(&[frame]),
        });
    }
    sample.steps = steps.iter().map(|ms| Micros(ms * 1000)).collect();
    sample.end = Micros(1_010_000);
    (trace, sample)
}

fn found(blocks: &[(u32, u64, u64, u64)], steps: &[u64]) -> Vec<String> {
    let (trace, sample) = run(blocks, steps);
    growing(&trace, &sample).into_iter().map(|growing| growing.line.label).collect()
}

#[test]
fn a_line_that_keeps_all_it_allocates_grows_with_and_without_steps() {
    let leak: Vec<_> = (1..60).map(|i| (7, i * 16, 0, 16)).collect();
    assert_eq!(found(&leak, &[]), ["train.py:7 work"]);
    let steps: Vec<u64> = (0..20).map(|i| i * 50).collect();
    assert_eq!(found(&leak, &steps), ["train.py:7 work"]);
    let (trace, sample) = run(&leak, &steps);
    let rate = growing(&trace, &sample)[0].rate;
    assert!((45_000.0..60_000.0).contains(&rate), "50 KiB a step: {rate}");
    // Freed when the run is torn down: it grew before.
    let freed: Vec<_> = leak.iter().map(|&(line, born, _, kib)| (line, born, 1005, kib)).collect();
    assert_eq!(found(&freed, &steps), ["train.py:7 work"]);
}

#[test]
fn a_buffer_that_becomes_larger_and_larger_grows_and_one_that_stops_does_not() {
    let swell = |until: u64| -> Vec<(u32, u64, u64, u64)> {
        (1..60)
            .filter(|i| i * 16 < until)
            .map(|i| (7, i * 16, if (i + 1) * 16 < until { (i + 1) * 16 } else { 0 }, i * 100))
            .collect()
    };
    let exact = |blocks: &[(u32, u64, u64, u64)]| {
        let (trace, mut sample) = run(blocks, &[]);
        sample.blocks.iter_mut().for_each(|block| block.variance = 0.0);
        growing(&trace, &sample).into_iter().map(|growing| growing.line.label).collect::<Vec<_>>()
    };
    assert_eq!(exact(&swell(1000)), ["train.py:7 work"]);
    assert_eq!(exact(&swell(600)), [""; 0]);
    assert_eq!(found(&swell(1000), &[]), [""; 0], "one sample in so many bytes does not tell it from chance");
}

#[test]
fn caches_that_stop_pools_warm_ups_and_replacements_do_not_grow() {
    let fills: Vec<_> = (1..60).map(|i| (7, i * 9, 0, 16)).collect();
    assert_eq!(found(&fills, &[]), [""; 0], "a cache that is full after half of the run");
    let ring: Vec<_> = (1..120).map(|i| (7, i * 8, (i + 30) * 8, 16)).collect();
    assert_eq!(found(&ring, &[]), [""; 0], "the oldest of thirty goes");
    let warm: Vec<_> = (1..60).map(|i| (7, i, 0, 16)).collect();
    assert_eq!(found(&warm, &[]), [""; 0], "a beginning");
    let churn: Vec<_> = (1..900).map(|i| (7, i, i + 3, 64)).collect();
    assert_eq!(found(&churn, &[]), [""; 0], "what comes goes");
    let late: Vec<_> = (1..30).map(|i| (7, 800 + i, 0, 16)).collect();
    assert_eq!(found(&late, &[]), [""; 0], "a single burst was named as growth");
}

#[test]
fn a_short_run_whose_end_takes_long_grew_before_it() {
    // On a busy machine the end took 45 of 100 parts: nothing is allocated any more, and all memory is freed.
    let leak = |died: u64| -> Vec<_> { (1..140).map(|i| (7, i * 4, died, 16)).collect() };
    assert_eq!(found(&leak(600), &[]), ["train.py:7 work"]);
    assert_eq!(found(&leak(900), &[]), [""; 0], "a cache that is full, for nearly all of the rest");
    // Slower by a thousand: the rest is no end, but work without allocations.
    let (trace, mut sample) = run(&leak(600), &[]);
    for block in &mut sample.blocks {
        block.born.0 *= 1000;
        block.died.iter_mut().for_each(|died| died.0 *= 1000);
    }
    assert_eq!(growing(&trace, &sample), []);
    // Lines that fill and stop before the end, or come and go, did not grow in a run with a long end either.
    let fills: Vec<_> = (1..140).map(|i| (7, i * 2, 600, 16)).collect();
    let works: Vec<_> = (1..140).map(|i| (8, i * 4, i * 4 + 3, 16)).collect();
    assert_eq!(found(&[fills, works].concat(), &[]), [""; 0]);
}

#[test]
fn what_was_never_freed_is_listed_by_line_with_its_error() {
    let (trace, sample) = run(&[(3, 10, 0, 64), (3, 20, 0, 64), (4, 20, 30, 999)], &[]);
    let lines = never_freed(&trace, &sample);
    assert_eq!(
        (lines[0].label.as_str(), lines[0].kept.bytes, lines[0].kept.samples),
        ("train.py:3 work", Bytes(128 << 10), 2)
    );
    assert_eq!(lines[0].kept.error().0, (2.0 * 2f64.sqrt() * 65536.0) as u64);
    assert!(lines.iter().all(|line| line.label != "train.py:4 work"));
    assert_eq!(live_at(&sample, Micros(25_000)).bytes, Bytes((64 + 64 + 999) << 10));
}

/// A program of 400 rounds of 1 ms, each block of which is a sample by chance, as the recorder takes them.
struct Program {
    dice: Dice,
    /// Born and died (in ms; none: never), size and line.
    blocks: Vec<(f64, Option<f64>, u64, u32)>,
}

const ROUNDS: usize = 400;
/// The line that the rules are asked about.
const ASKED: u32 = 7;

impl Program {
    fn new(seed: u64) -> Program {
        Program { dice: Dice::new(seed), blocks: Vec::new() }
    }

    fn chance(&mut self) -> f64 {
        self.dice.unit()
    }

    /// Blocks that come and go beside the line, all through the run.
    fn work(mut self) -> Program {
        for round in 0..ROUNDS {
            for part in 0..20 {
                let born = round as f64 + f64::from(part) / 20.0;
                let size = 64 + (self.chance() * 6000.0) as u64;
                self.blocks.push((born, Some(born + 0.5), size, 1));
            }
        }
        self
    }

    /// `blocks`: round of birth and of death.
    fn with(mut self, size: u64, blocks: impl IntoIterator<Item = (f64, Option<f64>)>) -> Program {
        self.blocks.extend(blocks.into_iter().map(|(born, died)| (born, died, size, ASKED)));
        self
    }

    /// True if the line is said to grow, if one block in about `interval` bytes is a sample.
    fn grows(mut self, interval: f64, has_steps: bool) -> bool {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut trace = Trace::default();
        let (name, file) = (trace.strings.intern("work"), trace.strings.intern("train.py"));
        let mut sample = HostSample::default();
        for (born, died, size, line) in blocks {
            let p = -(-(size as f64) / interval).exp_m1();
            if self.chance() < p {
                let frame = trace.frames.intern(Frame { name, file, line });
                let time = |ms: f64| Micros((ms * 1000.0) as u64);
                sample.blocks.push(SampledBlock {
                    born: time(born),
                    died: died.map(time),
                    size: Bytes(size),
                    estimate: Bytes((size as f64 / p) as u64),
                    variance: (size as f64 / p).powi(2) * (1.0 - p),
                    stack: trace.stacks.intern(&[frame]),
                });
            }
        }
        if has_steps {
            sample.steps = (0..ROUNDS as u64).map(|round| Micros(round * 1000)).collect();
        }
        sample.end = Micros(1000 * ROUNDS as u64);
        growing(&trace, &sample).iter().any(|one| one.line.label == format!("train.py:{ASKED} work"))
    }
}

const RUNS: usize = 100;

/// The number of recordings in which the line is said to grow, at each interval, with and without steps.
fn named(intervals: &[f64], make: impl Fn(Program) -> Program) -> Vec<usize> {
    let mut counts = Vec::new();
    for interval in intervals {
        for has_steps in [true, false] {
            let is_named = |seed: &u64| make(Program::new(*seed).work()).grows(*interval, has_steps);
            counts.push((0..RUNS as u64).filter(is_named).count());
        }
    }
    counts
}

/// From a recording of nearly everything to one that has few samples of the line.
const INTERVALS: [f64; 5] = [256.0, 4096.0, 16384.0, 32768.0, 65536.0];

#[test]
fn leaks_are_found_whatever_the_pace_of_samples() {
    let all = || (0..ROUNDS).map(|round| round as f64 + 0.3);
    let check = |what: &str, counts: Vec<usize>| {
        assert!(counts.iter().all(|count| *count >= RUNS / 100 * 95), "{what}: {counts:?} of {RUNS}");
    };
    // 48, 24 or 18 samples and more are left of it at the coarsest pace.
    check("one a round", named(&INTERVALS, |run| run.with(8000, all().map(|born| (born, None)))));
    check(
        "small ones",
        named(&INTERVALS, |run| run.with(100, all().flat_map(|born| (0..60).map(move |_| (born, None))))),
    );
    check(
        "one in five",
        named(&INTERVALS[..4], |run| {
            let blocks = all().enumerate().map(|(at, born)| (born, (at % 5 > 0).then_some(born + 0.1)));
            run.with(15_000, blocks)
        }),
    );
    check(
        "by chance",
        named(&INTERVALS[..4], |mut run| {
            let births: Vec<_> = all().filter(|_| run.chance() < 0.3).collect();
            run.with(9000, births.into_iter().map(|born| (born, None)))
        }),
    );
    check(
        "beside a cache that is full",
        named(&INTERVALS[..3], |run| {
            let cache = all().map(|born| (born, Some(born + 20.0)));
            run.with(4000, all().map(|born| (born, None)).chain(cache))
        }),
    );
    check(
        "freed when the program ends",
        named(&INTERVALS[..4], |run| run.with(8000, all().map(|born| (born, Some(399.9))))),
    );
}

#[test]
fn programs_that_do_not_leak_are_not_named_whatever_the_pace_of_samples() {
    let all = || (0..ROUNDS).map(|round| round as f64 + 0.3);
    let check = |what: &str, counts: Vec<usize>| {
        assert!(counts.iter().all(|count| *count <= RUNS / 100 * 3), "{what}: {counts:?} of {RUNS}");
    };
    check(
        "a cache that evicts by chance",
        named(&INTERVALS, |mut run| {
            let mut table = vec![None; 200];
            let mut blocks = Vec::new();
            for born in all() {
                for part in 0..10 {
                    let key = (run.chance() * 200.0) as usize;
                    let now = born + f64::from(part) / 100.0;
                    if let Some(before) = table[key].replace(now) {
                        blocks.push((before, Some(now)));
                    }
                }
            }
            blocks.extend(table.into_iter().flatten().map(|born| (born, None)));
            run.with(4500, blocks)
        }),
    );
    check(
        "a table whose keys come by chance",
        named(&INTERVALS, |mut run| {
            let mut table = [false; 64];
            let mut fresh = |run: &mut Program| {
                let key = (run.chance() * 64.0) as usize;
                !std::mem::replace(&mut table[key], true)
            };
            let births: Vec<_> = all().filter(|_| fresh(&mut run)).collect();
            run.with(8000, births.into_iter().map(|born| (born, None)))
        }),
    );
    for kept in [30.0, 100.0, 200.0, 260.0] {
        check(
            "the last ones",
            named(&INTERVALS, |run| {
                let death = |born: f64| (born + kept < 400.0).then_some(born + kept);
                run.with(8000, all().map(|born| (born, death(born))))
            }),
        );
    }
    for full in [0.1, 0.3, 0.5, 0.65] {
        check(
            "a cache that is full",
            named(&INTERVALS, |run| {
                run.with(8000, all().filter(|born| *born < 400.0 * full).map(|born| (born, None)))
            }),
        );
    }
    for period in [10.0, 25.0, 90.0] {
        check(
            "collected at times",
            named(&INTERVALS, |run| {
                let death = |born: f64| Some((born / period).ceil() * period).filter(|died| *died < 400.0);
                run.with(8000, all().map(|born| (born, death(born))))
            }),
        );
    }
}

#[test]
fn what_a_short_run_does_behind_its_imports_is_no_burst() {
    let labels = |is_import: bool| {
        let mut trace = Trace::default();
        let (name, file) = (trace.strings.intern("work"), trace.strings.intern("train.py"));
        let import = trace.strings.intern("<frozen importlib._bootstrap>");
        let outer = Frame { name, file: if is_import { import } else { file }, line: 1 };
        let (outer, leak) = (trace.frames.intern(outer), trace.frames.intern(Frame { name, file, line: 7 }));
        let mut sample = HostSample::default();
        for at in 0..2000u64 {
            // 1.9 s of imports, then 0.1 s in which every tenth block stays.
            let is_late = at >= 1000;
            let born = if is_late { 1_900_000 + (at - 1000) * 100 } else { at * 1900 };
            let stack = if is_late { trace.stacks.intern(&[leak]) } else { trace.stacks.intern(&[outer]) };
            let died = (!is_late || at % 10 > 0).then_some(Micros(born + 50));
            let (size, estimate) = (Bytes(2000), Bytes(2000));
            sample.blocks.push(SampledBlock {
                born: Micros(born),
                died,
                size,
                estimate,
                variance: 0.0,
                stack,
            });
        }
        sample.end = Micros(2_000_000);
        growing(&trace, &sample).into_iter().map(|one| one.line.label).collect::<Vec<_>>()
    };
    assert_eq!(labels(true), ["train.py:7 work"]);
    assert_eq!(labels(false), [""; 0], "a burst at the end");
}
