//! A cluster that many callers share: pods are created and deleted by their unique ids, at any time, from any thread.
//!
//! A create with an id that is already placed returns the same place, and a delete of an unknown id changes nothing,
//! so callers may repeat their calls. Nodes may come, go and come back. The mix is learned from the requests, from
//! each pod once, even if its create is repeated.

use crate::error::Result;
use crate::group::{self, Strategy};
use crate::learn::{Ids, Learner};
use crate::ledger::{Booking, Ledger};
use crate::mix::Mix;
use crate::place::Placer;
use crate::policy::Policy;
use crate::policy::value::Value;
use crate::sim::{Cause, cause};
use crate::words::{Node, Request};
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The place of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: String,
    pub gpus: Vec<u16>,
    /// Units of each GPU: bytes if the node's list has the memory of its GPUs.
    pub units: u64,
}

/// The shared state.
#[derive(Debug)]
pub struct Desk {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    placer: Placer,
    nodes: FxHashMap<String, u32>,
    held: FxHashMap<String, (Booking, Request)>,
    learner: Learner,
    /// Pods whose requests were learned.
    learned: Ids,
    policies: u64,
}

impl Desk {
    /// Of equal nodes, the first one wins.
    pub fn new(nodes: Vec<Node>) -> Desk {
        Desk::with(nodes, Learner::default(), Ids::default())
    }

    /// An empty desk with other nodes, and the mix learned so far.
    pub fn rebuilt(&self, nodes: Vec<Node>) -> Desk {
        let state = self.state();
        Desk::with(nodes, state.learner.clone(), state.learned.clone())
    }

    fn with(nodes: Vec<Node>, learner: Learner, learned: Ids) -> Desk {
        let names = nodes.iter().enumerate().map(|(at, node)| (node.name.clone(), at as u32)).collect();
        let ledger = Ledger::new(nodes);
        let policy = Policy::Value(Box::new(Value::new(&ledger, &learner.mix())));
        let placer = Placer::new(ledger, policy);
        let state = State { placer, nodes: names, held: FxHashMap::default(), learner, learned, policies: 0 };
        Desk { state: Mutex::new(state) }
    }

    /// A panic of another caller may poison the lock. That is safe: the ledger checks before it changes anything.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places a pod; `Err` is the reason why it fits nowhere.
    pub fn create(&self, id: &str, request: &Request) -> std::result::Result<Place, Cause> {
        let mut state = self.state();
        if let Some((booking, _)) = state.held.get(id) {
            return Ok(state.place(booking));
        }
        state.learn(id, request);
        state.create(id, request)
    }

    /// The reason why a pod cannot be placed now; `None` if it can.
    pub fn refusal(&self, request: &Request) -> Option<Cause> {
        cause(&self.state().placer, request)
    }

    /// Places a pod on one of these nodes; nodes that are not known do not count.
    pub fn create_among(
        &self,
        id: &str,
        request: &Request,
        names: &[&str],
    ) -> std::result::Result<Place, Cause> {
        let mut state = self.state();
        if let Some((booking, _)) = state.held.get(id) {
            return Ok(state.place(booking));
        }
        state.learn(id, request);
        let mut allowed = vec![false; state.placer.ledger().len()];
        for name in names {
            if let Some(&index) = state.nodes.get(*name) {
                allowed[index as usize] = true;
            }
        }
        let Some(booking) = state.placer.place_among(request, |node| allowed[node as usize]) else {
            // If it fits on another node, the scheduler has excluded that node for its own reasons.
            return Err(cause(&state.placer, request).unwrap_or(Cause::Elsewhere));
        };
        let place = state.place(&booking);
        state.held.insert(id.to_owned(), (booking, request.clone()));
        Ok(place)
    }

    /// Places all pods of a group or none. If all are placed already, their places are returned.
    pub fn create_group(
        &self,
        pods: &[(String, Request)],
        strategy: Strategy,
    ) -> std::result::Result<Vec<Place>, Cause> {
        let mut state = self.state();
        let held: Vec<Place> = pods
            .iter()
            .filter_map(|(id, _)| state.held.get(id))
            .map(|(booking, _)| state.place(booking))
            .collect();
        if held.len() == pods.len() {
            return Ok(held);
        }
        for (id, request) in pods {
            state.learn(id, request);
        }
        let requests: Vec<Request> = pods.iter().map(|(_, request)| request.clone()).collect();
        let placed =
            if held.is_empty() { group::place(&mut state.placer, &requests, strategy) } else { None };
        let Some(bookings) = placed else {
            return Err(group::refusal(&state.placer, &requests, strategy));
        };
        let places = bookings.iter().map(|booking| state.place(booking)).collect();
        for ((id, request), booking) in pods.iter().zip(bookings) {
            state.held.insert(id.clone(), (booking, request.clone()));
        }
        Ok(places)
    }

    /// The reason why a group can never be placed, if that is proven.
    pub fn never(&self, pods: &[(String, Request)], strategy: Strategy) -> Option<(Cause, String)> {
        let requests: Vec<Request> = pods.iter().map(|(_, request)| request.clone()).collect();
        group::never(&self.state().placer, &requests, strategy)
    }

    /// Bytes of the largest GPU whose memory is known; 0 if there is none.
    pub fn largest_gpu(&self) -> u64 {
        let state = self.state();
        let nodes = state.placer.ledger().nodes().iter().filter(|node| node.gpus > 0);
        nodes.filter_map(|node| node.gpu_memory).max().unwrap_or(0)
    }

    /// The place of a pod, if it is placed.
    pub fn find(&self, id: &str) -> Option<Place> {
        let state = self.state();
        state.held.get(id).map(|(booking, _)| state.place(booking))
    }

    /// Books a pod at its existing place, as after a restart.
    pub fn restore(&self, id: &str, node: &str, request: &Request, gpus: &[u16]) -> Result<()> {
        let mut state = self.state();
        if state.held.contains_key(id) {
            return Ok(());
        }
        let Some(&index) = state.nodes.get(node) else {
            return Err(crate::Error::NoRoom { node: node.to_owned(), what: "there is no such node" });
        };
        let booking = state.placer.book(index, request, gpus)?;
        state.learn(id, request);
        state.held.insert(id.to_owned(), (booking, request.clone()));
        Ok(())
    }

    /// Learns a pod's request, unless it was learned before.
    pub fn learn(&self, id: &str, request: &Request) {
        self.state().learn(id, request);
    }

    /// Frees a pod's booking, and forgets that its request was learned.
    pub fn forget(&self, id: &str) {
        self.delete(id);
        self.state().learned.remove(id);
    }

    /// Frees a pod's booking; false if it has none.
    pub fn delete(&self, id: &str) -> bool {
        let mut state = self.state();
        let Some((booking, _)) = state.held.remove(id) else { return false };
        state.placer.release(&booking).is_ok()
    }

    /// Adds a node, or opens it again if it was closed. False if a node of this name has other capacities.
    pub fn add_node(&self, node: Node) -> bool {
        let mut state = self.state();
        if let Some(&index) = state.nodes.get(&node.name) {
            let is_same = *state.placer.ledger().node(index) == node;
            state.placer.set_open(index, true);
            return is_same;
        }
        let name = node.name.clone();
        let mix: Mix = state.learner.mix();
        let index = state.placer.add_node(node, |ledger| Policy::Value(Box::new(Value::new(ledger, &mix))));
        state.nodes.insert(name, index);
        true
    }

    /// Adds a node, or gives one of this name other capacities; it must then have no bookings. The cost does not
    /// depend on other nodes, as long as the policy knows nodes of this kind.
    pub fn put_node(&self, node: Node) {
        let mut state = self.state();
        let State { placer, nodes, learner, policies, .. } = &mut *state;
        let policy = |ledger: &Ledger| {
            *policies += 1;
            Policy::Value(Box::new(Value::new(ledger, &learner.mix())))
        };
        match nodes.get(&node.name) {
            Some(&index) if *placer.ledger().node(index) == node => {}
            Some(&index) => placer.replace_node(index, node, policy),
            None => {
                let name = node.name.clone();
                let index = placer.add_node(node, policy);
                nodes.insert(name, index);
            }
        }
    }

    /// Removes a node without bookings. Its index stays in use, with no capacity.
    pub fn remove_node(&self, name: &str) {
        let old = {
            let state = self.state();
            let Some(&index) = state.nodes.get(name) else { return };
            state.placer.ledger().node(index).clone()
        };
        self.put_node(Node { gpus: 0, cpu_milli: 0, memory: 0, max_pods: 0, ..old });
        self.close_node(name);
    }

    /// Policies that were made for nodes of new kinds, for tests of a change's cost.
    pub fn policies_made(&self) -> u64 {
        self.state().policies
    }

    /// Places of nodes, used or not.
    pub fn node_places(&self) -> usize {
        self.state().nodes.len()
    }

    /// Closes a node to further pods. Pods on it keep their bookings.
    pub fn close_node(&self, name: &str) -> bool {
        self.set_open(name, false)
    }

    /// Closes a node, or opens it again. False if there is no such node.
    pub fn set_open(&self, name: &str, open: bool) -> bool {
        let mut state = self.state();
        let Some(&index) = state.nodes.get(name) else { return false };
        if state.placer.ledger().slot(index).open != open {
            state.placer.set_open(index, open);
        }
        true
    }

    /// Thousandths that are free, and all of them.
    pub fn free(&self) -> (u64, u64) {
        let state = self.state();
        (state.placer.free(), state.placer.ledger().total_milli())
    }

    pub fn pods(&self) -> usize {
        self.state().held.len()
    }

    /// Proves the account.
    pub fn check(&self) -> std::result::Result<(), String> {
        let state = self.state();
        state.placer.ledger().check(state.held.values().map(|(booking, _)| booking))
    }
}

impl State {
    fn create(&mut self, id: &str, request: &Request) -> std::result::Result<Place, Cause> {
        let Some(booking) = self.placer.place(request) else {
            return Err(cause(&self.placer, request).unwrap_or(Cause::Pods));
        };
        let place = self.place(&booking);
        self.held.insert(id.to_owned(), (booking, request.clone()));
        Ok(place)
    }

    fn place(&self, booking: &Booking) -> Place {
        let node = self.placer.ledger().node(booking.node).name.clone();
        Place { node, gpus: booking.gpus.clone(), units: booking.units }
    }

    /// Learns the mix from requests as they come.
    fn learn(&mut self, id: &str, request: &Request) {
        if !self.learned.add(id) {
            return;
        }
        if let Some(mix) = self.learner.see(request) {
            let value = Value::new(self.placer.ledger(), &mix);
            self.placer.set_policy(Policy::Value(Box::new(value)));
        }
    }
}
