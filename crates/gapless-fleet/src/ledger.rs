//! Free resources of every node, in bytes and thousandths. The ledger refuses a booking that does not fit, and a
//! release without a booking. So no policy can book a GPU twice.
//!
//! Invariants, which [`Ledger::check`] proves from the bookings that are out:
//! * CPUs, host memory and pods free on a node = what it has - what its bookings take;
//! * units left on a GPU = its units - what its bookings take;
//! * `best`, `whole`, `free` and `state` of a node follow from its GPUs.

use crate::error::{Error, Result};
use crate::words::{Node, Request, WHOLE};
use std::sync::LazyLock;

/// Free resources of one node.
#[derive(Clone, Debug)]
pub struct Slot {
    pub cpu: u64,
    pub memory: u64,
    pub pods: u32,
    /// True if the node takes pods.
    pub open: bool,
    /// Index into [`Ledger::models`].
    pub model: u16,
    /// Units of each of its GPUs.
    pub units: u64,
    /// Units left on the emptiest GPU; 0 without GPUs.
    pub best: u64,
    /// GPUs that nothing uses.
    pub whole: u16,
    /// Thousandths left on all GPUs together.
    pub free: u32,
    /// A number that depends only on the model, the free CPUs and the thousandths left on each GPU, in any order.
    pub state: u64,
    first: u32,
    gpus: u16,
    /// The number of pods of each class on it: see [`class`].
    classes: Vec<(u32, u32)>,
}

/// The class of a request: 0 without GPUs, 1 for a share of one GPU, 1 + n for n whole GPUs.
pub fn class(request: &Request, units: u64) -> u32 {
    match request.gpus {
        0 => 0,
        1 if request.units_of(units) < units => 1,
        n => n + 1,
    }
}

/// Resources that one pod holds on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    pub node: u32,
    /// Indices of GPUs on the node, ascending.
    pub gpus: Vec<u16>,
    /// Units of each of these GPUs.
    pub units: u64,
    pub cpu: u64,
    pub memory: u64,
    class: u32,
}

/// The account of a cluster. Nodes are known by their index.
#[derive(Clone, Debug)]
pub struct Ledger {
    nodes: Vec<Node>,
    slots: Vec<Slot>,
    left: Vec<u64>,
    milli: Vec<u16>,
    models: Vec<Model>,
    /// Thousandths of all GPUs.
    total: u64,
}

/// GPUs that are alike: a name, and the units of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub name: String,
    pub units: u64,
}

/// The view of a node for policies.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub slot: &'a Slot,
    /// Thousandths left on each GPU.
    pub milli: &'a [u16],
}

impl View<'_> {
    pub fn gpus(&self) -> usize {
        self.milli.len()
    }

    pub fn classes(&self) -> &[(u32, u32)] {
        &self.slot.classes
    }
}

impl Ledger {
    pub fn new(nodes: Vec<Node>) -> Ledger {
        let mut ledger = Ledger {
            nodes: Vec::new(),
            slots: Vec::new(),
            left: Vec::new(),
            milli: Vec::new(),
            models: Vec::new(),
            total: 0,
        };
        for node in nodes {
            ledger.add(node);
        }
        ledger
    }

    /// Adds an empty node; its index is the number of nodes before.
    pub fn add(&mut self, node: Node) -> u32 {
        let slot = self.empty(&node);
        self.slots.push(slot);
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Replaces a node without bookings by another one.
    pub fn replace(&mut self, index: u32, node: Node) {
        let at = index as usize;
        self.total -= u64::from(self.slots[at].gpus) * u64::from(WHOLE);
        // The old node's places for GPUs stay unused. A caller that replaces many nodes should rebuild the ledger.
        self.slots[at] = self.empty(&node);
        self.nodes[at] = node;
    }

    fn empty(&mut self, node: &Node) -> Slot {
        let units = node.units();
        let model = Model { name: node.model.clone(), units };
        let model = self.models.iter().position(|known| *known == model).unwrap_or_else(|| {
            self.models.push(model);
            self.models.len() - 1
        });
        let mut slot = Slot {
            cpu: node.cpu_milli,
            memory: node.memory,
            pods: node.max_pods,
            open: true,
            model: model as u16,
            units,
            best: 0,
            whole: 0,
            free: 0,
            state: 0,
            first: self.left.len() as u32,
            gpus: node.gpus as u16,
            classes: Vec::new(),
        };
        self.left.extend((0..node.gpus).map(|_| units));
        self.milli.extend((0..node.gpus).map(|_| WHOLE as u16));
        self.total += u64::from(node.gpus) * u64::from(WHOLE);
        summarise(&mut slot, &self.left, &self.milli);
        slot
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    pub fn models(&self) -> &[Model] {
        &self.models
    }

    pub fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// Thousandths free on a node; 0 if there is no such node.
    pub fn slots_free(&self, index: u32) -> u32 {
        self.slots.get(index as usize).map_or(0, |slot| slot.free)
    }

    pub fn view(&self, index: u32) -> View<'_> {
        let slot = &self.slots[index as usize];
        View { slot, milli: &self.milli[slot.range()] }
    }

    /// Units left on each GPU of a node.
    pub fn left(&self, index: u32) -> &[u64] {
        &self.left[self.slots[index as usize].range()]
    }

    /// Thousandths of all GPUs.
    pub fn total_milli(&self) -> u64 {
        self.total
    }

    /// True if `request` fits on the node. The caller checks the model.
    pub fn fits(&self, index: u32, request: &Request) -> bool {
        let slot = &self.slots[index as usize];
        if slot.cpu < request.cpu_milli || slot.memory < request.memory || slot.pods == 0 || !slot.open {
            return false;
        }
        let need = if slot.units == u64::from(WHOLE) {
            u64::from(request.milli_of(slot.units))
        } else {
            request.units_of(slot.units)
        };
        match request.gpus {
            0 => true,
            1 => slot.best >= need,
            n if need == slot.units => u32::from(slot.whole) >= n,
            n => {
                slot.best >= need
                    && self.left(index).iter().filter(|&&left| left >= need).count() >= n as usize
            }
        }
    }

    /// A closed node takes no more bookings. Those on it stay.
    pub fn set_open(&mut self, index: u32, open: bool) {
        self.slots[index as usize].open = open;
    }

    /// Books `request` on these GPUs of a node.
    pub fn book(&mut self, index: u32, request: &Request, gpus: &[u16]) -> Result<Booking> {
        let slot = &self.slots[index as usize];
        let refuse = |what| Err(Error::NoRoom { node: self.nodes[index as usize].name.clone(), what });
        if !request.accepts(&self.models[slot.model as usize].name) {
            return refuse("its GPUs are of another model");
        }
        if slot.cpu < request.cpu_milli {
            return refuse("it has too few CPUs");
        }
        if slot.memory < request.memory {
            return refuse("it has too little memory");
        }
        if slot.pods == 0 {
            return refuse("it takes no more pods");
        }
        let mut sorted = gpus.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != request.gpus as usize || sorted.len() != gpus.len() {
            return refuse("the number of GPUs is another one");
        }
        let units = if request.gpus == 0 { 0 } else { request.units_of(slot.units) };
        let range = slot.range();
        for &gpu in &sorted {
            if gpu >= slot.gpus {
                return refuse("it has no such GPU");
            }
            if self.left[range.start + gpu as usize] < units {
                return refuse("the GPU has too little left");
            }
        }
        let booking = Booking {
            node: index,
            gpus: sorted,
            units,
            cpu: request.cpu_milli,
            memory: request.memory,
            class: class(request, slot.units),
        };
        let slot = &mut self.slots[index as usize];
        slot.cpu -= booking.cpu;
        slot.memory -= booking.memory;
        slot.pods -= 1;
        slot.count(booking.class, true);
        for &gpu in &booking.gpus {
            let at = range.start + gpu as usize;
            self.left[at] -= units;
            self.milli[at] = thousandths(self.left[at], slot.units);
        }
        summarise(slot, &self.left, &self.milli);
        Ok(booking)
    }

    /// Takes a booking back.
    pub fn release(&mut self, booking: &Booking) -> Result<()> {
        let Some(slot) = self.slots.get_mut(booking.node as usize) else {
            return Err(Error::NotHeld { node: format!("#{}", booking.node), what: "there is no such node" });
        };
        let node = &self.nodes[booking.node as usize];
        let refuse = |what| Err(Error::NotHeld { node: node.name.clone(), what });
        let range = slot.range();
        if slot.cpu + booking.cpu > node.cpu_milli
            || slot.memory + booking.memory > node.memory
            || slot.pods >= node.max_pods
        {
            return refuse("less than that is booked");
        }
        if booking.gpus.iter().any(|&gpu| gpu >= slot.gpus) {
            return refuse("it has no such GPU");
        }
        let is_more = |&gpu: &u16| self.left[range.start + gpu as usize] + booking.units > slot.units;
        if booking.gpus.iter().any(is_more) {
            return refuse("less than that is booked on the GPU");
        }
        if !slot.count(booking.class, false) {
            return refuse("no pod of this kind is on it");
        }
        slot.cpu += booking.cpu;
        slot.memory += booking.memory;
        slot.pods += 1;
        for &gpu in &booking.gpus {
            let at = range.start + gpu as usize;
            self.left[at] += booking.units;
            self.milli[at] = thousandths(self.left[at], slot.units);
        }
        summarise(slot, &self.left, &self.milli);
        Ok(())
    }

    /// Proves the account from the bookings that are out: an error names the first inconsistent node.
    pub fn check<'a>(&self, out: impl Iterator<Item = &'a Booking>) -> std::result::Result<(), String> {
        let mut fresh = Ledger::new(self.nodes.clone());
        for booking in out {
            let slot = &mut fresh.slots[booking.node as usize];
            let name = &self.nodes[booking.node as usize].name;
            let over = || format!("node {name:?} is over-booked");
            slot.cpu = slot.cpu.checked_sub(booking.cpu).ok_or_else(over)?;
            slot.memory = slot.memory.checked_sub(booking.memory).ok_or_else(over)?;
            slot.pods = slot.pods.checked_sub(1).ok_or_else(over)?;
            let first = slot.range().start;
            for &gpu in &booking.gpus {
                let left = &mut fresh.left[first + gpu as usize];
                *left = left.checked_sub(booking.units).ok_or_else(over)?;
            }
        }
        for (index, (slot, right)) in self.slots.iter().zip(&fresh.slots).enumerate() {
            let same = (slot.cpu, slot.memory, slot.pods) == (right.cpu, right.memory, right.pods)
                && self.left[slot.range()] == fresh.left[right.range()];
            let mut again = slot.clone();
            summarise(&mut again, &self.left, &self.milli);
            let summary = |s: &Slot| (s.best, s.whole, s.free, s.state);
            if !same || summary(&again) != summary(slot) {
                return Err(format!(
                    "node {:?}: the account differs from its bookings",
                    self.nodes[index].name
                ));
            }
        }
        Ok(())
    }
}

impl Slot {
    fn range(&self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.gpus as usize
    }

    /// Counts a pod of a class in or out; false if there is none to take out.
    fn count(&mut self, class: u32, more: bool) -> bool {
        let found = self.classes.iter().position(|(known, _)| *known == class);
        match (found, more) {
            (Some(at), true) => self.classes[at].1 += 1,
            (None, true) => self.classes.push((class, 1)),
            (Some(at), false) => {
                self.classes[at].1 -= 1;
                if self.classes[at].1 == 0 {
                    self.classes.remove(at);
                }
            }
            (None, false) => return false,
        }
        true
    }
}

fn thousandths(left: u64, units: u64) -> u16 {
    if units == u64::from(WHOLE) {
        return left as u16;
    }
    (u128::from(left) * u128::from(WHOLE) / u128::from(units)) as u16
}

fn summarise(slot: &mut Slot, left: &[u64], milli: &[u16]) {
    let range = slot.range();
    slot.best = left[range.clone()].iter().copied().max().unwrap_or(0);
    slot.whole = left[range.clone()].iter().filter(|&&left| left == slot.units).count() as u16;
    slot.free = milli[range.clone()].iter().map(|&milli| u32::from(milli)).sum();
    let gpus = milli[range].iter().fold(0u64, |sum, &milli| sum.wrapping_add(gpu_state(milli)));
    slot.state = node_state(slot.model, slot.cpu).wrapping_add(gpus);
}

/// The part of a node's state that comes from its model and its free CPUs.
pub fn node_state(model: u16, cpu: u64) -> u64 {
    mixed(cpu ^ (u64::from(model) + 1) << 44)
}

/// The part of a GPU with this many thousandths left.
pub fn gpu_state(milli: u16) -> u64 {
    static STATES: LazyLock<Vec<u64>> =
        LazyLock::new(|| (0..=u64::from(WHOLE)).map(|milli| mixed(milli | 1 << 62)).collect());
    STATES[usize::from(milli)]
}

/// A pseudo-random function of `x`.
fn mixed(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
