//! Many threads create and delete pods at once: no GPU is booked twice, and nothing is lost.

mod support;

use gapless_fleet::arrivals;
use gapless_fleet::desk::{Desk, Place};
use gapless_fleet::policy::Policy;
use gapless_fleet::sim::{self, Options, Outcome};
use gapless_fleet::words::{Pod, Request};
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
                            // A repeated create returns the same place.
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

#[test]
fn the_desk_places_pods_as_the_simulation_that_learns() {
    let nodes: Vec<_> =
        (0..30).map(|i| node(&format!("n{i:02}"), 24, 4, if i % 4 == 0 { "A" } else { "B" })).collect();
    let mut dice = Dice(3);
    let pods: Vec<Pod> = (0..400u64)
        .map(|number| {
            let kinds =
                [(1, 1, 250, ""), (3, 1, 810, ""), (6, 2, 1000, "A"), (4, 1, 1000, ""), (2, 0, 0, "")];
            let (cpus, gpus, milli, models) = kinds[dice.below(kinds.len() as u64) as usize];
            Pod {
                name: format!("p{number:03}"),
                request: request(cpus, gpus, milli, models),
                created: Some(number),
                deleted: None,
                priority: 0,
                gang: String::new(),
            }
        })
        .collect();
    let mut arrivals = arrivals::listed(&pods, &nodes, 1);
    arrivals.rank_by_name(&nodes);
    let options = Options { learn: true, ..Options::default() };
    let run = sim::run(&nodes, &pods, &arrivals, options, |ledger, mix, random| {
        Policy::named("gapless", ledger, mix, random).expect("a policy")
    });
    let desk = Desk::new(nodes.clone());
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let mut refused = 0;
    for (pod, outcome) in pods.iter().zip(&run.outcomes) {
        let place = desk.create_among(&pod.name, &pod.request, &names);
        match (place, outcome) {
            (Ok(Place { node, gpus, .. }), Outcome::Placed { node: at, gpus: there, .. }) => {
                assert_eq!(
                    (node.as_str(), &gpus),
                    (nodes[*at as usize].name.as_str(), there),
                    "{}",
                    pod.name
                );
            }
            (Err(cause), Outcome::Failed(why)) => {
                assert_eq!(cause, *why);
                refused += 1;
                // A repeated create does not count for the mix.
                assert!(desk.create_among(&pod.name, &pod.request, &names).is_err());
            }
            (place, outcome) => panic!("{}: {place:?}, {outcome:?}", pod.name),
        }
    }
    assert!(refused > 20 && refused < 200, "{refused}");
    desk.check().expect("the account is right");
}
