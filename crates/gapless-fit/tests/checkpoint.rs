//! Schedules against brute force, against the simulator, and against themselves as the budget grows.

#[path = "milp/questions.rs"]
#[allow(dead_code)]
mod questions;

use gapless_fit::checkpoint::chain::{Chain, Measured};
use gapless_fit::checkpoint::graph::{Graph, GraphError, Node};
use gapless_fit::checkpoint::nested::Nested;
use gapless_fit::checkpoint::segments::{Part, Segmented};
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

fn all_cuts(blocks: usize) -> Vec<Vec<Part>> {
    if blocks == 0 {
        return vec![Vec::new()];
    }
    let mut cuts = Vec::new();
    for from in 0..blocks {
        for mut parts in all_cuts(from) {
            if from + 1 == blocks {
                cuts.push([parts.clone(), vec![Part::Kept { block: from }]].concat());
            }
            parts.push(Part::Recomputed { from, to: blocks });
            cuts.push(parts);
        }
    }
    cuts
}

#[test]
fn segments_are_the_best_of_all_cuts() {
    for seed in 100..140 {
        let chain = questions::segmented(seed, 1 + seed as usize % 7);
        let outcomes: Vec<_> =
            all_cuts(chain.blocks.len()).iter().map(|parts| simulate::segments(&chain, parts)).collect();
        let least = outcomes.iter().map(|outcome| outcome.peak).min().expect("some");
        assert_eq!(chain.least_peak(), least);
        for budget in budgets(least, outcomes.iter().map(|outcome| outcome.peak).max().expect("some")) {
            let best =
                outcomes.iter().filter(|outcome| outcome.peak <= budget).map(|outcome| outcome.cost).min();
            let ours = chain.solve(budget).expect("feasible");
            assert_eq!(Some(ours.cost), best, "seed {seed}, budget {budget}");
            assert!(simulate::segments(&chain, &ours.parts).peak <= budget);
        }
    }
}

#[test]
fn graphs_are_the_best_of_all_kept_sets() {
    for seed in 200..230 {
        let graph = questions::graph(seed, 3 + seed as usize % 9);
        let n = graph.nodes.len();
        let sets = (0..1u32 << n).map(|set| (0..n).map(|v| set >> v & 1 == 1).collect::<Vec<bool>>());
        let outcomes: Vec<_> = sets.map(|kept| simulate::graph(&graph, &kept)).collect();
        let least = outcomes.iter().map(|outcome| outcome.peak).min().expect("some");
        assert!(graph.solve(least - 1).is_err());
        for budget in budgets(least, outcomes.iter().map(|outcome| outcome.peak).max().expect("some")) {
            let best =
                outcomes.iter().filter(|outcome| outcome.peak <= budget).map(|outcome| outcome.cost).min();
            let ours = graph.solve(budget).expect("feasible");
            assert!(ours.is_optimal());
            assert_eq!(Some(ours.cost), best, "seed {seed}, budget {budget}");
            let walked = simulate::graph(&graph, &ours.kept);
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

#[test]
fn equal_blocks_are_cut_into_segments_that_shrink_towards_the_end() {
    let block = Measured { input: 1, saved: 1, forward_cost: 1, ..Measured::default() };
    let chain = Segmented { base: 0, blocks: vec![block; 100], head_peak: 0, head_gradient: 0, longest: 100 };
    // The i-th segment has i inputs held before it: lengths 14, 13, ..., 1 hold 105 blocks, which beats ten segments of ten.
    assert_eq!(chain.least_peak(), 15);
}

#[test]
fn checkpoints_within_checkpoints_never_cost_more_than_plain_ones() {
    for seed in 400..420 {
        let plain = questions::segmented(seed, 3 + seed as usize % 8);
        let mut blocks = plain.blocks.clone();
        // Gradients of the head are there from its backward on; here the head is a block.
        blocks.push(Measured {
            saved: 0,
            backward_working: plain.head_peak,
            gradient: plain.head_gradient,
            ..Measured::default()
        });
        let most = plain.least_peak() * 2;
        let nested = Nested { base: plain.base, blocks, slots: most as usize };
        for budget in budgets(plain.least_peak(), most) {
            let ours = nested.solve(budget).expect("feasible where plain segments are");
            let walked = simulate::nested(nested.base, &nested.blocks, &ours.ops).expect("a schedule");
            assert!(walked.peak <= budget, "seed {seed}: {walked:?} over {budget}");
            assert_eq!(walked.cost, ours.recompute);
            assert!(
                ours.recompute <= plain.solve(budget).expect("feasible").cost,
                "seed {seed}, budget {budget}"
            );
        }
    }
}

#[test]
fn nesting_reaches_peaks_that_plain_segments_cannot() {
    let block = Measured { input: 1, saved: 1, forward_cost: 1, ..Measured::default() };
    let nested = Nested { base: 0, blocks: vec![block; 64], slots: 64 };
    let ours = nested.solve(8).expect("a logarithm of the length suffices");
    let walked = simulate::nested(0, &nested.blocks, &ours.ops).expect("a schedule");
    assert!(walked.peak <= 8 && walked.cost == ours.recompute);
    assert!(
        Segmented { base: 0, blocks: nested.blocks, head_peak: 0, head_gradient: 0, longest: 64 }
            .solve(8)
            .is_err()
    );
}

#[test]
fn a_large_graph_gets_a_schedule_with_its_distance_from_the_bound() {
    let graph = questions::graph(7, 400);
    let most = simulate::graph(&graph, &[true; 400]).peak;
    let ours = graph.solve_within(most * 7 / 10, 2_000).expect("seventy percent of keeping all");
    let walked = simulate::graph(&graph, &ours.kept);
    assert!(walked.peak <= most * 7 / 10 && walked.cost == ours.cost);
    assert!(ours.proof.lower_bound <= ours.cost && ours.proof.lower_bound > 0);
}

#[test]
fn a_graph_out_of_order_is_refused() {
    let node = |inputs: Vec<usize>| Node { inputs, ..Node::default() };
    let graph = Graph { base: 0, nodes: vec![node(vec![1]), node(vec![])] };
    assert_eq!(graph.check(), Err(GraphError::Order { node: 0, reads: 1 }));
}
