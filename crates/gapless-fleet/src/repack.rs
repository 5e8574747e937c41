//! Bounded repacking: makes room for a request that fits nowhere by moving a few pods to other nodes.
//!
//! A plan frees one node for the request and gives every pod that must leave a new place, by the policy. It has at most
//! as many moves as the caller allows. Nothing changes unless the whole plan works.

use crate::ledger::Booking;
use crate::place::Placer;
use crate::words::Request;
use rustc_hash::FxHashMap;

/// One pod that changes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The caller's number of the pod.
    pub pod: usize,
    pub from: u32,
    pub from_gpus: Vec<u16>,
    pub to: u32,
    pub to_gpus: Vec<u16>,
    /// Thousandths that the moves place together, divided by the number of moves.
    pub gained_milli: u64,
}

/// A pod that may be moved.
#[derive(Clone, Debug)]
pub struct Movable {
    pub booking: Booking,
    pub request: Request,
}

/// The most nodes that are tried for one request, the cheapest moves first.
const MOST_TRIES: usize = 24;

/// Makes room for `request` with at most `most` moves. Returns its booking and the moves, or `None` without a change.
///
/// `pods` are all pods that may move, `on_node` their numbers by node. Bookings of moved pods are brought up to date.
pub fn make_room(
    placer: &mut Placer,
    pods: &mut [Option<Movable>],
    on_node: &mut [Vec<u32>],
    request: &Request,
    most: usize,
) -> Option<(Booking, Vec<Move>)> {
    if most == 0 || request.gpus == 0 {
        return None;
    }
    let mut tries: Vec<(u64, u32, Vec<u32>)> = Vec::new();
    for (node, numbers) in on_node.iter().enumerate() {
        let node = node as u32;
        let slot = placer.ledger().slot(node);
        if numbers.is_empty() || !request.accepts(&placer.ledger().models()[slot.model as usize].name) {
            continue;
        }
        if let Some((cost, leaving)) = leaving(placer, pods, numbers, node, request, most) {
            tries.push((cost, node, leaving));
        }
    }
    tries.sort();
    // A pod that fits nowhere now has no new place either. Most pods share a few requests, so each is tried once.
    let mut has_place: FxHashMap<Request, bool> = FxHashMap::default();
    let mut tried = 0;
    for (_, node, leaving) in tries {
        let movable = leaving.iter().all(|&number| {
            pods[number as usize].as_ref().is_some_and(|pod| {
                *has_place
                    .entry(pod.request.clone())
                    .or_insert_with(|| placer.fitting(&pod.request).iter().any(|&other| other != node))
            })
        });
        if !movable {
            continue;
        }
        tried += 1;
        if tried > MOST_TRIES {
            return None;
        }
        if let Some((booking, moves)) = attempt(placer, pods, node, &leaving, request) {
            for one in &moves {
                on_node[one.from as usize].retain(|&number| number as usize != one.pod);
                on_node[one.to as usize].push(one.pod as u32);
            }
            return Some((booking, moves));
        }
    }
    None
}

/// The pods that must leave a node so that `request` fits there, and their thousandths: a greedy choice.
fn leaving(
    placer: &Placer,
    pods: &[Option<Movable>],
    numbers: &[u32],
    node: u32,
    request: &Request,
    most: usize,
) -> Option<(u64, Vec<u32>)> {
    let ledger = placer.ledger();
    let slot = ledger.slot(node);
    let whole = ledger.node(node);
    let need = request.units_of(slot.units);
    if whole.gpus < request.gpus || need > slot.units {
        return None;
    }
    // Each GPU: pods on it, the largest first, until it has enough left.
    let left = ledger.left(node);
    let mut of_gpus: Vec<(u64, usize, Vec<u32>)> = Vec::new();
    for (gpu, &left) in left.iter().enumerate() {
        let mut on_it: Vec<(u64, u32)> = numbers
            .iter()
            .filter_map(|&number| {
                let pod = pods[number as usize].as_ref()?;
                pod.booking.gpus.contains(&(gpu as u16)).then_some((pod.booking.units, number))
            })
            .collect();
        let missing = need.saturating_sub(left);
        let mut chosen = Vec::new();
        let mut cost = 0;
        if missing > 0 {
            on_it.sort_unstable();
            // The smallest single pod that is enough; else the largest ones.
            if let Some(&(units, number)) = on_it.iter().find(|(units, _)| *units >= missing) {
                chosen.push(number);
                cost = units;
            } else {
                let mut freed = 0;
                while freed < missing {
                    let (units, number) = on_it.pop()?;
                    freed += units;
                    cost += units;
                    chosen.push(number);
                }
            }
        }
        of_gpus.push((cost, gpu, chosen));
    }
    of_gpus.sort();
    let mut all: Vec<u32> =
        of_gpus.iter().take(request.gpus as usize).flat_map(|(_, _, chosen)| chosen.clone()).collect();
    all.sort_unstable();
    all.dedup();
    let held = |number: &u32| pods[*number as usize].as_ref();
    let cpu = |all: &[u32]| slot.cpu + all.iter().filter_map(held).map(|pod| pod.booking.cpu).sum::<u64>();
    let memory =
        |all: &[u32]| slot.memory + all.iter().filter_map(held).map(|pod| pod.booking.memory).sum::<u64>();
    // CPUs, memory or pods are short: the smallest single pod that holds enough of both leaves, else the largest.
    while cpu(&all) < request.cpu_milli
        || memory(&all) < request.memory
        || slot.pods as usize + all.len() == 0
    {
        let (cpu, memory) =
            (request.cpu_milli.saturating_sub(cpu(&all)), request.memory.saturating_sub(memory(&all)));
        let others = || {
            let pod = |&number: &u32| Some((number, &held(&number)?.booking));
            numbers.iter().filter(|number| !all.contains(number)).filter_map(pod)
        };
        // Pods without GPUs go first, because they fit on most other nodes.
        let key = |booking: &Booking| (booking.gpus.len(), booking.cpu, booking.memory);
        let enough = others().filter(|(_, booking)| booking.cpu >= cpu && booking.memory >= memory);
        let smallest = enough.min_by_key(|(number, booking)| (key(booking), *number));
        let largest = || others().max_by_key(|(number, booking)| (booking.cpu, booking.memory, *number));
        let (number, _) = smallest.or_else(largest)?;
        all.push(number);
        if all.len() > most {
            return None;
        }
    }
    if all.is_empty() || all.len() > most {
        return None;
    }
    let milli = |number: &u32| {
        held(number).map_or(0, |pod| {
            u64::from(pod.request.gpus) * u64::from(pod.request.milli_of(slot.units)) + pod.booking.cpu / 100
        })
    };
    Some((all.iter().map(milli).sum(), all))
}

/// Takes the pods off the node, books the request there, and places the pods again; undoes it all if one has no place.
fn attempt(
    placer: &mut Placer,
    pods: &mut [Option<Movable>],
    node: u32,
    leaving: &[u32],
    request: &Request,
) -> Option<(Booking, Vec<Move>)> {
    let old: Vec<Movable> = leaving.iter().filter_map(|&number| pods[number as usize].clone()).collect();
    for pod in &old {
        placer.release(&pod.booking).expect("it is booked");
    }
    let undo = |placer: &mut Placer, made: &[Booking]| {
        for booking in made.iter().rev() {
            placer.release(booking).expect("it was booked above");
        }
        for pod in &old {
            placer
                .book(pod.booking.node, &pod.request, &pod.booking.gpus)
                .expect("it was booked there before");
        }
    };
    let need = request.units_of(placer.ledger().slot(node).units);
    let gpus = crate::policy::fullest(placer.ledger().left(node), need, request.gpus as usize);
    let Ok(booking) = placer.book(node, request, &gpus) else {
        undo(placer, &[]);
        return None;
    };
    let mut made = vec![booking.clone()];
    // The largest goes first, because it fits in the fewest places.
    let mut order: Vec<usize> = (0..old.len()).collect();
    order.sort_by_key(|&at| {
        std::cmp::Reverse((old[at].booking.units * old[at].booking.gpus.len() as u64, old[at].booking.cpu))
    });
    let mut moved = Vec::new();
    for at in order {
        match placer.place(&old[at].request) {
            Some(new) => {
                made.push(new.clone());
                moved.push((at, new));
            }
            None => {
                undo(placer, &made);
                return None;
            }
        }
    }
    let units = placer.ledger().slot(node).units;
    let gained = u64::from(request.gpus) * u64::from(request.milli_of(units)) / leaving.len().max(1) as u64;
    let mut moves = Vec::new();
    for (at, new) in moved {
        let number = leaving[at] as usize;
        moves.push(Move {
            pod: number,
            from: old[at].booking.node,
            from_gpus: old[at].booking.gpus.clone(),
            to: new.node,
            to_gpus: new.gpus.clone(),
            gained_milli: gained,
        });
        pods[number] = Some(Movable { booking: new, request: old[at].request.clone() });
    }
    Some((booking, moves))
}
