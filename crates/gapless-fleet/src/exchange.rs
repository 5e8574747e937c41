//! Repacking by exchange: a node that has the GPUs for a request but too few CPUs, or too little host memory, swaps
//! pods with pods of the same GPU shape on other nodes that need less of the scarce resource.
//!
//! On a full cluster hardly any pod has another place to go to, so moves in one direction find nothing. Free
//! resources are spread: GPUs without CPUs on some nodes, a few CPUs on each of many others. An exchange needs room
//! only for the difference of two pods, and moves the spread CPUs to the GPUs.

use crate::ledger::Booking;
use crate::place::Placer;
use crate::repack::{Movable, Move};
use crate::words::Request;
use rustc_hash::{FxHashMap, FxHashSet};

/// Nodes that are tried for one request, those that lack the least first.
const MOST_TRIES: usize = 48;

/// Pods are exchanged only if these are equal: their number, the units taken of each, and the units of such a GPU.
type Shape = (usize, u64, u64);

/// Resources that a node lacks for the request.
#[derive(Clone, Copy, Debug)]
struct Lack {
    cpu: u64,
    memory: u64,
}

impl Lack {
    fn of(placer: &Placer, node: u32, request: &Request) -> Lack {
        let slot = placer.ledger().slot(node);
        Lack {
            cpu: request.cpu_milli.saturating_sub(slot.cpu),
            memory: request.memory.saturating_sub(slot.memory),
        }
    }

    fn is_none(self) -> bool {
        self.cpu == 0 && self.memory == 0
    }
}

/// Two pods that change places.
#[derive(Clone, Copy, Debug)]
struct Swap {
    leaves: u32,
    comes: u32,
}

/// Makes room for `request` by exchanging pods, with at most `most` moves; an exchange has two. Returns its booking
/// and the moves; or changes nothing and returns `None`.
pub fn make_room(
    placer: &mut Placer,
    pods: &mut [Option<Movable>],
    on_node: &mut [Vec<u32>],
    request: &Request,
    most: usize,
) -> Option<(Booking, Vec<Move>)> {
    if most < 2 || request.gpus == 0 {
        return None;
    }
    let mut tries: Vec<(u64, u32)> = Vec::new();
    for (node, numbers) in on_node.iter().enumerate() {
        let node = node as u32;
        if !numbers.is_empty() && has_gpus(placer, node, request) {
            let lack = Lack::of(placer, node, request);
            if !lack.is_none() {
                tries.push((weight(lack.cpu, lack.memory), node));
            }
        }
    }
    tries.sort_unstable();
    tries.truncate(MOST_TRIES);
    if tries.is_empty() {
        return None;
    }
    let partners = partners(placer, pods);
    for (_, node) in tries {
        let mut done: Vec<Swap> = Vec::new();
        let mut moved: FxHashSet<u32> = FxHashSet::default();
        loop {
            let lack = Lack::of(placer, node, request);
            if lack.is_none() || 2 * done.len() + 2 > most {
                break;
            }
            let Some(swap) = best(placer, pods, &on_node[node as usize], &partners, node, lack, &moved)
            else {
                break;
            };
            if !carry_out(placer, pods, swap) {
                break;
            }
            moved.extend([swap.leaves, swap.comes]);
            done.push(swap);
        }
        let need = request.units_of(placer.ledger().slot(node).units);
        let gpus = crate::policy::fullest(placer.ledger().left(node), need, request.gpus as usize);
        match placer.book(node, request, &gpus) {
            Ok(booking) if !done.is_empty() => {
                return Some((booking, moves(placer, pods, on_node, node, &done, request)));
            }
            Ok(booking) => placer.release(&booking).expect("it was booked above"),
            Err(_) => {}
        }
        // Repeating an exchange undoes it.
        for swap in done.into_iter().rev() {
            let back = carry_out(placer, pods, swap);
            assert!(back, "both pods were there before");
        }
    }
    None
}

/// True if the node has the GPUs for the request, even if it lacks other resources.
fn has_gpus(placer: &Placer, node: u32, request: &Request) -> bool {
    let ledger = placer.ledger();
    let slot = ledger.slot(node);
    let need = request.units_of(slot.units);
    slot.open
        && slot.pods > 0
        && slot.best >= need
        && request.accepts(&ledger.models()[slot.model as usize].name)
        && ledger.left(node).iter().filter(|&&left| left >= need).count() >= request.gpus as usize
        && ledger.node(node).cpu_milli >= request.cpu_milli
        && ledger.node(node).memory >= request.memory
}

/// CPUs and memory in one number: a CPU weighs as much as 4 GiB.
fn weight(cpu: u64, memory: u64) -> u64 {
    cpu + (memory >> 22)
}

fn shape(placer: &Placer, pod: &Movable) -> Shape {
    (pod.booking.gpus.len(), pod.booking.units, placer.ledger().slot(pod.booking.node).units)
}

/// All pods by their shape.
fn partners(placer: &Placer, pods: &[Option<Movable>]) -> FxHashMap<Shape, Vec<u32>> {
    let mut all: FxHashMap<Shape, Vec<u32>> = FxHashMap::default();
    for (number, pod) in pods.iter().enumerate() {
        if let Some(pod) = pod
            && placer.ledger().slot(pod.booking.node).open
        {
            all.entry(shape(placer, pod)).or_default().push(number as u32);
        }
    }
    all
}

/// The exchange that ends the lack with the least surplus; if none does, the one that reduces it most.
fn best(
    placer: &Placer,
    pods: &[Option<Movable>],
    here: &[u32],
    partners: &FxHashMap<Shape, Vec<u32>>,
    node: u32,
    lack: Lack,
    moved: &FxHashSet<u32>,
) -> Option<Swap> {
    let ledger = placer.ledger();
    let name = |node: u32| ledger.models()[ledger.slot(node).model as usize].name.as_str();
    let mut found: Option<((bool, u64), Swap)> = None;
    // Pods of one kind are interchangeable, so one of them is tried.
    let mut kinds: FxHashSet<(Shape, u64, u64, &str)> = FxHashSet::default();
    for &leaves in here {
        let Some(out) = pods[leaves as usize].as_ref() else { continue };
        let shape = shape(placer, out);
        let kind = (shape, out.booking.cpu, out.booking.memory, out.request.models.as_str());
        if moved.contains(&leaves) || out.booking.node != node || !kinds.insert(kind) {
            continue;
        }
        for &comes in partners.get(&shape).map(Vec::as_slice).unwrap_or_default() {
            let Some(into) = pods[comes as usize].as_ref() else { continue };
            let other = into.booking.node;
            // The exchange must reduce one lack and must not increase another.
            let (cpu, memory) = (gain(&out.booking, &into.booking), gain_memory(&out.booking, &into.booking));
            let lessens = (lack.cpu > 0 && cpu > 0) || (lack.memory > 0 && memory > 0);
            let harms = (lack.cpu > 0 && cpu < 0) || (lack.memory > 0 && memory < 0);
            if !lessens || harms || other == node || moved.contains(&comes) {
                continue;
            }
            let (there, ours) = (ledger.slot(other), ledger.slot(node));
            let room = |free: u64, change: i64| i128::from(free) + i128::from(change) >= 0;
            if !room(there.cpu, -cpu)
                || !room(there.memory, -memory)
                || !room(ours.cpu, cpu)
                || !room(ours.memory, memory)
                || !out.request.accepts(name(other))
                || !into.request.accepts(name(node))
            {
                continue;
            }
            let (cpu, memory) = (cpu.max(0) as u64, memory.max(0) as u64);
            let ends = cpu >= lack.cpu && memory >= lack.memory;
            let key = if ends {
                (false, weight(cpu - lack.cpu, memory - lack.memory))
            } else {
                (true, u64::MAX - weight(cpu.min(lack.cpu), memory.min(lack.memory)))
            };
            if found.is_none_or(|(known, _)| key < known) {
                found = Some((key, Swap { leaves, comes }));
            }
        }
    }
    found.map(|(_, swap)| swap)
}

fn gain(out: &Booking, into: &Booking) -> i64 {
    out.cpu as i64 - into.cpu as i64
}

fn gain_memory(out: &Booking, into: &Booking) -> i64 {
    out.memory as i64 - into.memory as i64
}

/// Exchanges two pods; false and no change if one does not fit.
fn carry_out(placer: &mut Placer, pods: &mut [Option<Movable>], swap: Swap) -> bool {
    let (Some(one), Some(two)) = (pods[swap.leaves as usize].clone(), pods[swap.comes as usize].clone())
    else {
        return false;
    };
    placer.release(&one.booking).expect("it is booked");
    placer.release(&two.booking).expect("it is booked");
    let first = placer.book(two.booking.node, &one.request, &two.booking.gpus);
    let second = placer.book(one.booking.node, &two.request, &one.booking.gpus);
    match (first, second) {
        (Ok(first), Ok(second)) => {
            pods[swap.leaves as usize] = Some(Movable { booking: first, request: one.request });
            pods[swap.comes as usize] = Some(Movable { booking: second, request: two.request });
            true
        }
        (first, second) => {
            for booking in [first, second].into_iter().flatten() {
                placer.release(&booking).expect("it was booked above");
            }
            for pod in [&one, &two] {
                let booking = &pod.booking;
                placer.book(booking.node, &pod.request, &booking.gpus).expect("it was booked there before");
            }
            false
        }
    }
}

/// The list of moves, with the pods' nodes brought up to date.
fn moves(
    placer: &Placer,
    pods: &[Option<Movable>],
    on_node: &mut [Vec<u32>],
    node: u32,
    done: &[Swap],
    request: &Request,
) -> Vec<Move> {
    let units = placer.ledger().slot(node).units;
    let gained = u64::from(request.gpus) * u64::from(request.milli_of(units)) / (2 * done.len() as u64);
    let mut all = Vec::new();
    for swap in done {
        let at = |number: u32| pods[number as usize].as_ref().map(|pod| pod.booking.clone());
        let (Some(left), Some(came)) = (at(swap.leaves), at(swap.comes)) else { continue };
        // Each pod is now on the other's old node.
        for (number, new, old) in [(swap.leaves, &left, &came), (swap.comes, &came, &left)] {
            on_node[old.node as usize].retain(|&other| other != number);
            on_node[new.node as usize].push(number);
            all.push(Move {
                pod: number as usize,
                from: old.node,
                from_gpus: old.gpus.clone(),
                to: new.node,
                to_gpus: new.gpus.clone(),
                gained_milli: gained,
            });
        }
    }
    all
}
