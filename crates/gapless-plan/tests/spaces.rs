//! Memory spaces: every answer is judged by the validator, and small ones are compared with an exact answer that tries
//! every assignment and every order of letting buffers down.

use gapless_plan::{
    Accesses, Buffer, Error, Invalid, Lifetime, Options, Problem, Residence, Space, SpacePlan, SpaceProgress,
    SpaceWatch, Spaces, Usage, Watch, solve_spaces, solve_spaces_watched, validate_spaces,
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

fn planned(problem: &Problem, usages: &[Usage], spaces: &Spaces, options: &Options) -> SpacePlan {
    let plan = solve_spaces(problem, usages, spaces, options, &mut Watch::default()).unwrap();
    validate_spaces(problem, usages, spaces, &plan).unwrap();
    plan
}

fn effort(effort: u64) -> Options {
    Options { effort: Some(effort), ..Options::default() }
}

/// True if some order of letting these down keeps within the capacity; every plan can be let down.
fn packs(buffers: &[Buffer], chosen: &[usize], capacity: u64) -> bool {
    fn place(
        buffers: &[Buffer],
        left: &mut Vec<usize>,
        placed: &mut Vec<(usize, u64)>,
        capacity: u64,
    ) -> bool {
        if left.is_empty() {
            return true;
        }
        for at in 0..left.len() {
            let next = left.swap_remove(at);
            let over =
                placed.iter().filter(|(other, _)| buffers[*other].lifetime.overlaps(buffers[next].lifetime));
            let floor = over.map(|(other, offset)| offset + buffers[*other].size.0).max().unwrap_or(0);
            if floor + buffers[next].size.0 <= capacity {
                placed.push((next, floor));
                if place(buffers, left, placed, capacity) {
                    return true;
                }
                placed.pop();
            }
            left.push(next);
            let last = left.len() - 1;
            left.swap(at, last);
        }
        false
    }
    let live = |time: i64| -> u64 {
        let alive = chosen.iter().map(|at| &buffers[*at]);
        let alive = alive.filter(|buffer| buffer.lifetime.start <= time && time < buffer.lifetime.end);
        alive.map(|buffer| buffer.size.0).sum()
    };
    chosen.iter().all(|at| live(buffers[*at].lifetime.start) <= capacity)
        && place(buffers, &mut chosen.to_vec(), &mut Vec::new(), capacity)
}

/// The least traffic over all assignments, for counted accesses; `None` if nothing fits.
fn naive_optimum(problem: &Problem, usages: &[Usage], spaces: &Spaces) -> Option<u128> {
    struct Search<'a> {
        buffers: &'a [Buffer],
        usages: &'a [Usage],
        spaces: &'a [Space],
        space_of: Vec<usize>,
        best: Option<u128>,
    }
    impl Search<'_> {
        fn cost(&self, buffer: usize, space: usize) -> u128 {
            let Accesses::Count(count) = self.usages[buffer].accesses else { panic!("counted only") };
            u128::from(count) * u128::from(self.buffers[buffer].size.0) * u128::from(self.spaces[space].cost)
        }

        fn go(&mut self, paid: u128) {
            let next = self.space_of.len();
            let cheapest =
                |buffer: usize| (0..self.spaces.len()).map(|at| self.cost(buffer, at)).min().unwrap();
            let rest: u128 = (next..self.buffers.len()).map(cheapest).sum();
            if self.best.is_some_and(|best| paid + rest >= best) {
                return;
            }
            if next == self.buffers.len() {
                self.best = Some(paid);
                return;
            }
            for space in 0..self.spaces.len() {
                if !self.usages[next].allowed.contains(space) {
                    continue;
                }
                self.space_of.push(space);
                // Buffers that do not pack now do not with more of them.
                let chosen: Vec<usize> = (0..=next).filter(|at| self.space_of[*at] == space).collect();
                let room = self.spaces[space].capacity;
                if room.is_none_or(|room| packs(self.buffers, &chosen, room.0)) {
                    self.go(paid + self.cost(next, space));
                }
                self.space_of.pop();
            }
        }
    }
    let (buffers, spaces) = (problem.buffers(), spaces.all());
    let mut search = Search { buffers, usages, spaces, space_of: Vec::new(), best: None };
    search.go(0);
    search.best
}

fn random(dice: &mut Dice, count: u64, spaces: usize) -> (Problem, Vec<Usage>, Spaces) {
    let times = 8;
    let mut buffers = Vec::new();
    let mut usages = Vec::new();
    for _ in 0..count {
        let start = dice.below(times) as i64;
        let end = start + 1 + dice.below(times - start as u64) as i64;
        buffers.push(Buffer::new(start, end, 1 + dice.below(20)));
        let usage = Usage::count(1 + dice.below(9));
        usages.push(if dice.below(6) == 0 { usage.only_in(&[spaces - 1]) } else { usage });
    }
    let mut all = vec![Space::new("near", Some(12 + dice.below(25)), 1)];
    if spaces == 3 {
        all.push(Space::new("middle", Some(20 + dice.below(30)), 3 + dice.below(4)));
    }
    all.push(Space::new("far", None, 10 + dice.below(10)));
    (Problem::new(buffers).unwrap(), usages, Spaces::new(all).unwrap())
}

#[test]
fn small_instances_come_to_the_optimum_that_trying_every_assignment_finds() {
    let mut dice = Dice(1);
    let (mut sum, mut proven) = (0.0, 0);
    for round in 0..50 {
        let (problem, usages, spaces) = random(&mut dice, 7 + round % 6, 2 + (round % 2) as usize);
        let optimum = naive_optimum(&problem, &usages, &spaces).unwrap();
        let plan = planned(&problem, &usages, &spaces, &effort(400_000));
        assert!(plan.lower_bound <= optimum && optimum <= plan.traffic, "round {round}: {plan:?}, {optimum}");
        sum += plan.traffic as f64 / optimum as f64;
        proven += usize::from(plan.proven_optimal());
    }
    println!("on average {:.5} of the optimum, {proven} of 50 proven", sum / 50.0);
    assert!(sum / 50.0 <= 1.0001, "{}", sum / 50.0);
    assert!(proven >= 48, "{proven}");
}

#[test]
fn an_assignment_is_found_where_all_spaces_are_limited_and_one_exists() {
    let mut dice = Dice(2);
    let (mut found, mut none) = (0, 0);
    for round in 0..60 {
        let (problem, usages, spaces) = random(&mut dice, 8, 3);
        let mut all = spaces.all().to_vec();
        all[2].capacity = Some(Bytes(20 + dice.below(40)));
        let spaces = Spaces::new(all).unwrap();
        let answer = solve_spaces(&problem, &usages, &spaces, &effort(400_000), &mut Watch::default());
        match (naive_optimum(&problem, &usages, &spaces), answer) {
            (Some(optimum), Ok(plan)) => {
                validate_spaces(&problem, &usages, &spaces, &plan).unwrap();
                assert_eq!(plan.traffic, optimum, "round {round}");
                found += 1;
            }
            (None, Err(Error::SpacesTooSmall { proven, .. })) => {
                assert!(proven, "round {round}");
                none += 1;
            }
            (optimum, answer) => panic!("round {round}: {optimum:?}, {answer:?}"),
        }
    }
    assert!(found > 10 && none > 3, "{found} found, {none} without");
}

#[test]
fn nothing_is_infeasible_where_the_last_space_is_unlimited() {
    let mut dice = Dice(3);
    for round in 0..12 {
        let count = 40 + dice.below(200) as usize;
        let problem = generate::heavy_tailed(count, 1.5, 300.0, round);
        let usages: Vec<Usage> = (0..count).map(|_| Usage::count(dice.below(30))).collect();
        let peak = gapless_plan::bound::lower_bound(&problem).0;
        let near = Space::new("near", Some(peak / (2 + dice.below(8))), 1_000);
        let spaces = Spaces::new(vec![near, Space::new("far", None, 20_000)]).unwrap();
        let plan = planned(&problem, &usages, &spaces, &effort(100_000));
        let ratio = plan.traffic as f64 / plan.lower_bound as f64;
        println!("{count} buffers: {ratio:.4} of the bound");
        assert!(ratio < 1.25, "round {round}: {ratio}");
    }
}

#[test]
fn the_same_seed_gives_the_same_plan() {
    let problem = generate::heavy_tailed(150, 1.5, 300.0, 4);
    let usages: Vec<Usage> = (0..150).map(|at| Usage::count(at % 7)).collect();
    let peak = gapless_plan::bound::lower_bound(&problem).0;
    let spaces =
        Spaces::new(vec![Space::new("near", Some(peak / 3), 1), Space::new("far", None, 9)]).unwrap();
    let options = Options { seed: 5, ..effort(60_000) };
    assert_eq!(planned(&problem, &usages, &spaces, &options), planned(&problem, &usages, &spaces, &options));
}

#[test]
fn every_better_plan_is_told_and_the_last_is_the_answer() {
    let problem = generate::heavy_tailed(150, 1.5, 300.0, 4);
    let usages: Vec<Usage> = (0..150).map(|at| Usage::count(at % 7)).collect();
    let peak = gapless_plan::bound::lower_bound(&problem).0;
    let spaces =
        Spaces::new(vec![Space::new("near", Some(peak / 3), 1), Space::new("far", None, 9)]).unwrap();
    for threads in [1, 3] {
        let options = Options { seed: 5, threads, ..effort(60_000) };
        let mut told = Vec::new();
        let mut on_better = |progress: &SpaceProgress| told.push((progress.traffic, progress.lower_bound));
        let mut watch = SpaceWatch { cancel: None, on_better: Some(&mut on_better) };
        let plan = solve_spaces_watched(&problem, &usages, &spaces, &options, &mut watch).unwrap();
        assert!(!told.is_empty());
        assert!(told.windows(2).all(|pair| pair[0].0 > pair[1].0), "{told:?}");
        assert_eq!(told.last().map(|last| last.0), Some(plan.traffic));
        assert!(told.iter().all(|(traffic, bound)| bound <= traffic));
    }
}

#[test]
fn a_buffer_that_rests_for_long_makes_room_and_comes_back() {
    // Two that are used at both ends of time, one in between that needs all of the near space.
    let buffers = vec![Buffer::new(0, 100, 8), Buffer::new(40, 60, 10)];
    let problem = Problem::new(buffers).unwrap();
    let often = |times: &[i64]| times.iter().flat_map(|time| [*time; 5]).collect::<Vec<i64>>();
    let usages = vec![Usage::at(often(&[1, 10, 90, 99])), Usage::at(often(&[41, 50, 58]))];
    let spaces = Spaces::new(vec![Space::new("near", Some(10), 1), Space::new("far", None, 10)]).unwrap();
    let plan = planned(&problem, &usages, &spaces, &Options::default());
    // All accesses near, and two moves of 8 bytes that each read one side and write the other.
    assert_eq!(plan.traffic, 20 * 8 + 15 * 10 + 2 * 8 * 11);
    assert!(plan.proven_optimal());
    assert_eq!(plan.moved(), 1);
    let spaces_of_first: Vec<usize> = plan.residences[0].iter().map(|residence| residence.space).collect();
    assert_eq!(spaces_of_first, [0, 1, 0]);
}

#[test]
fn several_accesses_at_one_time_are_on_one_side_of_a_move() {
    let mut dice = Dice(8);
    for _ in 0..40 {
        let (mut buffers, mut usages) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            let start = dice.below(8) as i64;
            let length = 4 + dice.below(12);
            buffers.push(Buffer::new(start, start + length as i64, 1 + dice.below(20)));
            let ends = [start + 1, start + 1, start + length as i64 - 2];
            let mut times: Vec<i64> = (0..2 + dice.below(6)).map(|_| ends[dice.below(3) as usize]).collect();
            times.sort_unstable();
            usages.push(Usage::at(times));
        }
        let problem = Problem::new(buffers).unwrap();
        let spaces =
            Spaces::new(vec![Space::new("near", Some(20 + dice.below(20)), 1), Space::new("far", None, 12)]);
        // The judge counts the traffic for itself.
        planned(&problem, &usages, &spaces.unwrap(), &Options::default());
    }
}

#[test]
fn knowing_the_access_times_never_costs_traffic() {
    let mut dice = Dice(6);
    let mut gained = 0;
    for round in 0..30 {
        let mut buffers = Vec::new();
        let (mut timed, mut counted) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let start = dice.below(40) as i64;
            let end = start + 2 + dice.below(60) as i64;
            buffers.push(Buffer::new(start, end, 1 + dice.below(20)));
            let mut times: Vec<i64> =
                (0..1 + dice.below(6)).map(|_| start + dice.below((end - start) as u64) as i64).collect();
            times.sort_unstable();
            counted.push(Usage::count(times.len() as u64));
            timed.push(Usage::at(times));
        }
        let problem = Problem::new(buffers).unwrap();
        let spaces = Spaces::new(vec![Space::new("near", Some(30), 1), Space::new("far", None, 4)]).unwrap();
        let stays = planned(&problem, &counted, &spaces, &Options::default());
        let moves = planned(&problem, &timed, &spaces, &Options::default());
        if stays.proven_optimal() && moves.proven_optimal() {
            assert!(moves.traffic <= stays.traffic, "round {round}");
        }
        gained += usize::from(moves.traffic < stays.traffic);
    }
    assert!(gained > 3, "{gained}");
}

#[test]
fn alignment_gaps_fixed_offsets_and_empty_buffers_hold_in_every_space() {
    let buffers = vec![
        Buffer::new(0, 10, 8).fixed_at(0),
        Buffer::new(0, 10, 8).fixed_at(4),
        Buffer::new(0, 10, 3).aligned(4),
        Buffer::new(0, 10, 8).with_gaps(vec![Lifetime::new(3, 6)]),
        Buffer::new(3, 6, 8),
        Buffer::new(0, 10, 0),
    ];
    let problem = Problem::new(buffers).unwrap();
    let usages = vec![Usage::default(); 6];
    let spaces = Spaces::new(vec![Space::new("near", Some(20), 1), Space::new("far", None, 5)]).unwrap();
    let plan = planned(&problem, &usages, &spaces, &Options::default());
    let space_of = plan.space_of();
    assert_ne!(space_of[0], space_of[1], "both are fixed on the same bytes");
    assert_eq!(plan.traffic, 8 + 40 + 3 + 8 + 8);
}

#[test]
fn bad_questions_are_refused_with_the_reason() {
    let problem = Problem::new(vec![Buffer::new(0, 10, 8)]).unwrap();
    let spaces = Spaces::new(vec![Space::new("near", Some(4), 1), Space::new("far", Some(16), 5)]).unwrap();
    let ask = |usages: &[Usage]| {
        solve_spaces(&problem, usages, &spaces, &Options::default(), &mut Watch::default())
            .unwrap_err()
            .to_string()
    };
    assert!(ask(&[]).contains("0 usages for 1 buffers"));
    assert!(ask(&[Usage::default().only_in(&[0])]).contains("large enough"));
    assert!(ask(&[Usage::at(vec![10])]).contains("accessed at 10, outside of its lifetime"));
    assert!(ask(&[Usage::at(vec![5, 4])]).contains("not sorted"));
    assert!(Spaces::new(vec![]).is_err());
    let twice = vec![Space::new("a", None, 1), Space::new("a", None, 1)];
    assert!(Spaces::new(twice).unwrap_err().to_string().contains("two spaces are named \"a\""));
    let dear = Spaces::new(vec![Space::new("far", None, u64::MAX)]).unwrap();
    let usages = [Usage::count(u64::MAX)];
    let answer = solve_spaces(&problem, &usages, &dear, &Options::default(), &mut Watch::default());
    assert!(matches!(answer, Err(Error::Traffic { .. })));
}

#[test]
fn the_validator_sees_each_kind_of_wrong_space_plan() {
    let problem = Problem::new(vec![Buffer::new(0, 10, 8), Buffer::new(0, 10, 8)]).unwrap();
    let usages = vec![Usage::at(vec![1, 8]), Usage::count(2).only_in(&[1])];
    let spaces = Spaces::new(vec![Space::new("near", Some(8), 1), Space::new("far", None, 5)]).unwrap();
    let at = |space, start, end, offset| Residence {
        space,
        lifetime: Lifetime::new(start, end),
        offset: Bytes(offset),
    };
    let judge = |first: Vec<Residence>, second: Vec<Residence>, traffic: u128| {
        let mut peaks = vec![Bytes(0); 2];
        for one in first.iter().chain(&second).filter(|one| one.space < 2) {
            peaks[one.space] = peaks[one.space].max(one.offset + Bytes(8));
        }
        let plan = SpacePlan { residences: vec![first, second], peaks, traffic, lower_bound: 0, effort: 0 };
        validate_spaces(&problem, &usages, &spaces, &plan)
    };
    let far = || vec![at(1, 0, 10, 0)];
    assert_eq!(judge(vec![at(0, 0, 10, 0)], far(), 16 + 80), Ok(()));
    assert_eq!(judge(vec![at(0, 0, 4, 0), at(1, 3, 10, 8)], far(), 8 + 48 + 40 + 80), Ok(()));
    assert!(matches!(judge(vec![at(0, 0, 10, 0)], far(), 95), Err(Invalid::Traffic { found: 96, .. })));
    assert!(matches!(judge(vec![at(1, 0, 10, 4)], far(), 160), Err(Invalid::Overlap { .. })));
    assert!(matches!(judge(vec![at(0, 0, 10, 1)], far(), 96), Err(Invalid::AboveCapacity { .. })));
    assert!(matches!(judge(far(), vec![at(0, 0, 10, 0)], 96), Err(Invalid::Space { buffer: 1, space: 0 })));
    assert!(matches!(judge(vec![at(2, 0, 10, 0)], far(), 96), Err(Invalid::Space { space: 2, .. })));
    for wrong in [
        vec![],
        vec![at(0, 0, 9, 0)],
        vec![at(0, 0, 4, 0), at(1, 4, 10, 8)],
        vec![at(0, 0, 2, 0), at(1, 1, 10, 8)],
        vec![at(1, 0, 4, 8), at(1, 3, 10, 16)],
    ] {
        assert!(matches!(judge(wrong, far(), 96), Err(Invalid::Residence { buffer: 0, .. })));
    }
    let moved = vec![at(1, 0, 4, 0), at(0, 3, 10, 0)];
    let allowed = vec![Usage::count(1), Usage::count(1)];
    let plan = SpacePlan {
        residences: vec![moved, vec![at(1, 0, 10, 8)]],
        peaks: vec![Bytes(8), Bytes(16)],
        traffic: 0,
        lower_bound: 0,
        effort: 0,
    };
    let answer = validate_spaces(&problem, &allowed, &spaces, &plan);
    assert!(matches!(answer, Err(Invalid::Residence { what: "it is moved without known access times", .. })));
}
