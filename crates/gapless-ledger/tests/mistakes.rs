//! Each mistake that can be switched on is found. `cargo test -p gapless-ledger --features mutants --test mistakes --
//! --nocapture`

#![cfg(feature = "mutants")]

mod world;

use gapless_ledger::promise::mutants::{self, Mutant};
use world::search::{self, exhaust, walk};

/// States of each world that are tried.
const MOST: usize = 20_000;

/// One test: a mutant is switched on for the whole process.
#[test]
fn every_mistake_is_found() {
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        mutants::set(Some(mutant));
        let small = search::races().into_iter().chain(search::upheavals()).find_map(|(name, world)| {
            let found = exhaust(&world, MOST).wrong?;
            Some(format!("{name}: {}", search::told(&found)))
        });
        let walk = || Some(format!("a walk: {}", search::told(&walk(1, 1_000).err()?)));
        let found = small.or_else(walk);
        mutants::set(None);
        println!("{mutant:?}: {}", found.as_deref().unwrap_or("not found"));
        if found.is_none() {
            missed.push(mutant);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
