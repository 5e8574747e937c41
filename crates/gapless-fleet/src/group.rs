//! Places pods that belong together: all of them or none, by one of Ray's four strategies.
//!
//! ```text
//! STRICT_PACK     all on one node
//! PACK            on one node if they fit there, else on as few as the search finds
//! STRICT_SPREAD   each on a node of its own
//! SPREAD          on nodes of their own as far as there are some
//! ```
//!
//! `STRICT_SPREAD` finds places whenever there are some: it is a matching of pods and nodes. The others place the
//! largest pod first; a group that would fit only in another order may wait.

use crate::ledger::Booking;
use crate::place::Placer;
use crate::sim::{Cause, cause};
use crate::words::{Request, Share};
use serde::Deserialize;
use std::cmp::Reverse;

/// The most pods of a group.
pub const MOST_PODS: usize = 1024;

/// The rule for the nodes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Strategy {
    Pack,
    StrictPack,
    Spread,
    StrictSpread,
}

impl Strategy {
    pub const ALL: [Strategy; 4] =
        [Strategy::Pack, Strategy::StrictPack, Strategy::Spread, Strategy::StrictSpread];
}

/// Books all requests or none; the bookings are in the order of the requests.
pub fn place(placer: &mut Placer, requests: &[Request], strategy: Strategy) -> Option<Vec<Booking>> {
    match strategy {
        Strategy::StrictPack => on_one(placer, requests),
        Strategy::Pack => {
            on_one(placer, requests).or_else(|| each(placer, requests, |node, used| used.contains(&node)))
        }
        Strategy::Spread => each(placer, requests, |node, used| !used.contains(&node)),
        Strategy::StrictSpread => on_their_own(placer, requests),
    }
}

/// The reason why a group can never be placed, even if all nodes were empty; `None` if that is not proven.
pub fn never(placer: &Placer, requests: &[Request], strategy: Strategy) -> Option<(Cause, String)> {
    let alone = requests.iter().find_map(|request| {
        let cause = cause(placer, request).filter(|cause| matches!(cause, Cause::Model | Cause::TooLarge));
        cause.map(|cause| (cause, cause.words().to_owned()))
    });
    if alone.is_some() {
        return alone;
    }
    let ledger = placer.ledger();
    let open: Vec<u32> = (0..ledger.len() as u32).filter(|&node| ledger.slot(node).open).collect();
    let large = |what: String| Some((Cause::TooLarge, what));
    match strategy {
        Strategy::StrictPack if !open.iter().any(|&node| holds_all(placer, node, requests)) => {
            large(format!("no node could hold all {} pods, even if it were empty", requests.len()))
        }
        Strategy::StrictSpread => {
            let fits = |request: &Request| -> Vec<u32> {
                let holds = |node: &u32| holds_all(placer, *node, std::slice::from_ref(request));
                open.iter().copied().filter(holds).collect()
            };
            let nodes: Vec<Vec<u32>> = requests.iter().map(fits).collect();
            match matched(&nodes) {
                Some(_) => None,
                None => large(format!(
                    "{} pods need a node each that could hold them, and there are too few such nodes",
                    requests.len()
                )),
            }
        }
        _ => None,
    }
}

/// The reason why a group does not fit now.
pub fn refusal(placer: &Placer, requests: &[Request], strategy: Strategy) -> Cause {
    let alone = requests.iter().find_map(|request| cause(placer, request));
    alone.unwrap_or(match strategy {
        Strategy::StrictSpread => Cause::Elsewhere,
        _ => Cause::GpusFragmented,
    })
}

/// True unless the sums of what the requests take prove that an empty node is too small for all of them.
fn holds_all(placer: &Placer, node: u32, requests: &[Request]) -> bool {
    let (ledger, slot) = (placer.ledger(), placer.ledger().slot(node));
    let (whole, model) = (ledger.node(node), &ledger.models()[slot.model as usize].name);
    let fits = |request: &Request| {
        request.accepts(model)
            && request.gpus <= whole.gpus
            && (request.gpus == 0 || request.units_of(slot.units) <= slot.units)
    };
    let sum = |of: &dyn Fn(&Request) -> u64| requests.iter().map(|one| u128::from(of(one))).sum::<u128>();
    requests.iter().all(fits)
        && sum(&|one| one.cpu_milli) <= u128::from(whole.cpu_milli)
        && sum(&|one| one.memory) <= u128::from(whole.memory)
        && requests.len() as u64 <= u64::from(whole.max_pods)
        && requests.iter().map(|one| units(one, slot.units)).sum::<u128>()
            <= u128::from(slot.units) * u128::from(whole.gpus)
}

/// Units that a request takes of a node's GPUs together.
fn units(request: &Request, of_one: u64) -> u128 {
    if request.gpus == 0 { 0 } else { u128::from(request.units_of(of_one)) * u128::from(request.gpus) }
}

/// The places of requests in the order of their sizes, the largest first.
fn largest_first(requests: &[Request]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&at| {
        let request = &requests[at];
        let part = match request.share {
            Share::Milli(milli) => u64::from(milli),
            Share::Bytes(bytes) => bytes,
        };
        Reverse((u128::from(part) * u128::from(request.gpus), request.cpu_milli, request.memory))
    });
    order
}

/// All on one node: the best one for the largest pod that has room for the others too.
fn on_one(placer: &mut Placer, requests: &[Request]) -> Option<Vec<Booking>> {
    let order = largest_first(requests);
    let first = &requests[*order.first()?];
    let nodes = placer.fitting_by_score(first);
    let has_room = |placer: &Placer, node: u32| {
        let of_one = placer.ledger().slot(node).units;
        let left: u128 = placer.ledger().left(node).iter().map(|&left| u128::from(left)).sum();
        requests.iter().map(|one| units(one, of_one)).sum::<u128>() <= left
    };
    nodes.into_iter().find_map(|node| {
        if !has_room(placer, node) {
            return None;
        }
        all_or_none(placer, &order, |placer, at, _| placer.place_on(node, &requests[at]))
    })
}

/// One after the other, on preferred nodes if there is room.
fn each(
    placer: &mut Placer,
    requests: &[Request],
    is_preferred: impl Fn(u32, &[u32]) -> bool,
) -> Option<Vec<Booking>> {
    let order = largest_first(requests);
    all_or_none(placer, &order, |placer, at, used| {
        let request = &requests[at];
        placer.place_among(request, |node| is_preferred(node, used)).or_else(|| placer.place(request))
    })
}

/// Each on a node of its own: where the policy would put them one after the other, or else by a matching.
fn on_their_own(placer: &mut Placer, requests: &[Request]) -> Option<Vec<Booking>> {
    let order = largest_first(requests);
    let greedy = all_or_none(placer, &order, |placer, at, used| {
        placer.place_among(&requests[at], |node| !used.contains(&node))
    });
    greedy.or_else(|| {
        let nodes: Vec<Vec<u32>> = order.iter().map(|&at| placer.fitting_by_score(&requests[at])).collect();
        let chosen = matched(&nodes)?;
        let node_of = |at: usize| order.iter().position(|&other| other == at).map(|place| chosen[place]);
        all_or_none(placer, &order, |placer, at, _| placer.place_on(node_of(at)?, &requests[at]))
    })
}

/// Books with `book` in this order; releases everything if one request finds no place. `book` is told the nodes in use.
fn all_or_none(
    placer: &mut Placer,
    order: &[usize],
    mut book: impl FnMut(&mut Placer, usize, &[u32]) -> Option<Booking>,
) -> Option<Vec<Booking>> {
    let mut booked: Vec<(usize, Booking)> = Vec::with_capacity(order.len());
    let mut used = Vec::with_capacity(order.len());
    for &at in order {
        let Some(booking) = book(placer, at, &used) else {
            for (_, booking) in booked.iter().rev() {
                placer.release(booking).expect("it was booked above");
            }
            return None;
        };
        used.push(booking.node);
        booked.push((at, booking));
    }
    booked.sort_by_key(|(at, _)| *at);
    Some(booked.into_iter().map(|(_, booking)| booking).collect())
}

/// A node for each pod, no node twice; `None` if there is no such choice. By augmenting paths.
fn matched(nodes: &[Vec<u32>]) -> Option<Vec<u32>> {
    let mut owner: rustc_hash::FxHashMap<u32, usize> = rustc_hash::FxHashMap::default();
    for pod in 0..nodes.len() {
        // Breadth first: `from` has the pod that reached each node.
        let mut from: rustc_hash::FxHashMap<u32, usize> = rustc_hash::FxHashMap::default();
        let mut pods = vec![pod];
        let mut free = None;
        let mut at = 0;
        while at < pods.len() && free.is_none() {
            let asking = pods[at];
            at += 1;
            for &node in &nodes[asking] {
                if from.contains_key(&node) {
                    continue;
                }
                from.insert(node, asking);
                match owner.get(&node) {
                    Some(&other) => pods.push(other),
                    None => {
                        free = Some(node);
                        break;
                    }
                }
            }
        }
        let mut node = free?;
        loop {
            let asking = from[&node];
            let before = owner.iter().find(|(_, one)| **one == asking).map(|(node, _)| *node);
            owner.insert(node, asking);
            match before {
                Some(before) => node = before,
                None => break,
            }
        }
    }
    let mut chosen = vec![0; nodes.len()];
    owner.into_iter().for_each(|(node, pod)| chosen[pod] = node);
    Some(chosen)
}
