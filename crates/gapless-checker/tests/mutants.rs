//! Each mistake that can be switched on is found. `cargo test -p gapless-checker --features mutants --test mutants --
//! --nocapture`

#![cfg(feature = "mutants")]

use gapless_checker::Campaign;
use gapless_pool::mutants::{self, Mutant};

/// A mutant must be found within this number of operations.
const MOST: u64 = 100_000;

/// One test, because a mutant is switched on for the whole process.
#[test]
fn every_mutant_is_found() {
    mutants::set(None);
    let clean = Campaign { shrinks: false, ..Campaign::new(1, MOST) }.run();
    if let Some(found) = clean.found.first() {
        panic!("without a mutant nothing is found: {}", found.violation);
    }
    let mut missed = Vec::new();
    println!("{:<20} {:>10}  {:<16} shortest program", "mutant", "operations", "rule");
    for mutant in Mutant::ALL {
        mutants::set(Some(mutant));
        let outcome = Campaign::new(1, MOST).run();
        mutants::set(None);
        let name = format!("{mutant:?}");
        match outcome.found.first() {
            Some(found) => {
                let (rule, length) = (format!("{:?}", found.violation.rule), found.program.ops.len());
                println!("{name:<20} {:>10}  {rule:<16} {length} operations", found.after);
            }
            None => {
                println!("{name:<20} {:>10}  not found", outcome.totals.operations);
                missed.push(mutant);
            }
        }
    }
    assert!(missed.is_empty(), "not found within {MOST} operations: {missed:?}");
}
