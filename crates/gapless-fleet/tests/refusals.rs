//! Nothing that fits is refused: every sequence of requests on every small cluster, against a search that tries every
//! node and GPU; and kept scores equal fresh ones.

mod support;

use gapless_fleet::go_random::GoRandom;
use gapless_fleet::ledger::Ledger;
use gapless_fleet::mix::Mix;
use gapless_fleet::place::Placer;
use gapless_fleet::policy::{NAMES, Policy};
use gapless_fleet::words::{Node, Request, Share};
use support::{Dice, node, request};

/// True if a request fits on a node by trying every choice of GPUs.
fn fits_somehow(ledger: &Ledger, request: &Request) -> bool {
    (0..ledger.len() as u32).any(|node| {
        let gpus = ledger.node(node).gpus;
        (0u32..1 << gpus).filter(|choice| choice.count_ones() == request.gpus).any(|choice| {
            let chosen: Vec<u16> = (0..gpus as u16).filter(|gpu| choice >> gpu & 1 == 1).collect();
            ledger.clone().book(node, request, &chosen).is_ok()
        })
    })
}

fn placer(nodes: Vec<Node>, policy: &str, mix: &Mix) -> Placer {
    let ledger = Ledger::new(nodes);
    let policy = Policy::named(policy, &ledger, mix, &GoRandom::new(3)).expect("a policy");
    Placer::new(ledger, policy)
}

#[test]
fn no_policy_refuses_what_fits_on_any_small_cluster() {
    let kinds = [
        request(0, 1, 400, ""),
        request(1, 1, 600, "A"),
        request(2, 1, 1000, ""),
        request(1, 2, 1000, ""),
        request(1, 2, 500, "B|A"),
        request(2, 0, 0, ""),
    ];
    let clusters = [
        vec![node("a", 3, 2, "A"), node("b", 2, 1, "B")],
        vec![node("a", 2, 2, "B"), node("b", 3, 2, "B")],
        vec![node("a", 4, 0, ""), node("b", 1, 3, "A")],
    ];
    let mix = Mix::of(kinds.iter());
    let mut decisions = 0;
    for nodes in &clusters {
        for policy in NAMES {
            let empty = placer(nodes.clone(), policy, &mix);
            // Every sequence of five requests, as a tree: a state is extended by every request.
            let mut states = vec![empty];
            for depth in 0..4 {
                let mut next = Vec::new();
                for state in &states {
                    for kind in &kinds {
                        let mut after = state.clone();
                        let fits = fits_somehow(after.ledger(), kind);
                        let booking = after.place(kind);
                        assert_eq!(booking.is_some(), fits, "{policy} at depth {depth}: {kind:?}");
                        decisions += 1;
                        if booking.is_some() {
                            next.push(after);
                        }
                    }
                }
                states = next;
            }
        }
    }
    assert!(decisions > 5_000, "{decisions}");
}

#[test]
fn kept_scores_are_those_of_a_fresh_look() {
    let mut dice = Dice(11);
    let models = ["A", "B", "C"];
    let specs = ["", "", "A", "A|B", "C"];
    for policy in NAMES.iter().filter(|name| **name != "random") {
        let nodes: Vec<Node> = (0..150)
            .map(|i| {
                node(&format!("n{i}"), dice.of(&[4, 16, 64]), dice.of(&[0, 1, 2, 4, 8]), dice.of(&models))
            })
            .collect();
        let kinds: Vec<Request> = (0..25)
            .map(|_| match dice.below(4) {
                0 => request(dice.below(6), 0, 0, ""),
                1 => request(dice.below(4), dice.of(&[1, 2, 4]), 1000, dice.of(&specs)),
                2 => request(dice.below(4), 2, 300, dice.of(&specs)),
                _ => request(dice.below(4), 1, 10 + dice.below(99) as u32 * 10, dice.of(&specs)),
            })
            .collect();
        let mix = Mix::of(kinds.iter());
        let mut kept = placer(nodes, policy, &mix);
        let mut out = Vec::new();
        for _ in 0..2_000 {
            if dice.below(3) == 0 && !out.is_empty() {
                let booking = out.swap_remove(dice.below(out.len() as u64) as usize);
                kept.release(&booking).expect("it is booked");
                continue;
            }
            let kind = dice.of(&kinds);
            let mut fresh = Placer::new(kept.ledger().clone(), kept.policy_mut().clone());
            let expected = fresh.choose(&kind);
            assert_eq!(kept.choose(&kind), expected, "{policy}");
            out.extend(kept.place(&kind));
        }
        kept.ledger().check(out.iter()).expect("the account is right");
    }
}

#[test]
fn bytes_are_counted_to_the_byte() {
    let whole = 80u64 << 30;
    let with_memory = |name: &str| Node { gpu_memory: Some(whole), ..node(name, 64, 1, "H") };
    let mut placer = placer(vec![with_memory("a")], "gapless", &Mix::default());
    let third = Request { share: Share::Bytes(whole / 3), ..request(1, 1, 1, "") };
    let mut out: Vec<_> = (0..3).map(|_| placer.place(&third).expect("a third fits three times")).collect();
    let left = whole - 3 * (whole / 3);
    assert_eq!(placer.ledger().left(0), [left]);
    assert!(placer.place(&Request { share: Share::Bytes(left + 1), ..third.clone() }).is_none());
    out.push(placer.place(&Request { share: Share::Bytes(left), ..third }).expect("the rest fits"));
    placer.ledger().check(out.iter()).expect("the account is right");
}

#[test]
fn a_ledger_refuses_what_does_not_fit_and_what_is_not_booked() {
    let mut ledger = Ledger::new(vec![node("a", 2, 2, "A")]);
    let half = request(1, 1, 500, "");
    let booking = ledger.book(0, &half, &[1]).expect("it fits");
    for (wrong, gpus) in [
        (request(2, 1, 500, ""), vec![0]),
        (request(1, 1, 501, ""), vec![1]),
        (request(1, 2, 100, ""), vec![0, 0]),
        (request(1, 1, 100, "B"), vec![0]),
        (request(1, 1, 100, ""), vec![2]),
    ] {
        assert!(ledger.book(0, &wrong, &gpus).is_err(), "{wrong:?}");
        ledger.check([&booking].into_iter()).expect("nothing changed");
    }
    ledger.release(&booking).expect("it is booked");
    assert!(ledger.release(&booking).is_err());
    ledger.check(std::iter::empty()).expect("it is empty");
}
