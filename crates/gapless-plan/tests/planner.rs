//! The planner as a whole: every answer is judged by the validator, on instances of known optimum, on the challenging
//! set, and on random problems small enough for a naive twin to try every order.

use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use gapless_plan::{
    Buffer, Error, Lifetime, Options, Plan, Problem, Progress, Solution, Tricks, Watch, bound, carry_over,
    replan, solve, validate, validate_chunks,
};
use gapless_problems::csv::{self, OffsetColumn};
use gapless_problems::generate::{self, Layers};
use gapless_trace::Bytes;

fn file(name: &str) -> Problem {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/planner").join(name);
    let mut text = String::new();
    let packed = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    csv::read_text(&text, OffsetColumn::Fixed).unwrap()
}

/// Solves with a fixed effort and checks the invariants of any answer.
fn planned(problem: &Problem, options: &Options) -> Solution {
    let solution = solve(problem, options, &mut Watch::default()).unwrap();
    validate(problem, &solution.plan, None).unwrap();
    assert!(bound::lower_bound(problem) <= solution.lower_bound);
    assert!(solution.lower_bound <= solution.plan.peak);
    if let Some(capacity) = options.capacity {
        assert_eq!(solution.fits == Some(true), solution.plan.peak <= capacity);
    }
    solution
}

fn effort(effort: u64) -> Options {
    Options { effort: Some(effort), ..Options::default() }
}

/// Small numbers from a seed, for problems that a test makes up.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn random_problem(dice: &mut Dice, count: u64, times: u64, sizes: u64, aligned: bool) -> Problem {
    let buffers = (0..count).map(|_| {
        let start = dice.below(times) as i64;
        let end = start + 1 + dice.below(times - start as u64) as i64;
        let buffer = Buffer::new(start, end, 1 + dice.below(sizes));
        if aligned { buffer.aligned(1 << dice.below(3)) } else { buffer }
    });
    Problem::new(buffers.collect()).unwrap()
}

/// The best peak over all orders in which buffers can be let down: the optimum, since every plan can be let down.
fn naive_optimum(problem: &Problem) -> u64 {
    fn place(problem: &Problem, placed: &mut Vec<(usize, u64)>, best: &mut u64) {
        let buffers = problem.buffers();
        let peak = placed.iter().map(|(at, offset)| offset + buffers[*at].size.0).max().unwrap_or(0);
        if peak >= *best {
            return;
        }
        if placed.len() == buffers.len() {
            *best = peak;
            return;
        }
        for next in 0..buffers.len() {
            if placed.iter().all(|(at, _)| *at != next) {
                let over =
                    placed.iter().filter(|(at, _)| buffers[*at].lifetime.overlaps(buffers[next].lifetime));
                let floor = over.map(|(at, offset)| offset + buffers[*at].size.0).max().unwrap_or(0);
                placed.push((next, floor.next_multiple_of(buffers[next].alignment.0)));
                place(problem, placed, best);
                placed.pop();
            }
        }
    }
    let mut best = u64::MAX;
    place(problem, &mut Vec::new(), &mut best);
    best
}

#[test]
fn small_problems_are_solved_to_the_optimum_that_trying_every_order_finds() {
    let mut dice = Dice(1);
    for round in 0..120 {
        let problem = random_problem(&mut dice, 6, 6, 9, round % 3 == 0);
        let solution = planned(&problem, &effort(2_000_000));
        assert_eq!(solution.plan.peak.0, naive_optimum(&problem), "round {round}: {problem:?}");
        assert!(solution.proven_optimal(), "round {round}: {problem:?}");
    }
}

#[test]
fn each_trick_can_be_turned_off_and_the_optimum_stays() {
    let mut dice = Dice(2);
    for name in Tricks::NAMES.into_iter().filter(|name| *name != "exact") {
        for _ in 0..12 {
            let problem = random_problem(&mut dice, 6, 5, 9, false);
            let mut options = effort(2_000_000);
            assert!(options.tricks.turn_off(name));
            assert_eq!(planned(&problem, &options).plan.peak.0, naive_optimum(&problem), "without {name}");
        }
    }
    assert!(!Tricks::default().turn_off("no such trick"));
}

#[test]
fn the_answer_no_is_given_exactly_below_the_optimum() {
    let mut dice = Dice(3);
    for _ in 0..60 {
        let problem = random_problem(&mut dice, 6, 6, 9, false);
        let optimum = naive_optimum(&problem);
        let capacity = Bytes(optimum - 1);
        if capacity < problem.largest() {
            continue;
        }
        let solution = planned(&problem, &Options { capacity: Some(capacity), ..effort(2_000_000) });
        assert_eq!(solution.fits, Some(false), "{problem:?}");
        let live: u64 = solution.conflict.iter().map(|at| problem.buffers()[*at].size.0).sum();
        assert!(live > capacity.0, "the conflict must exceed the capacity by itself: {problem:?}");
        let solution = planned(&problem, &Options { capacity: Some(Bytes(optimum)), ..effort(2_000_000) });
        assert_eq!(solution.fits, Some(true));
    }
}

#[test]
fn a_capacity_that_the_live_bytes_allow_is_refuted_by_search() {
    // The last buffer is alive at another time than all others.
    let shape =
        [(3, 5, 1), (2, 5, 2), (4, 6, 1), (0, 2, 4), (3, 6, 2), (1, 4, 2), (7, 9, 3), (5, 8, 4), (20, 30, 5)];
    for scale in [1, 7, 1000] {
        for mirrored in [false, true] {
            let buffers = shape.iter().map(|(start, end, size)| {
                let (start, end) = if mirrored { (-end, -start) } else { (*start, *end) };
                Buffer::new(start, end, size * scale)
            });
            let problem = Problem::new(buffers.collect()).unwrap();
            let live = bound::lower_bound(&problem);
            let optimum = naive_optimum(&problem);
            assert!(optimum > live.0);
            let solution = planned(&problem, &Options { capacity: Some(live), ..effort(100_000) });
            assert_eq!(solution.fits, Some(false));
            // The set is a conflict by itself, and leaves out the buffer that is alive at another time.
            let conflict = solution.conflict.iter().map(|at| problem.buffers()[*at].clone()).collect();
            assert!(
                !solution.conflict.is_empty() && !solution.conflict.contains(&8),
                "{:?}",
                solution.conflict
            );
            assert!(naive_optimum(&Problem::new(conflict).unwrap()) > live.0);
            let solution = planned(&problem, &effort(100_000));
            assert_eq!(solution.plan.peak.0, optimum);
            assert!(solution.proven_optimal());
        }
    }
}

#[test]
fn the_challenging_set_is_solved_within_its_capacity() {
    for letter in "ABCDEFGHIJK".chars() {
        let problem = file(&format!("challenging/{letter}.1048576.csv.gz"));
        let options = Options { capacity: Some(Bytes(1 << 20)), ..effort(60_000) };
        assert_eq!(planned(&problem, &options).fits, Some(true), "{letter}");
    }
}

#[test]
fn nine_of_the_challenging_set_are_planned_at_their_bound_with_a_proof() {
    for letter in "ABCEFGHIK".chars() {
        let problem = file(&format!("challenging/{letter}.1048576.csv.gz"));
        assert!(planned(&problem, &effort(200_000)).proven_optimal(), "{letter}");
    }
}

#[test]
fn perturbed_instances_of_the_challenging_set_are_solved_too() {
    let mut dice = Dice(4);
    for letter in "ABCEK".chars() {
        let problem = file(&format!("challenging/{letter}.1048576.csv.gz"));
        // A quarter of the buffers shrinks: nothing is tight in the same places any more.
        let shrunk = problem.buffers().iter().map(|buffer| {
            let mut buffer = buffer.clone();
            if dice.below(4) == 0 {
                buffer.size = Bytes((buffer.size.0 - dice.below(buffer.size.0 / 4 + 1)).max(1));
            }
            buffer
        });
        let problem = Problem::new(shrunk.collect()).unwrap();
        let options = Options { capacity: Some(Bytes(1 << 20)), ..effort(300_000) };
        assert_eq!(planned(&problem, &options).fits, Some(true), "{letter}");
    }
}

#[test]
fn guillotine_dissections_fall_back_into_their_rectangle() {
    for (count, seed) in [(1, 1), (2, 2), (300, 3), (300, 4), (3000, 5)] {
        let problem = generate::guillotine(count, 1 << 40, 1 << 30, seed);
        assert_eq!(problem.len(), count);
        let solution = planned(&problem, &effort(1_000_000));
        assert_eq!(solution.plan.peak, Bytes(1 << 30), "{count} buffers, seed {seed}");
    }
}

#[test]
fn guillotine_dissections_with_times_that_many_share_do_too() {
    for seed in 1..4 {
        let problem = generate::guillotine(2000, 2000, 1 << 20, seed);
        let solution = planned(&problem, &effort(400_000));
        assert!(solution.proven_optimal(), "seed {seed}: {}", solution.ratio());
    }
    // With sizes that many share, joins are guesses: still every plan is valid and the same again.
    let problem = generate::guillotine(1000, 200, 1 << 13, 4);
    let (once, again) = (planned(&problem, &effort(20_000)), planned(&problem, &effort(20_000)));
    assert_eq!(once.plan, again.plan);
    assert!(once.ratio() < 1.2, "{}", once.ratio());
}

#[test]
fn what_is_released_in_reverse_comes_to_its_bound_whatever_its_sizes() {
    for sizes in [Layers::Alike, Layers::Unlike, Layers::UnlikeEachStep] {
        for seed in 1..4 {
            let problem = generate::training_of(8000, 1600, sizes, seed);
            let solution = planned(&problem, &effort(60_000));
            assert!(solution.ratio() <= 1.0002, "{sizes:?}, seed {seed}: {}", solution.ratio());
        }
    }
}

#[test]
fn large_random_instances_come_close_to_their_bound() {
    let problem = generate::heavy_tailed(4000, 1.5, 300.0, 1);
    assert!(planned(&problem, &effort(20_000)).ratio() < 1.05);
    let problem = generate::training(4000, 400, 1);
    assert!(planned(&problem, &effort(20_000)).ratio() < 1.02);
}

#[test]
fn the_same_seed_and_effort_give_the_same_plan() {
    let problem = generate::heavy_tailed(600, 1.2, 400.0, 7);
    let once = planned(&problem, &effort(30_000));
    let again = planned(&problem, &effort(30_000));
    assert_eq!(once.plan, again.plan);
    assert_eq!(once.effort, again.effort);
}

#[test]
fn better_plans_are_reported_as_they_come_and_each_is_valid() {
    let problem = file("challenging/D.1048576.csv.gz");
    let mut peaks = Vec::new();
    let mut on_better = |progress: &Progress<'_>| {
        validate(&problem, progress.plan, None).unwrap();
        assert!(progress.lower_bound <= progress.plan.peak);
        peaks.push(progress.plan.peak);
    };
    let mut watch = Watch { cancel: None, on_better: Some(&mut on_better) };
    let solution = solve(&problem, &effort(20_000), &mut watch).unwrap();
    assert!(peaks.len() > 1 && peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
    assert_eq!(peaks.last(), Some(&solution.plan.peak));
}

#[test]
fn cancelling_before_the_start_still_gives_a_valid_plan() {
    let problem = file("challenging/J.1048576.csv.gz");
    let cancel = AtomicBool::new(true);
    let mut watch = Watch { cancel: Some(&cancel), on_better: None };
    let solution = solve(&problem, &Options::default(), &mut watch).unwrap();
    validate(&problem, &solution.plan, None).unwrap();
    assert!(cancel.load(Ordering::Relaxed));
    assert!(!solution.proven_optimal());
}

#[test]
fn empty_problems_empty_buffers_and_single_buffers_are_planned() {
    let empty = planned(&Problem::new(vec![]).unwrap(), &Options::default());
    assert_eq!(empty.plan, Plan { offsets: vec![], peak: Bytes(0) });
    let nothing = Problem::new(vec![Buffer::new(0, 1, 0), Buffer::new(0, 1, 0)]).unwrap();
    assert_eq!(planned(&nothing, &Options::default()).plan.peak, Bytes(0));
    let single = Problem::new(vec![Buffer::new(-5, 5, 7).aligned(4)]).unwrap();
    assert!(planned(&single, &Options::default()).proven_optimal());
}

#[test]
fn a_capacity_below_the_largest_buffer_is_an_error_that_names_it() {
    let problem = Problem::with_names(vec![Buffer::new(0, 1, 9)], vec!["big".into()]).unwrap();
    let options = Options { capacity: Some(Bytes(8)), ..Options::default() };
    let error = solve(&problem, &options, &mut Watch::default()).unwrap_err();
    assert_eq!(error, Error::CapacityBelowLargest { capacity: 8, id: "big".to_owned(), size: 9 });
}

#[test]
fn the_place_of_a_gap_is_used_by_others() {
    let gap = vec![Lifetime::new(2, 8)];
    let buffers = vec![Buffer::new(0, 10, 8).with_gaps(gap), Buffer::new(2, 8, 8), Buffer::new(3, 4, 4)];
    let problem = Problem::new(buffers).unwrap();
    let solution = planned(&problem, &Options::default());
    assert_eq!(solution.plan.peak, Bytes(12));
    assert!(solution.proven_optimal());
}

#[test]
fn random_problems_with_gaps_fixed_places_and_alignments_get_valid_plans() {
    let mut dice = Dice(5);
    for _ in 0..60 {
        let mut buffers = random_problem(&mut dice, 40, 30, 50, true).buffers().to_vec();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let Lifetime { start, end } = buffer.lifetime;
            if end - start >= 4 && dice.below(3) == 0 {
                buffer.gaps =
                    Box::new([Lifetime::new(start + 1, start + 2), Lifetime::new(end - 2, end - 1)]);
            }
            if index % 10 == 0 {
                // Ten apart in a stack of their own, so that the fixed ones do not collide.
                buffer.fixed = Some(Bytes(index as u64 / 10 * 64));
            }
        }
        let problem = Problem::new(buffers).unwrap();
        let solution = planned(&problem, &effort(3000));
        assert!(solution.ratio() < 2.0, "{}", solution.ratio());
    }
}

#[test]
fn impossible_fixed_places_are_errors_that_name_the_buffers() {
    let names = || vec!["a".into(), "b".into()];
    let overlap = vec![Buffer::new(0, 2, 8).fixed_at(0), Buffer::new(1, 3, 8).fixed_at(7)];
    let problem = Problem::with_names(overlap, names()).unwrap();
    let error = solve(&problem, &Options::default(), &mut Watch::default()).unwrap_err();
    assert_eq!(error, Error::FixedOverlap { first: "a".to_owned(), second: "b".to_owned() });
    let above = vec![Buffer::new(0, 2, 8), Buffer::new(1, 3, 8).fixed_at(7)];
    let problem = Problem::with_names(above, names()).unwrap();
    let options = Options { capacity: Some(Bytes(14)), ..Options::default() };
    let error = solve(&problem, &options, &mut Watch::default()).unwrap_err();
    assert_eq!(error, Error::FixedAboveCapacity { id: "b".to_owned(), offset: 7, end: 15, capacity: 14 });
}

#[test]
fn a_changed_buffer_moves_few_others() {
    let problem = generate::heavy_tailed(3000, 1.5, 300.0, 1);
    let old = planned(&problem, &effort(3000)).plan;
    let mut dice = Dice(6);
    for _ in 0..40 {
        let mut buffers = problem.buffers().to_vec();
        let changed = dice.below(3000) as usize;
        buffers[changed].size = Bytes(1 + dice.below(1 << 26));
        let new = Problem::new(buffers).unwrap();
        let kept = carry_over(&problem, &old, &new);
        let result = replan(&new, &kept);
        validate(&new, &result.plan, None).unwrap();
        assert!(result.moved.len() <= 30, "{} moved", result.moved.len());
        let differ = (0..3000).filter(|at| result.plan.offsets[*at] != old.offsets[*at]).count();
        assert!(differ <= result.moved.len() + result.placed.len());
    }
}

#[test]
fn an_unchanged_problem_keeps_its_plan_and_names_are_followed() {
    let names = |order: &[&str]| order.iter().map(|name| (*name).into()).collect();
    let (a, b) = (Buffer::new(0, 4, 8), Buffer::new(2, 6, 8));
    let old = Problem::with_names(vec![a.clone(), b.clone()], names(&["a", "b"])).unwrap();
    let plan = Plan::of_offsets(&old, vec![Bytes(8), Bytes(0)]);
    let new = Problem::with_names(vec![b, a, Buffer::new(5, 7, 4)], names(&["b", "a", "c"])).unwrap();
    let result = replan(&new, &carry_over(&old, &plan, &new));
    assert_eq!(result.plan.offsets, [Bytes(0), Bytes(8), Bytes(8)]);
    assert!(result.moved.is_empty());
    assert_eq!(result.placed, [2]);
}

#[test]
fn a_buffer_that_becomes_fixed_pushes_out_what_is_there() {
    let old = Problem::new(vec![Buffer::new(0, 4, 8), Buffer::new(0, 4, 8)]).unwrap();
    let plan = Plan::of_offsets(&old, vec![Bytes(0), Bytes(8)]);
    let new = Problem::new(vec![Buffer::new(0, 4, 8), Buffer::new(0, 4, 8).fixed_at(0)]).unwrap();
    let result = replan(&new, &carry_over(&old, &plan, &new));
    validate(&new, &result.plan, None).unwrap();
    assert_eq!(result.plan.offsets, [Bytes(8), Bytes(0)]);
    assert_eq!(result.moved, [0]);
}

#[test]
fn no_buffer_lies_across_the_border_of_a_chunk() {
    let mut dice = Dice(7);
    for _ in 0..20 {
        let problem = random_problem(&mut dice, 60, 20, 60, true);
        let chunk = Bytes(64);
        let solution = planned(&problem, &Options { chunk: Some(chunk), ..effort(2000) });
        validate_chunks(&problem, &solution.plan, chunk).unwrap();
    }
    let problem = Problem::new(vec![Buffer::new(0, 1, 65)]).unwrap();
    let options = Options { chunk: Some(Bytes(64)), ..Options::default() };
    let error = solve(&problem, &options, &mut Watch::default()).unwrap_err().to_string();
    assert!(error.contains("more than a chunk of 64"), "{error}");
}

#[test]
fn a_plan_stays_valid_when_buffers_shrink() {
    let problem = generate::heavy_tailed(400, 1.5, 300.0, 3);
    let plan = planned(&problem, &effort(5000)).plan;
    let mut dice = Dice(8);
    let smaller = problem.buffers().iter().map(|buffer| {
        let mut buffer = buffer.clone();
        buffer.size = Bytes(dice.below(buffer.size.0 + 1));
        buffer
    });
    let smaller = Problem::new(smaller.collect()).unwrap();
    validate(&smaller, &Plan::of_offsets(&smaller, plan.offsets), None).unwrap();
}

#[test]
fn the_two_of_the_set_whose_optimum_was_open_have_plans_at_their_bound() {
    for (letter, peak) in [("D", 986_112), ("J", 989_184)] {
        let problem = file(&format!("challenging/{letter}.1048576.csv.gz"));
        let planned = file(&format!("plans/{letter}.{peak}.csv.gz"));
        let offsets: Vec<Bytes> = planned.buffers().iter().filter_map(|buffer| buffer.fixed).collect();
        let plan = Plan::of_offsets(&problem, offsets);
        validate(&problem, &plan, Some(Bytes(peak))).unwrap();
        assert_eq!(bound::lower_bound(&problem), Bytes(peak), "no plan of {letter} can be lower");
    }
}

#[test]
fn extreme_times_and_sizes_neither_overflow_nor_panic() {
    let whole = Buffer::new(i64::MIN, i64::MAX, 1 << 59);
    let late = Buffer::new(i64::MAX - 1, i64::MAX, 1 << 59).aligned(1 << 40);
    let early = Buffer::new(i64::MIN, i64::MIN + 1, (1 << 59) - 1).with_gaps(vec![]);
    let gap = vec![Lifetime::new(i64::MIN + 1, i64::MAX - 1)];
    let hollow = Buffer::new(i64::MIN, i64::MAX, 1 << 58).with_gaps(gap);
    let plain = Problem::new(vec![whole.clone(), late.clone(), early.clone()]).unwrap();
    assert!(planned(&plain, &effort(1000)).proven_optimal());
    let general = Problem::new(vec![whole, late, early, hollow]).unwrap();
    planned(&general, &effort(1000));
}

#[test]
fn no_text_makes_the_reader_panic() {
    let mut dice = Dice(11);
    let pieces = [
        "id",
        "lower",
        "upper",
        "size",
        "gaps",
        "offset",
        "alignment",
        ",",
        ",",
        "\n",
        "\n",
        "\"",
        "-",
        "7",
        "0",
        " ",
        "é",
    ];
    let head = "id,lower,upper,size,gaps,offset\n";
    let mut read = 0;
    for round in 0..4000 {
        let mut text = if round % 2 == 0 { String::new() } else { head.to_owned() };
        for _ in 0..dice.below(40) {
            text.push_str(pieces[dice.below(pieces.len() as u64) as usize]);
        }
        match csv::read_text(&text, OffsetColumn::Fixed) {
            Ok(problem) => {
                read += 1;
                let again = csv::read_text(&csv::write(&problem, None), OffsetColumn::Fixed).unwrap();
                assert_eq!(again.buffers(), problem.buffers());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(read > 0);
}
