//! No byte of a GPU is promised twice, for any events in any order, and every pod that fits is placed in the end.
//! `WALKS=100000` sets the number of random walks.

mod world;

use gapless_ledger::promise::entry::{Amount, Entry, sum};
use gapless_ledger::promise::life::{Facts, Life};
use world::search::{self, Scope, exhaust, walk};

/// States of the largest world.
const MOST: usize = 100_000;

fn exhaust_all(scopes: Vec<Scope>) {
    for (name, world) in scopes {
        let seen = exhaust(&world, MOST);
        println!("{name:<46} {:>8} states, {:>6} ends", seen.states, seen.ends);
        if let Some(wrong) = &seen.wrong {
            panic!("{name}: {}", search::told(wrong));
        }
        assert!(seen.ends > 0 && seen.states < MOST, "{name}: the world is too large to try all of it");
    }
}

#[test]
fn all_interleavings_of_replicas_and_lost_answers_promise_no_byte_twice() {
    exhaust_all(search::races());
}

#[test]
fn all_interleavings_with_what_happens_to_a_cluster_promise_no_byte_twice() {
    exhaust_all(search::upheavals());
}

#[test]
fn random_walks_of_three_replicas_promise_no_byte_twice() {
    let walks = std::env::var("WALKS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    match walk(1, walks) {
        Ok(steps) => println!("{steps} steps"),
        Err(wrong) => panic!("{}", search::told(&wrong)),
    }
}

#[test]
fn an_entry_is_read_as_it_was_written_and_nothing_else_is() {
    for (gpus, amount) in
        [(vec!["GPU-a"], Amount::Bytes(19_327_352_832)), (vec!["a", "b"], Amount::Milli(500))]
    {
        let gpus: Vec<String> = gpus.into_iter().map(str::to_owned).collect();
        let (uid, pod, seen) = ("u-1".to_owned(), "d/p".to_owned(), "4711".to_owned());
        let entry = Entry { uid, pod, gpus, amount, seen };
        assert_eq!(Entry::read("u-1", &entry.words()), Some(entry.clone()));
        let other = Entry { seen: "4712".to_owned(), ..entry.clone() };
        assert_ne!(sum("n", std::slice::from_ref(&entry)), sum("n", &[other]));
        assert_ne!(sum("n", std::slice::from_ref(&entry)), sum("m", &[entry]));
    }
    for wrong in
        ["", "d/p", "d/p a 1", "d/p a 1 ", "d/p  1 2", "d/p a; 1 2", "d/p a x 2", "d/p a -1 2", "d/p a 1 2 3"]
    {
        assert_eq!(Entry::read("u-1", wrong), None, "{wrong:?}");
    }
}

#[test]
fn a_unit_stays_with_its_number() {
    let whole = Some(80 << 30);
    assert_eq!(Amount::Milli(1000).units(whole), 80 << 30);
    assert_eq!(Amount::Milli(500).units(whole) * 2, 80 << 30);
    assert_eq!(Amount::Milli(500).units(None), 500);
    assert_eq!(Amount::Bytes(1).units(None), 1000, "nobody knows how much of the whole it is");
    assert_eq!(Amount::Bytes(1000).units(whole), 1000);
}

#[test]
fn a_fact_counts_more_than_an_assumption() {
    for bits in 0..32u8 {
        let is = |bit: u8| bits & (1 << bit) != 0;
        let facts =
            Facts { is_gone: is(0), is_bound: is(1), is_ours: is(2), is_booked: is(3), is_assumed: is(4) };
        let life = Life::of(facts);
        assert_eq!(life == Life::Gone, facts.is_gone);
        assert_eq!(matches!(life, Life::Bound | Life::Lost), facts.is_bound && !facts.is_gone);
        assert_eq!(life == Life::Lost, facts.is_bound && facts.is_ours && !facts.is_booked && !facts.is_gone);
        if life == Life::Seen {
            assert!(!facts.is_booked && !facts.is_assumed, "what may be held is held");
        }
    }
}
