//! Many threads create and delete pods at once: no GPU is booked twice, and nothing is lost.

mod support;

use gapless_fleet::desk::Desk;
use gapless_fleet::words::Request;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Dice, node, request};

const THREADS: u64 = 8;
const EACH: u64 = 12_500;

#[test]
fn a_hundred_thousand_concurrent_creates_and_deletes() {
    let nodes = (0..40).map(|i| node(&format!("n{i}"), 32, 8, if i % 3 == 0 { "A" } else { "B" })).collect();
    let desk = Desk::new(nodes);
    let kinds: Vec<Request> =
        [(1, 1, 250, ""), (2, 1, 810, ""), (4, 2, 1000, "A"), (1, 1, 1000, "B"), (2, 0, 0, "")]
            .map(|(cpus, gpus, milli, models)| request(cpus, gpus, milli, models))
            .to_vec();
    let left = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (desk, kinds, left) = (&desk, &kinds, &left);
            scope.spawn(move || {
                let mut dice = Dice(thread + 1);
                let mut mine: Vec<String> = Vec::new();
                for number in 0..EACH {
                    if dice.below(2) == 0 && !mine.is_empty() {
                        let id = mine.swap_remove(dice.below(mine.len() as u64) as usize);
                        assert!(desk.delete(&id), "{id} was placed");
                        assert!(!desk.delete(&id), "{id} is gone");
                    } else {
                        let id = format!("{thread}-{number}");
                        if let Ok(place) = desk.create(&id, &dice.of(kinds)) {
                            // Whoever asks again gets the same place.
                            let again = desk.create(&id, &kinds[0]).expect("it is placed");
                            assert_eq!(place, again);
                            mine.push(id);
                        }
                    }
                    if number % 2_500 == 0 {
                        desk.check().expect("the account is right while others work");
                    }
                }
                left.fetch_add(mine.len(), Ordering::Relaxed);
                for id in mine.iter().skip(1) {
                    assert!(desk.delete(id));
                }
            });
        }
    });
    assert!(left.load(Ordering::Relaxed) > 0);
    assert!(desk.pods() <= THREADS as usize);
    desk.check().expect("the account is right");
}

#[test]
fn nodes_go_and_come_back_with_what_they_hold() {
    let desk = Desk::new(vec![node("a", 8, 1, "A")]);
    let half = request(1, 1, 500, "");
    desk.create("p", &half).expect("it fits");
    assert!(desk.close_node("a"));
    assert!(desk.create("q", &half).is_err(), "a closed node takes nothing");
    assert!(desk.add_node(node("b", 8, 1, "B")), "a new node of a new model");
    assert_eq!(desk.create("q", &half).expect("it fits").node, "b");
    assert!(desk.add_node(node("a", 8, 1, "A")), "it is back");
    assert_eq!(desk.create("r", &request(1, 1, 500, "A")).expect("it fits").node, "a");
    assert!(desk.create("s", &request(1, 1, 500, "A")).is_err(), "p still holds its half");
    assert!(desk.restore("t", "a", &request(1, 1, 1, ""), &[0]).is_err(), "nothing is left there");
    desk.check().expect("the account is right");
}
