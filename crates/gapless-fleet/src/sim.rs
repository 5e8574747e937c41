//! Runs arrivals through a policy, one at a time: each is placed at once or fails finally.

use crate::arrivals::Arrivals;
use crate::go_random::GoRandom;
use crate::learn::Learner;
use crate::ledger::{Booking, Ledger};
use crate::mix::{Mix, common_units, demand};
use crate::place::Placer;
use crate::policy::Policy;
use crate::policy::fragment::Fragments;
use crate::policy::value::Value;
use crate::repack::{Movable, Move};
use crate::words::{Node, Pod, Request};
use crate::{exchange, repack};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// The cause of a refusal, by the resource that the closest nodes lacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No node has GPUs of a model that it accepts.
    Model,
    /// No node is large enough, even if it is empty.
    TooLarge,
    /// All GPUs that it accepts together have less free than it asks for.
    GpusFull,
    /// Enough is free, but not on one node or one GPU.
    GpusFragmented,
    /// Every node with room on its GPUs has too few CPUs.
    Cpu,
    /// Every node with room on its GPUs and enough CPUs has too little host memory.
    Memory,
    /// Nodes with room take no more pods.
    Pods,
    /// Another pod of its gang was refused.
    Gang,
    /// It fits, but only on nodes that it may not use.
    Elsewhere,
}

impl Cause {
    pub const ALL: [Cause; 9] = [
        Cause::Model,
        Cause::TooLarge,
        Cause::GpusFull,
        Cause::GpusFragmented,
        Cause::Cpu,
        Cause::Memory,
        Cause::Pods,
        Cause::Gang,
        Cause::Elsewhere,
    ];

    pub fn words(self) -> &'static str {
        match self {
            Cause::Model => "no node has a GPU model that it accepts",
            Cause::TooLarge => "larger than any node",
            Cause::GpusFull => "too little free on all GPUs together",
            Cause::GpusFragmented => "enough free, but not on one node or GPU",
            Cause::Cpu => "nodes with room on their GPUs have too few CPUs",
            Cause::Memory => "nodes with room have too little host memory",
            Cause::Pods => "nodes with room take no more pods",
            Cause::Elsewhere => "it fits only on nodes that it may not use",
            Cause::Gang => "another pod of its gang was refused",
        }
    }
}

/// The outcome of one arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Index into the list of nodes, and the GPUs there.
    Placed {
        node: u32,
        gpus: Vec<u16>,
        milli: u32,
    },
    Failed(Cause),
}

/// A point of the curves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Demand that has arrived, in per cent of all GPUs.
    pub arrived: f64,
    /// GPUs that are allocated, in per cent.
    pub allocated: f64,
    /// Free GPUs that a typical request could not use, in per cent of all GPUs.
    pub fragmented: f64,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    pub outcomes: Vec<Outcome>,
    pub arrived_milli: u64,
    pub allocated_milli: u64,
    pub total_milli: u64,
    /// Mean share allocated while the arrived demand rounds to n per cent: entry n, `None` if no arrival did.
    pub columns: Vec<Option<f64>>,
    pub curve: Vec<Point>,
    pub deciding: Duration,
    pub preparing: Duration,
    /// Thousandths free on each GPU of each node at the end, in the order of the list of nodes.
    pub free: Vec<Vec<u16>>,
    pub free_cpu: Vec<u64>,
    /// Pods that left during the run.
    pub departed: u64,
    /// Moves, each with the number of the arrival that it made room for. Nodes are indices into the list of nodes.
    pub moves: Vec<(usize, Move)>,
}

impl Run {
    pub fn share(&self) -> f64 {
        percent(self.allocated_milli, self.total_milli)
    }

    pub fn arrived_share(&self) -> f64 {
        percent(self.arrived_milli, self.total_milli)
    }

    pub fn placed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Placed { .. })).count()
    }

    pub fn decisions_per_second(&self) -> f64 {
        self.outcomes.len() as f64 / self.deciding.as_secs_f64().max(1e-9)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// Optional parts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Compute the fragments for the curve.
    pub fragments: bool,
    /// Pods leave when their time is over.
    pub departures: bool,
    /// Moves that the whole run may make for pods that fit nowhere.
    pub moves: usize,
    /// Moves for one such pod.
    pub moves_for_one: usize,
    /// The default policy does not know the mix: it learns from the arrivals, as [`crate::desk::Desk`] does.
    pub learn: bool,
}

/// Runs `arrivals` of `pods` over `nodes`. `policy` makes the policy from the ranked ledger.
pub fn run(
    nodes: &[Node],
    pods: &[Pod],
    arrivals: &Arrivals,
    options: Options,
    policy: impl FnOnce(&Ledger, &Mix, &GoRandom) -> Policy,
) -> Run {
    let began = Instant::now();
    // Nodes in the order of their ranks, and the way back.
    let mut by_rank: Vec<u32> = vec![0; nodes.len()];
    for (node, &rank) in arrivals.ranks.iter().enumerate() {
        by_rank[rank as usize] = node as u32;
    }
    let ledger = Ledger::new(by_rank.iter().map(|&node| nodes[node as usize].clone()).collect());
    let units = common_units(&ledger);
    let mix = Mix::of_pods(pods);
    let fragments = options.fragments.then(|| Fragments::new(&ledger, &mix));
    let cost = fragments.as_ref().map_or(0, Fragments::requests) * nodes.len();
    let distance = if cost > 2_000_000 { 10.0 } else { 1.0 };
    let known = if options.learn { &Mix::default() } else { &mix };
    let policy = policy(&ledger, known, &arrivals.random);
    let mut simulation = Simulation {
        placer: Placer::new(ledger, policy),
        learner: Learner::default(),
        by_rank,
        units,
        fragments,
        departures: BinaryHeap::new(),
        held: Vec::new(),
        on_node: vec![Vec::new(); nodes.len()],
        hopeless: FxHashMap::default(),
        options,
        run: Run {
            outcomes: Vec::with_capacity(arrivals.order.len()),
            arrived_milli: 0,
            allocated_milli: 0,
            total_milli: nodes.iter().map(|node| u64::from(node.gpus) * 1000).sum(),
            columns: Vec::new(),
            curve: Vec::new(),
            deciding: Duration::ZERO,
            preparing: began.elapsed(),
            free: Vec::new(),
            free_cpu: Vec::new(),
            departed: 0,
            moves: Vec::new(),
        },
        sums: Vec::new(),
        next_point: 0.0,
        distance,
    };
    simulation.all(pods, arrivals);
    simulation.finish(nodes.len())
}

struct Simulation {
    placer: Placer,
    learner: Learner,
    by_rank: Vec<u32>,
    units: u64,
    fragments: Option<Fragments>,
    /// Times at which pods leave, with their numbers.
    departures: BinaryHeap<Reverse<(u64, usize)>>,
    /// The booking of every arrival, if pods may leave or move.
    held: Vec<Option<Movable>>,
    on_node: Vec<Vec<u32>>,
    /// Requests for which no moves were found, with the version of the cluster at that time.
    hopeless: FxHashMap<Request, u64>,
    options: Options,
    run: Run,
    /// Sum and number of shares, by rounded arrived per cent.
    sums: Vec<(f64, u64)>,
    next_point: f64,
    /// Per cent of arrivals between two points of the curve.
    distance: f64,
}

impl Simulation {
    fn all(&mut self, pods: &[Pod], arrivals: &Arrivals) {
        let mut next = 0;
        while next < arrivals.order.len() {
            let first = &pods[arrivals.order[next].pod as usize];
            let is_member = |at: usize| {
                let (one, other) = (arrivals.order[next], arrivals.order[at]);
                one.copy.is_none() && other.copy.is_none() && pods[other.pod as usize].gang == first.gang
            };
            // Pods of a gang arrive together if they follow each other in the order.
            let mut end = next + 1;
            while !first.gang.is_empty() && end < arrivals.order.len() && is_member(end) {
                end += 1;
            }
            if self.options.departures
                && let Some(now) = first.created
            {
                self.leave(now);
            }
            let members: Vec<&Pod> =
                arrivals.order[next..end].iter().map(|arrival| &pods[arrival.pod as usize]).collect();
            self.arrive(&members);
            next = end;
        }
    }

    fn leave(&mut self, now: u64) {
        while self.departures.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, number))) = self.departures.pop() else { break };
            let Some(pod) = self.held[number].take() else { continue };
            self.on_node[pod.booking.node as usize].retain(|&other| other as usize != number);
            if self.placer.release(&pod.booking).is_ok() {
                self.run.allocated_milli -= self.taken(&pod.booking, &pod.request);
                self.run.departed += 1;
            }
        }
    }

    /// Places one pod, or a gang.
    fn arrive(&mut self, members: &[&Pod]) {
        let began = Instant::now();
        if self.options.learn {
            members.iter().for_each(|pod| self.learn(&pod.request));
        }
        let mut bookings: Option<Vec<Booking>> = match members {
            [pod] => self.placer.place(&pod.request).map(|booking| vec![booking]),
            _ => {
                let requests: Vec<Request> = members.iter().map(|pod| pod.request.clone()).collect();
                self.placer.place_gang(&requests)
            }
        };
        if bookings.is_none()
            && let [pod] = members
        {
            bookings = self.repack(&pod.request).map(|booking| vec![booking]);
        }
        self.run.deciding += began.elapsed();
        match bookings {
            Some(bookings) => {
                for (pod, booking) in members.iter().zip(bookings) {
                    self.placed(pod, booking);
                }
            }
            None => {
                let causes: Vec<Option<Cause>> =
                    members.iter().map(|pod| cause(&self.placer, &pod.request)).collect();
                for (pod, cause) in members.iter().zip(causes) {
                    self.run.arrived_milli += demand(&pod.request, self.units);
                    self.run.outcomes.push(Outcome::Failed(cause.unwrap_or(Cause::Gang)));
                    self.held.push(None);
                    self.sample();
                }
            }
        }
    }

    fn learn(&mut self, request: &Request) {
        if let Some(mix) = self.learner.see(request) {
            let value = Value::new(self.placer.ledger(), &mix);
            self.placer.set_policy(Policy::Value(Box::new(value)));
        }
    }

    /// Moves pods so that `request` fits, as far as moves are left.
    fn repack(&mut self, request: &Request) -> Option<Booking> {
        let left = self.options.moves - self.run.moves.len().min(self.options.moves);
        let most = left.min(self.options.moves_for_one);
        let before = self.placer.free();
        // If nothing has changed since the same request was tried, the search would fail again.
        let version = self.placer.version();
        if most == 0 || self.hopeless.get(request) == Some(&version) {
            return None;
        }
        let (placer, held, on_node) = (&mut self.placer, &mut self.held, &mut self.on_node);
        // A single move is cheapest, so it is tried first. Exchanges find the most on a full cluster.
        let found = repack::make_room(placer, held, on_node, request, 1)
            .or_else(|| exchange::make_room(placer, held, on_node, request, most))
            .or_else(|| repack::make_room(placer, held, on_node, request, most));
        let Some((booking, moves)) = found else {
            self.hopeless.insert(request.clone(), self.placer.version());
            return None;
        };
        let number = self.run.outcomes.len();
        for mut one in moves {
            one.from = self.by_rank[one.from as usize];
            one.to = self.by_rank[one.to as usize];
            self.run.moves.push((number, one));
        }
        // Pods in bytes may take other thousandths on other models, so the change is read from the ledger.
        let grown = before - self.placer.free().min(before);
        self.run.allocated_milli = self.run.allocated_milli + grown - self.taken(&booking, request);
        Some(booking)
    }

    /// Thousandths that a pod takes on its node.
    fn taken(&self, booking: &Booking, request: &Request) -> u64 {
        let units = self.placer.ledger().slot(booking.node).units;
        if request.gpus == 0 { 0 } else { u64::from(request.gpus) * u64::from(request.milli_of(units)) }
    }

    fn placed(&mut self, pod: &Pod, booking: Booking) {
        let slot = self.placer.ledger().slot(booking.node);
        let milli = if pod.request.gpus == 0 { 0 } else { pod.request.milli_of(slot.units) };
        let node = self.by_rank[booking.node as usize];
        let number = self.run.outcomes.len();
        self.run.arrived_milli += demand(&pod.request, self.units);
        self.run.allocated_milli += u64::from(milli) * u64::from(pod.request.gpus);
        self.run.outcomes.push(Outcome::Placed { node, gpus: booking.gpus.clone(), milli });
        if self.options.departures || self.options.moves > 0 {
            if self.options.departures
                && let Some(at) = pod.deleted
            {
                self.departures.push(Reverse((at, number)));
            }
            self.on_node[booking.node as usize].push(number as u32);
            self.held.push(Some(Movable { booking, request: pod.request.clone() }));
        } else {
            self.held.push(None);
        }
        self.sample();
    }

    /// Notes the shares after an arrival.
    fn sample(&mut self) {
        let (arrived, allocated) = (self.run.arrived_share(), self.run.share());
        let column = arrived.round_ties_even().clamp(0.0, 100_000.0) as usize;
        if self.sums.len() <= column {
            self.sums.resize(column + 1, (0.0, 0));
        }
        self.sums[column].0 += (allocated * 100.0).round_ties_even() / 100.0;
        self.sums[column].1 += 1;
        if arrived >= self.next_point {
            let fragmented = self.fragmented();
            self.run.curve.push(Point { arrived, allocated, fragmented });
            self.next_point = arrived.floor() + self.distance;
        }
    }

    fn fragmented(&self) -> f64 {
        let Some(fragments) = &self.fragments else { return 0.0 };
        let ledger = self.placer.ledger();
        let sum: f64 = (0..ledger.len() as u32).map(|node| fragments.of(ledger.view(node))).sum();
        if self.run.total_milli == 0 { 0.0 } else { 100.0 * sum / self.run.total_milli as f64 }
    }

    fn finish(mut self, nodes: usize) -> Run {
        if !self.run.outcomes.is_empty() {
            let last = Point {
                arrived: self.run.arrived_share(),
                allocated: self.run.share(),
                fragmented: self.fragmented(),
            };
            self.run.curve.push(last);
        }
        let mean = |&(sum, count): &(f64, u64)| (count > 0).then(|| sum / count as f64);
        self.run.columns = self.sums.iter().map(mean).collect();
        self.run.free = vec![Vec::new(); nodes];
        self.run.free_cpu = vec![0; nodes];
        for (rank, &node) in self.by_rank.iter().enumerate() {
            let view = self.placer.ledger().view(rank as u32);
            self.run.free[node as usize] = view.milli.to_vec();
            self.run.free_cpu[node as usize] = view.slot.cpu;
        }
        self.run
    }
}

/// The cause for which `request` fits nowhere; `None` if it fits.
pub fn cause(placer: &Placer, request: &Request) -> Option<Cause> {
    let ledger = placer.ledger();
    let (mut accepts, mut large, mut room, mut cpu, mut memory) = (false, false, false, false, false);
    let mut free = 0;
    for node in 0..ledger.len() as u32 {
        let slot = ledger.slot(node);
        if !request.accepts(&ledger.models()[slot.model as usize].name)
            || (request.gpus > 0 && slot.units == 0)
            || !slot.open
        {
            continue;
        }
        let whole = ledger.node(node);
        let need = if request.gpus == 0 { 0 } else { request.units_of(slot.units) };
        accepts |= request.gpus == 0 || whole.gpus > 0;
        large |= whole.gpus >= request.gpus
            && need <= slot.units
            && whole.cpu_milli >= request.cpu_milli
            && whole.memory >= request.memory;
        free += u64::from(slot.free);
        let gpus_fit = match request.gpus {
            0 => true,
            n => ledger.left(node).iter().filter(|&&left| left >= need).count() >= n as usize,
        };
        if gpus_fit {
            room = true;
            if slot.cpu >= request.cpu_milli {
                cpu = true;
                if slot.memory >= request.memory {
                    memory = true;
                    if slot.pods > 0 {
                        return None;
                    }
                }
            }
        }
    }
    let units = common_units(ledger);
    Some(match (accepts, large, room, cpu, memory) {
        (false, ..) => Cause::Model,
        (_, false, ..) => Cause::TooLarge,
        (_, _, false, ..) if free < demand(request, units) => Cause::GpusFull,
        (_, _, false, ..) => Cause::GpusFragmented,
        (_, _, _, false, _) => Cause::Cpu,
        (.., false) => Cause::Memory,
        _ => Cause::Pods,
    })
}
