//! An independent judge of a log. It shares no code of the account with the simulator, and adds up the rows itself.
//!
//! It proves that every row repeats its pod's request, that no node lends more than it has, that models match, that no
//! pod is placed twice, and that at each failure no node had room. It knows neither policies nor scores. If the seed
//! and the level are given, the order of arrivals must be that of the published experiment.

use crate::arrivals::Arrivals;
use crate::log::{LogRow, MoveRow};
use crate::words::{Node, Pod, Request};
use rustc_hash::FxHashMap;

/// An error at a line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub line: u64,
    pub what: String,
}

/// The figures of a log that passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub arrivals: u64,
    pub placed: u64,
    pub failed: u64,
    pub moved: u64,
    pub allocated_milli: u64,
    /// Failures of gangs, which a check of single pods cannot prove.
    pub unproven: u64,
}

/// Further inputs of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The order that arrivals must have.
    pub expected: Option<&'a Arrivals>,
    /// Pods leave when their time is over.
    pub departures: bool,
    pub moves: &'a [MoveRow],
}

struct Machine<'a> {
    node: &'a Node,
    cpu: u64,
    memory: u64,
    pods: u32,
    /// Units in use on each GPU.
    used: Vec<u64>,
}

impl Machine<'_> {
    fn has_room(&self, request: &Request) -> bool {
        if self.cpu + request.cpu_milli > self.node.cpu_milli
            || self.memory + request.memory > self.node.memory
            || self.pods >= self.node.max_pods
        {
            return false;
        }
        if request.gpus == 0 {
            return true;
        }
        let need = request.units_of(self.node.units());
        let with_room = self.used.iter().filter(|&&used| used + need <= self.node.units()).count();
        request.accepts(&self.node.model) && with_room >= request.gpus as usize
    }

    fn add(&mut self, request: &Request, gpus: &[u16]) -> Result<(), String> {
        let name = &self.node.name;
        if !request.accepts(&self.node.model) {
            return Err(format!(
                "{name} has GPUs of model {:?}, the pod accepts {:?}",
                self.node.model, request.models
            ));
        }
        if gpus.len() != request.gpus as usize {
            return Err(format!("{} GPUs, but the pod asks for {}", gpus.len(), request.gpus));
        }
        self.cpu += request.cpu_milli;
        self.memory += request.memory;
        self.pods += 1;
        if self.cpu > self.node.cpu_milli {
            return Err(format!("{name} lends {} of {} thousandths of CPUs", self.cpu, self.node.cpu_milli));
        }
        if self.memory > self.node.memory {
            return Err(format!("{name} lends {} of {} bytes of memory", self.memory, self.node.memory));
        }
        if self.pods > self.node.max_pods {
            return Err(format!("{name} has {} pods, the most is {}", self.pods, self.node.max_pods));
        }
        for (at, &gpu) in gpus.iter().enumerate() {
            if gpus[..at].contains(&gpu) {
                return Err(format!("GPU {gpu} is named twice"));
            }
            let Some(used) = self.used.get_mut(gpu as usize) else {
                return Err(format!("{name} has no GPU {gpu}"));
            };
            *used += request.units_of(self.node.units());
            if *used > self.node.units() {
                return Err(format!("GPU {gpu} of {name} lends {used} of {}", self.node.units()));
            }
        }
        Ok(())
    }

    fn remove(&mut self, request: &Request, gpus: &[u16]) {
        self.cpu -= request.cpu_milli;
        self.memory -= request.memory;
        self.pods -= 1;
        for &gpu in gpus {
            self.used[gpu as usize] -= request.units_of(self.node.units());
        }
    }
}

/// A pod that is placed.
struct Held<'a> {
    pod: &'a Pod,
    machine: usize,
    gpus: Vec<u16>,
}

/// Judges a log; the first error ends the check.
pub fn check(nodes: &[Node], pods: &[Pod], rows: &[LogRow], options: Options<'_>) -> Result<Checked, Wrong> {
    let by_name: FxHashMap<&str, &Pod> = pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
    let machine_of: FxHashMap<&str, usize> =
        nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
    let empty = |node| Machine { node, cpu: 0, memory: 0, pods: 0, used: vec![0; node.gpus as usize] };
    let mut machines: Vec<Machine<'_>> = nodes.iter().map(empty).collect();
    let mut seen = rustc_hash::FxHashSet::default();
    let mut held: FxHashMap<&str, Held<'_>> = FxHashMap::default();
    let mut checked = Checked::default();
    let mut moves = options.moves.iter().peekable();
    if let Some(expected) = options.expected
        && expected.order.len() != rows.len()
    {
        let what = format!("the log has {} arrivals, the seed gives {}", rows.len(), expected.order.len());
        return Err(Wrong { line: 1, what });
    }
    let first = rows.first().map_or(0, |row| row.order);
    for (index, row) in rows.iter().enumerate() {
        let wrong = |what: String| Wrong { line: row.line, what };
        if first > 1 || row.order != first + index as u64 {
            return Err(wrong(format!("order is {}, but rows must count up from 0 or 1", row.order)));
        }
        let base =
            row.pod.rsplit_once("-tuned-").filter(|(_, copy)| copy.bytes().all(|b| b.is_ascii_digit()));
        let known = by_name.get(row.pod.as_str()).or_else(|| by_name.get(base?.0));
        let pod = *known.ok_or_else(|| wrong(format!("pod {:?} is not in the list", row.pod)))?;
        if !seen.insert(row.pod.as_str()) {
            return Err(wrong(format!("pod {:?} arrives a second time", row.pod)));
        }
        if let Some(expected) = options.expected {
            let name = expected.order[index].name(pods);
            if name != row.pod {
                return Err(wrong(format!("{:?} arrives, but the seed gives {name:?}", row.pod)));
            }
        }
        let request = &pod.request;
        if (row.cpu_milli, row.memory_mib) != (request.cpu_milli, request.memory >> 20) {
            return Err(wrong(format!("CPUs or memory differ from what {:?} asks for", row.pod)));
        }
        if options.departures
            && let Some(now) = pod.created
        {
            let over: Vec<&str> = held
                .iter()
                .filter(|(_, held)| held.pod.deleted.is_some_and(|at| at <= now))
                .map(|(name, _)| *name)
                .collect();
            for name in over {
                if let Some(held) = held.remove(name) {
                    checked.allocated_milli -= allocated(&held.pod.request, machines[held.machine].node);
                    machines[held.machine].remove(&held.pod.request, &held.gpus);
                }
            }
        }
        // Moves of one arrival are made together, before it is placed.
        let mut arriving = Vec::new();
        while let Some(one) = moves.next_if(|one| one.order == row.order) {
            let of_move = |what: String| Wrong { line: one.line, what: format!("move: {what}") };
            let old = held
                .remove(one.pod.as_str())
                .ok_or_else(|| of_move(format!("{:?} is not placed", one.pod)))?;
            if machines[old.machine].node.name != one.from {
                return Err(of_move(format!("{:?} is not on {:?}", one.pod, one.from)));
            }
            machines[old.machine].remove(&old.pod.request, &old.gpus);
            checked.allocated_milli -= allocated(&old.pod.request, machines[old.machine].node);
            let to =
                *machine_of.get(one.to.as_str()).ok_or_else(|| of_move(format!("no node {:?}", one.to)))?;
            arriving.push((one, old.pod, to));
            checked.moved += 1;
        }
        for (one, pod, to) in arriving {
            let of_move = |what: String| Wrong { line: one.line, what: format!("move: {what}") };
            machines[to].add(&pod.request, &one.to_gpus).map_err(of_move)?;
            checked.allocated_milli += allocated(&pod.request, machines[to].node);
            held.insert(one.pod.as_str(), Held { pod, machine: to, gpus: one.to_gpus.clone() });
        }
        checked.arrivals += 1;
        if row.placed {
            let at =
                *machine_of.get(row.node.as_str()).ok_or_else(|| wrong(format!("no node {:?}", row.node)))?;
            let milli = if request.gpus == 0 { 0 } else { request.milli_of(machines[at].node.units()) };
            if row.milli != u64::from(milli) {
                return Err(wrong(format!(
                    "{} thousandths, but {:?} takes {milli} there",
                    row.milli, row.pod
                )));
            }
            machines[at].add(request, &row.gpus).map_err(wrong)?;
            checked.allocated_milli += allocated(request, machines[at].node);
            checked.placed += 1;
            held.insert(row.pod.as_str(), Held { pod, machine: at, gpus: row.gpus.clone() });
        } else {
            if !row.node.is_empty() || !row.gpus.is_empty() {
                return Err(wrong("a failed pod names a node or GPUs".to_owned()));
            }
            if pod.gang.is_empty() {
                if let Some(machine) = machines.iter().find(|machine| machine.has_room(request)) {
                    let what = format!("{:?} failed, but {} has room for it", row.pod, machine.node.name);
                    return Err(wrong(what));
                }
            } else {
                checked.unproven += 1;
            }
            checked.failed += 1;
        }
    }
    if let Some(left) = moves.next() {
        return Err(Wrong { line: left.line, what: format!("move: no arrival has order {}", left.order) });
    }
    Ok(checked)
}

fn allocated(request: &Request, node: &Node) -> u64 {
    if request.gpus == 0 { 0 } else { u64::from(request.gpus) * u64::from(request.milli_of(node.units())) }
}
