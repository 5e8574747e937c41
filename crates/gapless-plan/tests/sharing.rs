//! In-place reuse and threads: answers judged by the validator, and for small problems by trying every offset.

use gapless_plan::{
    Buffer, Invalid, Options, Plan, Problem, Progress, Shares, Watch, bound, sharing_lower_bound, solve,
    solve_sharing, validate, validate_sharing,
};
use gapless_problems::generate;
use gapless_trace::Bytes;

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn effort(effort: u64) -> Options {
    Options { effort: Some(effort), ..Options::default() }
}

/// The lowest peak over all offsets below `above`, or `above`.
fn naive_optimum(problem: &Problem, shares: &Shares, above: u64) -> u64 {
    let mut offsets = vec![0u64; problem.len()];
    let mut best = above;
    loop {
        let plan = Plan::of_offsets(problem, offsets.iter().copied().map(Bytes).collect());
        if plan.peak.0 < best && validate_sharing(problem, shares, &plan, None).is_ok() {
            best = plan.peak.0;
        }
        let Some(at) = (0..offsets.len()).find(|at| offsets[*at] + 1 + problem.buffers()[*at].size.0 < above)
        else {
            return best;
        };
        offsets[..at].fill(0);
        offsets[at] += 1;
    }
}

#[test]
fn small_problems_come_close_to_the_optimum_that_trying_every_offset_finds() {
    let mut dice = Dice(1);
    let (mut best, mut used) = (0, 0);
    for round in 0..60 {
        let mut buffers: Vec<Buffer> = Vec::new();
        let mut shares = Vec::new();
        for at in 0..5u64 {
            let giver = dice.below(at + 1) as usize;
            let start = if at > 0 { buffers[giver.min(at as usize - 1)].lifetime.end - 1 } else { 0 };
            let giver = giver.min((at as usize).saturating_sub(1));
            let buffer = Buffer::new(start, start + 1 + dice.below(5) as i64, 1 + dice.below(3));
            let may = at > 0 && dice.below(3) > 0 && buffers[giver].lifetime.start < start;
            shares.push((may && buffers[giver].lifetime.end <= buffer.lifetime.end).then_some(giver));
            buffers.push(buffer);
        }
        let problem = Problem::new(buffers).unwrap();
        let shares = Shares::new(&problem, shares).unwrap();
        let solution = solve_sharing(&problem, &shares, &effort(50_000), &mut Watch::default()).unwrap();
        validate_sharing(&problem, &shares, &solution.plan, None).unwrap();
        let optimum = naive_optimum(&problem, &shares, solution.plan.peak.0);
        assert!(solution.lower_bound.0 <= optimum, "round {round}");
        best += usize::from(optimum == solution.plan.peak.0);
        used += usize::from(solution.plan.peak < bound::lower_bound(&problem));
    }
    println!("{best} of 60 at the optimum, {used} below what is possible without sharing");
    assert!(best >= 54, "{best}");
    assert!(used >= 10, "{used}");
}

#[test]
fn a_chain_of_operations_in_place_needs_one_buffer() {
    let count = 50;
    let buffers: Vec<Buffer> = (0..count).map(|at| Buffer::new(at, at + 2, 64)).collect();
    let problem = Problem::new(buffers).unwrap();
    let shares = (0..count as usize).map(|at| at.checked_sub(1)).collect();
    let shares = Shares::new(&problem, shares).unwrap();
    let solution = solve_sharing(&problem, &shares, &Options::default(), &mut Watch::default()).unwrap();
    validate_sharing(&problem, &shares, &solution.plan, Some(Bytes(64))).unwrap();
    assert_eq!(solution.plan.peak, Bytes(64));
    assert!(solution.proven_optimal());
    let alone = solve(&problem, &Options::default(), &mut Watch::default()).unwrap();
    assert_eq!(alone.plan.peak, Bytes(128));
}

#[test]
fn sharing_is_left_alone_where_it_would_cost_more() {
    // The large one would keep its size for the long life of the small one, beside another large one.
    let buffers = vec![Buffer::new(0, 2, 100), Buffer::new(1, 50, 1), Buffer::new(10, 40, 100)];
    let problem = Problem::new(buffers).unwrap();
    let shares = Shares::new(&problem, vec![None, Some(0), None]).unwrap();
    let solution = solve_sharing(&problem, &shares, &Options::default(), &mut Watch::default()).unwrap();
    validate_sharing(&problem, &shares, &solution.plan, None).unwrap();
    assert_eq!(solution.plan.peak, Bytes(101));
    assert_eq!(sharing_lower_bound(&problem, &shares), Bytes(101));
}

#[test]
fn the_validator_knows_who_may_take_whose_place() {
    let buffers = vec![Buffer::new(0, 4, 8), Buffer::new(3, 6, 4), Buffer::new(3, 6, 4)];
    let problem = Problem::new(buffers).unwrap();
    let judge = |shares: Vec<Option<usize>>, offsets: [u64; 3]| {
        let shares = Shares::new(&problem, shares).unwrap();
        let plan = Plan::of_offsets(&problem, offsets.map(Bytes).to_vec());
        validate_sharing(&problem, &shares, &plan, None)
    };
    let overlap = |first, second| Err(Invalid::Overlap { first, second, time: 3 });
    assert_eq!(judge(vec![None, Some(0), None], [0, 0, 8]), Ok(()));
    assert_eq!(judge(vec![None, None, None], [0, 0, 8]), overlap(0, 1));
    assert_eq!(judge(vec![None, Some(0), None], [0, 4, 8]), overlap(0, 1), "another offset is no sharing");
    assert_eq!(
        judge(vec![None, Some(0), None], [0, 0, 4]),
        overlap(0, 2),
        "the rest still belongs to the giver"
    );
    assert_eq!(judge(vec![None, Some(0), Some(0)], [0, 0, 0]), overlap(1, 2), "only one can take it");
    // The third begins while the first is still read, whose place the second took.
    let buffers = vec![Buffer::new(0, 5, 8), Buffer::new(3, 6, 8), Buffer::new(4, 7, 8)];
    let problem = Problem::new(buffers).unwrap();
    let shares = Shares::new(&problem, vec![None, Some(0), Some(1)]).unwrap();
    let plan = Plan::of_offsets(&problem, vec![Bytes(0); 3]);
    let answer = validate_sharing(&problem, &shares, &plan, None);
    assert_eq!(answer, Err(Invalid::Overlap { first: 0, second: 2, time: 4 }));
    let solution = solve_sharing(&problem, &shares, &Options::default(), &mut Watch::default()).unwrap();
    validate_sharing(&problem, &shares, &solution.plan, None).unwrap();
    assert_eq!(solution.plan.peak, Bytes(16));
}

#[test]
fn links_that_make_no_sense_are_refused() {
    let problem =
        Problem::new(vec![Buffer::new(0, 4, 8), Buffer::new(5, 6, 4), Buffer::new(1, 3, 4)]).unwrap();
    let refuse = |shares: Vec<Option<usize>>| Shares::new(&problem, shares).unwrap_err().to_string();
    assert!(refuse(vec![None]).contains("1 entries for 3 buffers"));
    assert!(refuse(vec![None, Some(9), None]).contains("number 9, which there is not"));
    assert!(refuse(vec![None, Some(0), None]).contains("cannot take the place of 0"), "it ended before");
    assert!(
        refuse(vec![None, None, Some(0)]).contains("cannot take the place of 0"),
        "it outlives the taker"
    );
    assert!(refuse(vec![Some(0), None, None]).contains("cannot take the place of 0"), "itself");
}

#[test]
fn several_threads_give_the_same_plan_every_time_and_none_worse_than_one() {
    for seed in 0..3 {
        let problem = generate::guillotine(120, 1000, 4096, seed);
        let one = solve(&problem, &effort(3_000), &mut Watch::default()).unwrap();
        let options = Options { threads: 3, ..effort(3_000) };
        let first = solve(&problem, &options, &mut Watch::default()).unwrap();
        validate(&problem, &first.plan, None).unwrap();
        assert!(first.plan.peak <= one.plan.peak);
        for _ in 0..3 {
            let again = solve(&problem, &options, &mut Watch::default()).unwrap();
            assert_eq!(
                (again.plan, again.lower_bound, again.effort),
                (first.plan.clone(), first.lower_bound, first.effort)
            );
        }
    }
}

#[test]
fn threads_tell_of_better_plans_in_order_and_find_what_does_not_fit() {
    let problem = generate::heavy_tailed(300, 1.5, 300.0, 2);
    let mut peaks = Vec::new();
    let mut tell = |progress: &Progress<'_>| {
        validate(&problem, progress.plan, None).unwrap();
        peaks.push(progress.plan.peak);
    };
    let options = Options { threads: 2, ..effort(5_000) };
    let mut watch = Watch { cancel: None, on_better: Some(&mut tell) };
    let solution = solve(&problem, &options, &mut watch).unwrap();
    assert!(!peaks.is_empty() && peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
    assert_eq!(peaks.last(), Some(&solution.plan.peak));
    let capacity = Some(Bytes(bound::lower_bound(&problem).0 - 1));
    let solution = solve(&problem, &Options { capacity, ..options }, &mut Watch::default()).unwrap();
    assert_eq!(solution.fits, Some(false));
    assert!(!solution.conflict.is_empty());
}
