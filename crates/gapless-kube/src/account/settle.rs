//! Finds the resources of a pod by the table, and makes the desk agree.

use super::{Account, Assumed, NodeState};
use crate::objects::KubePod;
use gapless_fleet::desk::{Desk, Place};
use gapless_fleet::words::{Request, Share};
use gapless_ledger::promise::Entry;
use gapless_ledger::promise::life::{Facts, Life};

/// The resources of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    node: String,
    gpus: Vec<u16>,
    units: u64,
    cpu_milli: u64,
    memory: u64,
    /// True if the pod uses unknown GPUs.
    is_lost: bool,
}

impl Account {
    /// The entry that counts for a bound pod: that of its node's page. If the page is lost, the remembered one, if
    /// the pod's annotations agree. If an intact page has none, its event is on its way, and the annotations count.
    fn entry_of(&self, uid: &str, pod: &KubePod, state: &NodeState) -> Option<Entry> {
        if let Some(entry) = state.entry(uid) {
            return Some(entry.clone());
        }
        let claim = pod.claim.clone()?;
        let (is_on, entry) =
            self.witnessed.get(uid).map(|(node, entry)| (*node == pod.node, entry.clone())).unzip();
        match entry.filter(|entry| is_on == Some(true) && entry.claim() == claim) {
            Some(entry) => Some(entry),
            None if state.page.is_founded => {
                let (uid, pod, seen) = (uid.to_owned(), pod.full_name(), String::new());
                Some(Entry { uid, pod, gpus: claim.gpus, amount: claim.amount, seen })
            }
            None => None,
        }
    }

    /// The resources of a pod by the table in `account`.
    fn wanted(&self, uid: &str) -> Option<Hold> {
        let pod = self.pods.get(uid);
        let home = pod.filter(|pod| !pod.node.is_empty());
        let node = match (home, self.booked.get(uid)) {
            (Some(pod), _) => Some(&pod.node),
            (None, names) => names.and_then(|names| names.first()),
        };
        let state = node.and_then(|node| self.nodes.get(node));
        let entry = match (home, state) {
            (Some(pod), Some(state)) => self.entry_of(uid, pod, state),
            (None, Some(state)) => state.entry(uid).cloned(),
            (_, None) => None,
        };
        let assumed = self.assumed.get(uid);
        let life = Life::of(Facts {
            is_gone: self.dead.contains(uid),
            is_bound: home.is_some(),
            is_ours: pod.is_some_and(KubePod::is_ours),
            is_booked: entry.is_some(),
            is_assumed: assumed.is_some(),
        });
        if let (Life::Assumed, Some(Assumed { place, request, .. })) = (life, assumed) {
            self.nodes.get(&place.node)?;
            let Place { node, gpus, units } = place.clone();
            let (cpu_milli, memory) = (request.cpu_milli, request.memory);
            return Some(Hold { node, gpus, units, cpu_milli, memory, is_lost: false });
        }
        if matches!(life, Life::Gone | Life::Seen) {
            return None;
        }
        let (pod, state) = (pod?, state?);
        let places = entry.as_ref().map_or(Some(Vec::new()), |entry| state.places(&entry.gpus));
        let is_lost = life == Life::Lost || places.is_none();
        let gpus = places.unwrap_or_default();
        let whole = state.kube.node.gpu_memory;
        let units = entry.filter(|_| !gpus.is_empty()).map_or(0, |entry| entry.amount.units(whole));
        let Request { cpu_milli, memory, .. } = pod.plain;
        Some(Hold { node: state.kube.node.name.clone(), gpus, units, cpu_milli, memory, is_lost })
    }

    /// Makes the desk agree with the resources of a pod.
    pub(super) fn settle(&mut self, uid: &str) {
        self.settled += 1;
        let wanted = self.wanted(uid);
        let held = self.desk.find(uid);
        let is_held = match (&wanted, &held) {
            (Some(hold), Some(place)) => {
                hold.is_lost == self.is_over(uid, &hold.node)
                    && hold.node == place.node
                    && hold.gpus == place.gpus
                    && hold.units == place.units
            }
            (None, None) => true,
            _ => false,
        };
        if is_held {
            return;
        }
        let freed = held.is_some() && self.desk.delete(uid);
        self.unheld.remove(uid);
        self.set_over(uid, None);
        if let Some(hold) = &wanted {
            self.hold(uid, hold);
        }
        if freed && !self.unheld.is_empty() {
            let waiting: Vec<String> = self.unheld.iter().filter(|other| *other != uid).cloned().collect();
            for other in waiting {
                if let Some(hold) = self.wanted(&other) {
                    self.hold(&other, &hold);
                } else {
                    self.unheld.remove(&other);
                }
            }
        }
    }

    /// Holds a place in the desk for a pod.
    fn hold(&mut self, uid: &str, hold: &Hold) {
        let Some(state) = self.nodes.get(&hold.node) else { return };
        if let Some(pod) = self.pods.get(uid) {
            let asked = pod.request.as_ref().ok().and_then(Option::as_ref).unwrap_or(&pod.plain);
            self.desk.learn(uid, asked);
        }
        let share = match (hold.gpus.len(), state.kube.node.gpu_memory) {
            (0, _) => Share::Milli(0),
            (_, Some(_)) => Share::Bytes(hold.units),
            (_, None) => Share::Milli(u32::try_from(hold.units).unwrap_or(u32::MAX)),
        };
        let request = Request {
            cpu_milli: hold.cpu_milli,
            memory: hold.memory,
            gpus: hold.gpus.len() as u32,
            share,
            models: String::new(),
        };
        // Pods of other schedulers may use more CPUs than the node has. Then only the GPUs are counted.
        let bare = Request { cpu_milli: 0, memory: 0, ..request.clone() };
        let fits = |desk: &Desk| {
            desk.restore(uid, &hold.node, &request, &hold.gpus).is_ok()
                || desk.restore(uid, &hold.node, &bare, &hold.gpus).is_ok()
        };
        let mut is_held = fits(&self.desk);
        if !is_held && !self.assumed.contains_key(uid) {
            // A bound or booked pod takes precedence over assumptions of this replica.
            let here = self.assumed.iter().filter(|(_, one)| one.place.node == hold.node);
            let dropped: Vec<String> = here.map(|(uid, _)| uid.clone()).collect();
            for other in &dropped {
                self.assumed.remove(other);
                self.desk.delete(other);
            }
            is_held = fits(&self.desk);
        }
        if is_held {
            self.unheld.remove(uid);
            self.set_over(uid, hold.is_lost.then_some(hold.node.as_str()));
            return;
        }
        self.unheld.insert(uid.to_owned());
        let is_bound = self.pods.get(uid).is_some_and(|pod| !pod.node.is_empty());
        if is_bound && !hold.gpus.is_empty() {
            self.set_over(uid, Some(&hold.node));
        }
    }

    fn is_over(&self, uid: &str, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|state| state.over.contains(uid))
    }

    /// Sets the node that has no room for a pod that is bound to it, if there is one.
    fn set_over(&mut self, uid: &str, node: Option<&str>) {
        if let Some(name) = node
            && let Some(state) = self.nodes.get_mut(name)
        {
            if state.over.insert(uid.to_owned()) {
                self.conflicts += 1;
            }
            self.over.insert(uid.to_owned(), name.to_owned());
            self.desk.set_open(name, false);
            return;
        }
        if let Some(name) = self.over.remove(uid)
            && let Some(state) = self.nodes.get_mut(&name)
        {
            state.over.remove(uid);
            self.desk.set_open(&name, state.is_open());
        }
    }
}
