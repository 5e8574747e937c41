//! Schedules against brute force, against the simulator, and against themselves as the budget grows.

#[path = "milp/questions.rs"]
#[allow(dead_code)]
mod questions;

use gapless_fit::checkpoint::chain::{Chain, Measured};
use gapless_fit::checkpoint::simulate;
use questions::Dice;

/// Budgets from the least peak to past that of keeping everything.
fn budgets(least: u64, most: u64) -> impl Iterator<Item = u64> {
    (0..=12).map(move |step| least + (most - least) * step / 10)
}

fn all_choices(chain: &Chain) -> Vec<Vec<usize>> {
    chain.blocks.iter().fold(vec![Vec::new()], |lists, block| {
        let longer = |list: &Vec<usize>| {
            let list = list.clone();
            (0..block.choices.len()).map(move |choice| [list.clone(), vec![choice]].concat())
        };
        lists.iter().flat_map(longer).collect()
    })
}

#[test]
fn chains_are_the_best_of_all_choices() {
    for seed in 0..60 {
        let chain = questions::chain(seed, 1 + seed as usize % 7);
        let outcomes: Vec<_> =
            all_choices(&chain).iter().map(|choices| simulate::chain(&chain, choices)).collect();
        let least = outcomes.iter().map(|outcome| outcome.peak).min().expect("some choice");
        assert_eq!(chain.least_peak(), least, "seed {seed}");
        assert_eq!(chain.solve(least - 1).expect_err("too little").least, least);
        for budget in budgets(least, outcomes.iter().map(|outcome| outcome.peak).max().expect("some")) {
            let best =
                outcomes.iter().filter(|outcome| outcome.peak <= budget).map(|outcome| outcome.cost).min();
            let ours = chain.solve(budget).expect("feasible");
            assert!(ours.is_optimal());
            assert_eq!(Some(ours.cost), best, "seed {seed}, budget {budget}");
            let walked = simulate::chain(&chain, &ours.choices);
            assert!(walked.peak <= budget && walked.cost == ours.cost);
        }
    }
}

#[test]
fn a_larger_budget_never_costs_more() {
    for seed in 300..310 {
        let chain = questions::chain(seed, 64);
        let most = simulate::chain(&chain, &[0; 64]).peak;
        let costs: Vec<u64> = budgets(chain.least_peak(), most)
            .map(|budget| chain.solve(budget).expect("feasible").cost)
            .collect();
        assert!(costs.is_sorted_by(|a, b| a >= b), "{costs:?}");
        assert_eq!(costs.last(), Some(&0), "keeping everything costs nothing");
        assert!(costs[0] > 0, "the least peak costs something");
    }
}

/// Sizes in bytes as models have them, costs in operations.
fn large(seed: u64, blocks: usize) -> Chain {
    let mut dice = Dice(seed);
    let blocks = (0..blocks)
        .map(|_| {
            Measured {
                input: dice.within(1 << 20, 1 << 26),
                saved: dice.within(1 << 26, 1 << 32),
                forward_working: dice.within(0, 1 << 28),
                backward_working: dice.within(1 << 20, 1 << 30),
                output_gradient: dice.within(1 << 20, 1 << 26),
                gradient: dice.within(0, 1 << 28),
                forward_cost: dice.within(1_000_000_000, 1_000_000_000_000),
            }
            .block()
        })
        .collect();
    Chain { base: 1 << 34, blocks, head_peak: 1 << 32, head_gradient: 1 << 28 }
}

#[test]
fn a_long_chain_of_different_blocks_is_solved_to_the_byte() {
    for seed in 0..4 {
        let chain = large(seed, 128);
        let most = simulate::chain(&chain, &[0; 128]).peak;
        for tightness in [5, 30, 60, 90] {
            let budget = questions::between(chain.least_peak(), most, tightness);
            let ours = chain.solve(budget).expect("feasible");
            assert!(ours.is_optimal());
            let walked = simulate::chain(&chain, &ours.choices);
            assert!(walked.peak <= budget && walked.cost == ours.cost);
        }
    }
}
