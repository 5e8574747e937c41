//! The known nodes and pods of the cluster, and the resources in use.
//!
//! Nodes and pods come from lists and watches. The resources of each pod follow from them:
//!
//! ```text
//! bound to a node         the node's entry for the pod; else the one that is remembered, if the pod says the same;
//!                         else only CPUs. If it uses unknown GPUs, the node gets no more pods
//! not bound, assumed      the place that filter chose; it may expire
//! not bound, booked       the entry that a replica has made, and is about to bind or never will
//! finished or deleted     nothing
//! ```
//!
//! `settle` makes the desk agree with that table, and is called for every pod that an event may concern; for a
//! changed node, for its pods. If many nodes change at once, the desk is built again.

mod nodes;
mod settle;

use crate::book::Page;
use crate::limits::{ASSUMED_FOR, BOOKED_FOR, MOST_DEAD, MOST_NAMED, MOST_UNKNOWN, UNKNOWN_FOR};
use crate::log::Log;
use crate::objects::{self, KubeNode, KubePod};
use gapless_fleet::desk::{Desk, Place};
use gapless_fleet::sim::Cause;
use gapless_fleet::words::Request;
use gapless_ledger::promise::{Amount, Entry};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// If more nodes change at once, the desk is built again.
const FEW_NODES: usize = 64;

/// A pod that has a place and is not bound yet.
#[derive(Clone, Debug)]
pub struct Assumed {
    pub place: Place,
    pub request: Request,
    pub when: Instant,
}

#[derive(Debug)]
struct NodeState {
    kube: KubeNode,
    version: String,
    page: Page,
    /// A name for each GPU.
    gpus: Vec<String>,
    /// The reason why it gets no more pods, if its object is invalid.
    fault: Option<String>,
    /// Pods that are bound to it although it has no room for them.
    over: FxHashSet<String>,
}

impl NodeState {
    fn entry(&self, uid: &str) -> Option<&Entry> {
        self.page.entries.iter().find(|entry| entry.uid == uid)
    }

    /// The places of an entry's GPUs. A lost GPU has none. `None` if they cannot be matched, because the node has
    /// changed from indices to UUIDs or back.
    fn places(&self, gpus: &[String]) -> Option<Vec<u16>> {
        let is_index = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
        let mut places = Vec::new();
        for name in gpus {
            match self.gpus.iter().position(|known| known == name) {
                Some(at) => places.push(at as u16),
                None if is_index(name) || self.gpus.iter().any(is_index) => return None,
                None => {}
            }
        }
        places.sort_unstable();
        Some(places)
    }

    fn is_open(&self) -> bool {
        self.kube.schedulable && self.fault.is_none() && self.over.is_empty()
    }
}

/// The account.
#[derive(Debug)]
pub struct Account {
    desk: Desk,
    nodes: BTreeMap<String, NodeState>,
    /// All pods that are not finished, by their id.
    pods: FxHashMap<String, KubePod>,
    /// Pods that are bound to a node.
    bound: FxHashMap<String, FxHashSet<String>>,
    /// Nodes on which a pod is booked.
    booked: FxHashMap<String, Vec<String>>,
    assumed: FxHashMap<String, Assumed>,
    /// The last entry of each pod, and its node, which confirm a pod's annotations if a page is lost.
    witnessed: FxHashMap<String, (String, Entry)>,
    /// Entries of pods that are not bound, with the time since which they have not changed.
    waiting: FxHashMap<(String, String), (String, Instant)>,
    /// Pods that have resources by the table but no room in the desk. They are tried again after each release.
    unheld: FxHashSet<String>,
    dead: FxHashSet<String>,
    /// The node that has no room for a pod that is bound to it.
    over: FxHashMap<String, String>,
    /// Calls of `settle`, for tests of an event's cost.
    pub settled: u64,
    /// Bound pods for which a node was found to have no room.
    pub conflicts: u64,
}

impl Default for Account {
    fn default() -> Account {
        Account {
            desk: Desk::new(Vec::new()),
            nodes: BTreeMap::new(),
            pods: FxHashMap::default(),
            bound: FxHashMap::default(),
            booked: FxHashMap::default(),
            assumed: FxHashMap::default(),
            witnessed: FxHashMap::default(),
            waiting: FxHashMap::default(),
            unheld: FxHashSet::default(),
            dead: FxHashSet::default(),
            over: FxHashMap::default(),
            settled: 0,
            conflicts: 0,
        }
    }
}

impl Account {
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Nodes that get no pods because their object or their bookings are invalid.
    pub fn closed(&self) -> usize {
        self.nodes.values().filter(|state| state.kube.schedulable && !state.is_open()).count()
    }

    /// Some of these nodes, each with its reason.
    pub fn closed_nodes(&self) -> Vec<(String, &'static str)> {
        let reason = |state: &NodeState| match (&state.fault, state.over.is_empty()) {
            (Some(_), _) => "its object or its bookings are invalid",
            (None, false) => "a pod uses GPUs that are not known or not free",
            (None, true) => "",
        };
        let closed = self.nodes.iter().filter(|(_, state)| state.kube.schedulable && !state.is_open());
        closed.take(MOST_NAMED).map(|(name, state)| (name.clone(), reason(state))).collect()
    }

    pub fn assumed(&self) -> usize {
        self.assumed.len()
    }

    /// Pods that have not finished.
    pub fn known(&self) -> usize {
        self.pods.len()
    }

    pub fn pod(&self, uid: &str) -> Option<&KubePod> {
        self.pods.get(uid)
    }

    pub fn assumption(&self, uid: &str) -> Option<&Assumed> {
        self.assumed.get(uid)
    }

    /// The names of a place's GPUs, and the amount of each; `None` if the node is not known.
    pub fn named(&self, place: &Place) -> Option<(Vec<String>, Amount)> {
        let state = self.nodes.get(&place.node)?;
        let gpus: Option<Vec<String>> =
            place.gpus.iter().map(|&gpu| state.gpus.get(usize::from(gpu)).cloned()).collect();
        Some((gpus?, Amount::of_units(place.units, state.kube.node.gpu_memory)))
    }

    /// The places of an entry's GPUs on the node as it was last seen.
    pub fn indices(&self, node: &str, entry: &Entry) -> Vec<u16> {
        self.nodes.get(node).and_then(|state| state.places(&entry.gpus)).unwrap_or_default()
    }

    /// The remembered entries of pods that are bound to a node.
    pub fn bound_on(&self, name: &str) -> Vec<Entry> {
        let uids = self.bound.get(name).into_iter().flatten();
        let entry = |uid: &String| self.witnessed.get(uid).filter(|(node, _)| node == name);
        uids.filter_map(entry).map(|(_, entry)| entry.clone()).collect()
    }

    /// Pods whose entries on a node seem void. That is a reason to ask the API server, but no proof.
    pub fn suspects(&self, name: &str) -> Vec<String> {
        let entries = self.nodes.get(name).map(|state| state.page.entries.as_slice()).unwrap_or_default();
        let is_suspect = |entry: &&Entry| match self.pods.get(&entry.uid) {
            Some(pod) => !pod.node.is_empty() && pod.node != name,
            None => true,
        };
        entries.iter().filter(is_suspect).map(|entry| entry.uid.clone()).collect()
    }

    /// Other nodes on which a pod is booked.
    pub fn booked_elsewhere(&self, uid: &str, node: &str) -> Vec<String> {
        let all = self.booked.get(uid).map(Vec::as_slice).unwrap_or_default();
        all.iter().filter(|name| *name != node).cloned().collect()
    }

    /// True if a pod is booked on a node.
    pub fn is_booked(&self, uid: &str, node: &str) -> bool {
        self.booked.get(uid).is_some_and(|names| names.iter().any(|name| name == node))
    }

    /// Pods that have been booked for long without a bind, by their nodes: the replica that booked them is gone.
    pub fn left_behind(&mut self, now: Instant) -> Vec<(String, Vec<String>)> {
        let mut waiting = FxHashMap::default();
        let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (uid, nodes) in &self.booked {
            let is_waiting = self.pods.get(uid).is_some_and(|pod| pod.node.is_empty());
            if !is_waiting || self.assumed.contains_key(uid) {
                continue;
            }
            for node in nodes {
                let Some(entry) = self.nodes.get(node).and_then(|state| state.entry(uid)) else { continue };
                let key = (node.clone(), uid.clone());
                let known = self.waiting.get(&key).filter(|(seen, _)| *seen == entry.seen);
                let since = known.map_or(now, |(_, since)| *since);
                if now.saturating_duration_since(since) > BOOKED_FOR {
                    left.entry(node.clone()).or_default().push(uid.clone());
                }
                waiting.insert(key, (entry.seen.clone(), since));
            }
        }
        self.waiting = waiting;
        left.into_iter().collect()
    }

    /// Sets the size for `auto`.
    pub fn set_size(&mut self, uid: &str, size: Result<u64, String>) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.set_size(size);
        }
    }

    /// Chooses a node for a pod that is not bound, and assumes the pod there.
    pub fn choose(&mut self, uid: &str, request: &Request, names: &[&str]) -> Result<Place, Cause> {
        // The old assumption is dropped first, because its place may no longer be among the candidates.
        self.assumed.remove(uid);
        self.desk.delete(uid);
        let is_unknown = |uid: &&String| !self.pods.contains_key(*uid);
        if !self.pods.contains_key(uid) && self.assumed.keys().filter(is_unknown).count() >= MOST_UNKNOWN {
            return Err(Cause::Elsewhere);
        }
        let result = self.desk.create_among(uid, request, names);
        match &result {
            Ok(place) => {
                let (place, request) = (place.clone(), request.clone());
                self.assumed.insert(uid.to_owned(), Assumed { place, request, when: Instant::now() });
            }
            // A booking of an earlier attempt counts again.
            Err(_) => self.settle(uid),
        }
        result
    }

    /// Drops the assumption about a pod.
    pub fn drop_assumption(&mut self, uid: &str) {
        if self.assumed.remove(uid).is_some() {
            self.settle(uid);
        }
    }

    /// Records a successful bind; `entry` is set if this replica made it.
    pub fn bound(&mut self, uid: &str, node: &str, entry: Option<Entry>) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        node.clone_into(&mut pod.node);
        if let Some(entry) = entry {
            // The event will show the same in the pod's annotations.
            pod.claim = Some(entry.claim());
            self.witnessed.insert(uid.to_owned(), (node.to_owned(), entry));
        }
        self.bound.entry(node.to_owned()).or_default().insert(uid.to_owned());
        self.assumed.remove(uid);
        self.settle(uid);
    }

    /// Drops assumptions that were not bound in time, and returns their number.
    pub fn expire(&mut self, now: Instant) -> u64 {
        let is_old = |(uid, assumed): &(&String, &Assumed)| {
            let most = if self.pods.contains_key(*uid) { ASSUMED_FOR } else { UNKNOWN_FOR };
            now.saturating_duration_since(assumed.when) > most
        };
        let old: Vec<String> = self.assumed.iter().filter(is_old).map(|(uid, _)| uid.clone()).collect();
        old.iter().for_each(|uid| self.drop_assumption(uid));
        old.len() as u64
    }

    /// Takes the list of all pods.
    pub fn replace_pods(&mut self, objects: &[Value], log: &Log) {
        let there: FxHashSet<&str> =
            objects.iter().map(|pod| objects::text(pod, &["metadata", "uid"])).collect();
        let gone: Vec<String> =
            self.pods.keys().filter(|uid| !there.contains(uid.as_str())).cloned().collect();
        gone.iter().for_each(|uid| self.forget_pod(uid));
        for object in objects {
            let pod = objects::pod(object);
            // An API server that was restored from a backup may have unbound it.
            if let Some(known) = self.pods.get_mut(&pod.uid)
                && known.node != pod.node
            {
                let node = std::mem::take(&mut known.node);
                self.leave(&node, &pod.uid);
            }
            self.see_pod(pod, log);
        }
    }

    fn leave(&mut self, node: &str, uid: &str) {
        if let Some(uids) = self.bound.get_mut(node) {
            uids.remove(uid);
            if uids.is_empty() {
                self.bound.remove(node);
            }
        }
    }

    /// Takes a pod from an answer, which may be older than the watch's last event.
    pub fn hear_pod(&mut self, pod: KubePod, log: &Log) {
        if !self.dead.contains(&pod.uid) {
            self.see_pod(pod, log);
        }
    }

    /// Takes a pod that is new or has changed.
    pub fn see_pod(&mut self, mut pod: KubePod, log: &Log) {
        if pod.uid.is_empty() {
            return;
        }
        // A deleted pod may be back if the API server was restored from a backup.
        self.dead.remove(&pod.uid);
        if pod.finished {
            self.forget_pod(&pod.uid);
            return;
        }
        let uid = pod.uid.clone();
        if let Some(known) = self.pods.get(&uid) {
            if known.auto.is_some() && known.auto == pod.auto && known.asked == pod.asked {
                pod.request.clone_from(&known.request);
            }
            // A pod is never unbound, so an event without its node is an old one.
            if pod.node.is_empty() {
                known.node.clone_into(&mut pod.node);
                pod.claim.clone_from(&known.claim);
                pod.claims |= known.claims;
            }
        }
        if !pod.node.is_empty() {
            self.bound.entry(pod.node.clone()).or_default().insert(uid.clone());
            // The pod is bound, as assumed or elsewhere, so the assumption ends.
            self.assumed.remove(&uid);
        }
        let conflicts = self.conflicts;
        self.pods.insert(uid.clone(), pod);
        self.settle(&uid);
        if self.conflicts > conflicts
            && let Some(pod) = self.pods.get(&uid)
        {
            log.write("error", "over-booked", json!({"pod": pod.full_name(), "node": pod.node,
                "why": "the pod is bound to GPUs that have no room for it, or nothing says which GPUs it uses",
                "help": "the node gets no more pods; delete this pod, or another one on its GPUs"}));
        }
    }

    /// Forgets a pod that is deleted or finished.
    pub fn forget_pod(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            self.leave(&pod.node, uid);
        }
        self.witnessed.remove(uid);
        if self.dead.len() >= MOST_DEAD {
            self.dead.clear();
        }
        self.dead.insert(uid.to_owned());
        self.assumed.remove(uid);
        self.settle(uid);
        self.desk.forget(uid);
    }
}
