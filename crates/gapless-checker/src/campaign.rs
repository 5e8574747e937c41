//! Many programs, one after the other, until enough operations were done.

use super::generate::generate;
use super::ops::Program;
use super::run::run;
use super::shrink::shrink;
use super::totals::Totals;
use super::violation::{Rule, Violation};
use std::fmt;

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The first seed; the others follow.
    pub seed: u64,
    pub operations: u64,
    /// Rules that may be violated.
    pub ignored: Vec<Rule>,
    /// Stops after this number of programs that violate a rule.
    pub most_found: usize,
    /// True to find the shortest program for each.
    pub shrinks: bool,
}

/// A program that violates a rule.
#[derive(Clone, Debug)]
pub struct Found {
    pub program: Program,
    pub violation: Violation,
    /// The sum of operations of all programs until it was found.
    pub after: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.violation)?;
        write!(f, "{}", self.program)
    }
}

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub totals: Totals,
    /// The first seed, and the one after the last.
    pub seeds: (u64, u64),
    pub found: Vec<Found>,
}

impl Campaign {
    #[must_use]
    pub fn new(seed: u64, operations: u64) -> Campaign {
        Campaign { seed, operations, ignored: Vec::new(), most_found: 1, shrinks: true }
    }

    #[must_use]
    pub fn run(&self) -> Outcome {
        let mut outcome = Outcome { seeds: (self.seed, self.seed), ..Outcome::default() };
        while outcome.totals.operations < self.operations && outcome.found.len() < self.most_found {
            let program = generate(outcome.seeds.1);
            outcome.seeds.1 += 1;
            let (totals, violation) = run(&program, &self.ignored);
            outcome.totals.add(&totals);
            let Some(violation) = violation else { continue };
            // One program for each rule is enough.
            if outcome.found.iter().any(|found| found.violation.rule == violation.rule) {
                continue;
            }
            let (program, violation) =
                if self.shrinks { shrink(&program, &violation, &self.ignored) } else { (program, violation) };
            outcome.found.push(Found { program, violation, after: outcome.totals.operations });
        }
        outcome
    }
}
