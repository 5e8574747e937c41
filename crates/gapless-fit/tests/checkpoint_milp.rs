//! Equal to the optimum that HiGHS proves, on 100 chains, 60 chains cut into segments and 100 graphs of up to 30 nodes.
//!
//! The optima stand in milp/optima.csv; they were made with `cargo run --release -p gapless-fit --example checkpoint_questions > q.json`
//! and `python tests/milp/solve.py q.json tests/milp/optima.csv`, where the integer programs are written from the contracts alone.

#[path = "milp/questions.rs"]
#[allow(dead_code)]
mod questions;

use gapless_fit::checkpoint::simulate;

#[test]
fn every_optimum_is_the_integer_programs() {
    let asked = questions::questions();
    let rows: Vec<&str> = include_str!("milp/optima.csv").lines().skip(1).collect();
    assert_eq!(asked.len(), rows.len());
    let mut infeasible = 0;
    for (question, row) in asked.iter().zip(rows) {
        let fields: Vec<&str> = row.split(',').collect();
        let number = |place: usize| fields[place].parse::<i64>().expect("a number");
        let (size, seed, budget) = (number(1) as usize, number(2) as u64, number(3) as u64);
        assert_eq!(
            (fields[0], size, seed),
            (question.kind, question.size, question.seed),
            "made from other questions"
        );
        let ours: Option<(u64, u64, simulate::Outcome)> = match question.kind {
            "chain" => {
                let chain = questions::chain(seed, size);
                chain
                    .solve(budget)
                    .ok()
                    .map(|s| (s.cost, s.proof.lower_bound, simulate::chain(&chain, &s.choices)))
            }
            "segments" => {
                let chain = questions::segmented(seed, size);
                chain
                    .solve(budget)
                    .ok()
                    .map(|s| (s.cost, s.proof.lower_bound, simulate::segments(&chain, &s.parts)))
            }
            _ => {
                let graph = questions::graph(seed, size);
                graph.check().expect("in order");
                graph
                    .solve(budget)
                    .ok()
                    .map(|s| (s.cost, s.proof.lower_bound, simulate::graph(&graph, &s.kept)))
            }
        };
        match ours {
            Some((cost, bound, outcome)) => {
                assert_eq!(cost as i64, number(4), "{row}");
                assert_eq!((cost, cost), (bound, outcome.cost), "{row}");
                assert!(outcome.peak <= budget, "{row}: {outcome:?}");
            }
            None => {
                infeasible += 1;
                assert_eq!(number(4), -1, "{row}");
            }
        }
    }
    assert!(infeasible < 60, "too few questions have an answer: {infeasible} have none");
}
