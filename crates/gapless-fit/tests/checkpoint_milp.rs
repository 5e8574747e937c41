//! Equal to the optimum that HiGHS proves, on 100 chains of up to 40 blocks.
//!
//! The optima stand in milp/optima.csv; they were made with `cargo run --release -p gapless-fit --example
//! checkpoint_questions > q.json` and `python tests/milp/solve.py q.json tests/milp/optima.csv`, where the integer
//! programs are written from the contracts alone.

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
        let (size, seed, budget) = (number(0) as usize, number(1) as u64, number(2) as u64);
        assert_eq!((size, seed), (question.size, question.seed), "made from other questions");
        let chain = questions::chain(seed, size);
        let ours = chain.solve(budget).ok();
        match ours {
            Some(solution) => {
                let outcome = simulate::chain(&chain, &solution.choices);
                assert_eq!(solution.cost as i64, number(3), "{row}");
                assert_eq!(
                    (solution.cost, solution.cost),
                    (solution.proof.lower_bound, outcome.cost),
                    "{row}"
                );
                assert!(outcome.peak <= budget, "{row}: {outcome:?}");
            }
            None => {
                infeasible += 1;
                assert_eq!(number(3), -1, "{row}");
            }
        }
    }
    assert!(infeasible < 60, "too few questions have an answer: {infeasible} have none");
}
