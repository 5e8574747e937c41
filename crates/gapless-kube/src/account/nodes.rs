//! News of nodes: lists, changes, deletions. A change only costs work for its own node.

use super::{Account, FEW_NODES, NodeState};
use crate::book::{self, Page};
use crate::log::Log;
use crate::objects;
use gapless_fleet::words::Node;
use gapless_ledger::promise::Entry;
use rustc_hash::FxHashSet;
use serde_json::{Value, json};

impl Account {
    /// Takes the list of all nodes.
    pub fn replace_nodes(&mut self, objects: &[Value], log: &Log) {
        let there: FxHashSet<&str> =
            objects.iter().map(|node| objects::text(node, &["metadata", "name"])).collect();
        let gone: Vec<String> =
            self.nodes.keys().filter(|name| !there.contains(name.as_str())).cloned().collect();
        if gone.len() + objects.len().saturating_sub(self.nodes.len()) <= FEW_NODES {
            gone.iter().for_each(|name| self.forget_node(name));
            objects.iter().for_each(|object| self.change_node(object, true, log));
        } else {
            for name in &gone {
                self.take_node(name);
            }
            for object in objects {
                self.put_node(object, true, log);
            }
            self.rebuild();
        }
        for state in self.nodes.values() {
            self.desk.set_open(&state.kube.node.name, state.is_open());
        }
        self.settle_all();
    }

    /// Takes a node that is new or has changed.
    pub fn see_node(&mut self, object: &Value, log: &Log) {
        self.change_node(object, false, log);
    }

    fn change_node(&mut self, object: &Value, is_listed: bool, log: &Log) {
        let name = objects::text(object, &["metadata", "name"]).to_owned();
        let before: Vec<Entry> =
            self.nodes.get(&name).map(|state| state.page.entries.clone()).unwrap_or_default();
        let was_founded = self.nodes.get(&name).is_some_and(|state| state.page.is_founded);
        let is_other = self.put_node(object, is_listed, log);
        let Some(state) = self.nodes.get(&name) else { return };
        let after = &state.page.entries;
        let uids: FxHashSet<String> = if is_other || was_founded != state.page.is_founded {
            self.holders(&name, &before)
        } else {
            let changed = before.iter().filter(|entry| !after.contains(entry));
            let new = after.iter().filter(|entry| !before.contains(entry));
            changed.chain(new).map(|entry| entry.uid.clone()).collect()
        };
        if is_other {
            uids.iter().for_each(|uid| self.free_on(uid, &name));
            self.desk.put_node(state.kube.node.clone());
        }
        let state = &self.nodes[&name];
        self.desk.set_open(&name, state.is_open());
        uids.iter().for_each(|uid| self.settle(uid));
    }

    /// Pods that may have resources on a node; `before`: the entries of its last page.
    fn holders(&self, name: &str, before: &[Entry]) -> FxHashSet<String> {
        let bound = self.bound.get(name).into_iter().flatten();
        let now = self.nodes.get(name).map(|state| state.page.entries.as_slice()).unwrap_or_default();
        let booked = before.iter().chain(now).map(|entry| &entry.uid);
        let assumed = self.assumed.iter().filter(|(_, one)| one.place.node == name).map(|(uid, _)| uid);
        bound.chain(booked).chain(assumed).cloned().collect()
    }

    fn free_on(&self, uid: &str, node: &str) {
        if self.desk.find(uid).is_some_and(|place| place.node == node) {
            self.desk.delete(uid);
        }
    }

    /// Forgets a node that is gone.
    pub fn forget_node(&mut self, name: &str) {
        let holders = self.holders(name, &[]);
        if !self.take_node(name) {
            return;
        }
        holders.iter().for_each(|uid| self.free_on(uid, name));
        if self.desk.node_places() > 2 * self.nodes.len() + FEW_NODES {
            self.rebuild();
        } else {
            self.desk.remove_node(name);
            holders.iter().for_each(|uid| self.settle(uid));
        }
    }

    /// Records a node. Returns true if its capacities or GPUs have changed. A list counts even if its versions are
    /// lower, because the API server may have been restored from a backup.
    fn put_node(&mut self, object: &Value, is_listed: bool, log: &Log) -> bool {
        let name = objects::text(object, &["metadata", "name"]).to_owned();
        let version = objects::text(object, &["metadata", "resourceVersion"]).to_owned();
        if let Some(known) = self.nodes.get(&name)
            && (known.version == version || (!is_listed && number(&version) < number(&known.version)))
        {
            return false;
        }
        let refused = |what: &str| log.write("warning", "node refused", json!({"node": name, "why": what}));
        let kube = match objects::node(object) {
            Ok(kube) => kube,
            Err(what) => {
                // Its old capacities still hold its pods, but it gets no more pods.
                match self.nodes.get_mut(&name) {
                    Some(state) => {
                        if state.fault.as_ref() != Some(&what) {
                            refused(&what);
                        }
                        (state.version, state.fault) = (version, Some(what));
                    }
                    None => refused(&what),
                }
                return false;
            }
        };
        let (page, fault) = match book::page(object) {
            Ok(page) => (page, None),
            Err(what) => (Page::default(), Some(what)),
        };
        let before = self.nodes.remove(&name);
        let old_fault = before.as_ref().and_then(|state| state.fault.clone());
        if let Some(what) = &fault
            && old_fault != fault
        {
            refused(what);
        }
        for entry in before.iter().flat_map(|state| &state.page.entries) {
            if let Some(names) = self.booked.get_mut(&entry.uid) {
                names.retain(|other| *other != name);
                if names.is_empty() {
                    self.booked.remove(&entry.uid);
                }
            }
        }
        for entry in &page.entries {
            self.booked.entry(entry.uid.clone()).or_default().push(name.clone());
            if page.is_founded && self.pods.contains_key(&entry.uid) {
                self.witnessed.insert(entry.uid.clone(), (name.clone(), entry.clone()));
            }
        }
        let gpus = kube.gpus();
        // Indices shift if a GPU is lost.
        let is_other = before.as_ref().is_none_or(|state| state.kube.node != kube.node || state.gpus != gpus);
        let over = before.map(|state| state.over).unwrap_or_default();
        self.nodes.insert(name, NodeState { kube, version, page, gpus, fault, over });
        is_other
    }

    fn take_node(&mut self, name: &str) -> bool {
        let Some(state) = self.nodes.remove(name) else { return false };
        for entry in &state.page.entries {
            if let Some(names) = self.booked.get_mut(&entry.uid) {
                names.retain(|other| other != name);
                if names.is_empty() {
                    self.booked.remove(&entry.uid);
                }
            }
        }
        true
    }

    /// Builds the desk from the present nodes.
    fn rebuild(&mut self) {
        let nodes: Vec<Node> = self.nodes.values().map(|state| state.kube.node.clone()).collect();
        self.desk = self.desk.rebuilt(nodes);
        for state in self.nodes.values() {
            self.desk.set_open(&state.kube.node.name, state.is_open());
        }
        self.settle_all();
    }

    fn settle_all(&mut self) {
        // Bound pods come first, because they are facts.
        let bound: Vec<String> = self.bound.values().flatten().cloned().collect();
        let booked: Vec<String> = self.booked.keys().cloned().collect();
        let assumed: Vec<String> = self.assumed.keys().cloned().collect();
        for uid in bound.iter().chain(&booked).chain(&assumed) {
            self.settle(uid);
        }
    }
}

/// A version as a number. Versions of one API server grow. A version that is not a number counts as the highest.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(u64::MAX)
}
