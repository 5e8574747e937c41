//! Answers the scheduler's calls: filter and prioritize choose the node, and bind binds the pod.
//!
//! Filter picks the policy's best node and assumes the pod there. Bind carries that out ([`crate::bind`]). An
//! assumption that is not bound in time is dropped. The account is rebuilt from the API server ([`crate::account`]).

use crate::account::Account;
use crate::api::{self, Api};
use crate::auto::{Auto, Sizer, Sizes};
use crate::bind::Binder;
use crate::log::Log;
use crate::metrics::{Gauges, Metrics};
use crate::objects;
use crate::retry::Retries;
use crate::watch::{Listener, Progress};
use gapless_fleet::sim::Cause;
use gapless_fleet::words::{Request, Share};
use gapless_trace::Bytes;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::limits::SIZED_WITHIN;
use crate::target::Target;

pub use crate::limits::ASSUMED_FOR;

const UNSIZED: &str = "the size that gpu-memory: auto stands for is being worked out: the pod is tried again";

/// The extender.
#[derive(Debug)]
pub struct Extender {
    api: Arc<Api>,
    account: Mutex<Account>,
    binder: Binder,
    pub metrics: Metrics,
    pub nodes: Progress,
    pub pods: Progress,
    log: Log,
    sizes: Sizes,
    retries: Retries,
}

impl Extender {
    pub fn new(api: Arc<Api>) -> Extender {
        Extender {
            api,
            account: Mutex::default(),
            binder: Binder::default(),
            metrics: Metrics::default(),
            nodes: Progress::default(),
            pods: Progress::default(),
            log: Log::default(),
            sizes: Sizes::default(),
            retries: Retries::default(),
        }
    }

    /// Adds the sizer for `gapless.dev/gpu-memory: auto`.
    #[must_use]
    pub fn with_sizer(mut self, sizer: Box<dyn Sizer>) -> Extender {
        self.sizes = Sizes::new(sizer);
        self
    }

    /// Writes no log.
    pub fn silence(&self) {
        self.log.silence();
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_ready(&self) -> bool {
        self.nodes.listed.load(Ordering::Acquire) && self.pods.listed.load(Ordering::Acquire)
    }

    /// The GPUs of a pod that is assumed on a node.
    pub fn assumed_gpus(&self, uid: &str) -> Option<Vec<u16>> {
        self.account().assumption(uid).map(|assumed| assumed.place.gpus.clone())
    }

    /// Proves the account.
    pub fn check(&self) -> Result<(), String> {
        self.account().desk().check()
    }

    pub fn gauges(&self) -> Gauges {
        let sum = |of: fn(&Progress) -> &AtomicU64| {
            of(&self.nodes).load(Ordering::Relaxed) + of(&self.pods).load(Ordering::Relaxed)
        };
        let account = self.account();
        let (free_milli, total_milli) = account.desk().free();
        Gauges {
            free_milli,
            total_milli,
            pods: account.desk().pods() as u64,
            known: account.known() as u64,
            assumed: account.assumed() as u64,
            over_booked: account.conflicts,
            closed: account.closed() as u64,
            closed_nodes: account.closed_nodes(),
            lists: sum(|progress| &progress.lists),
            troubles: sum(|progress| &progress.troubles),
        }
    }

    /// The size for `auto`, if it is known soon.
    fn size(&self, auto: &Auto) -> Option<Result<u64, String>> {
        api::waiting(|| self.sizes.within(&self.api, auto, SIZED_WITHIN))
    }

    /// The answer to `filter`.
    pub fn filter(&self, args: &Value) -> Value {
        let names = node_names(args);
        let mut pod = objects::pod(member(args, "Pod"));
        if let Some(auto) = &pod.auto {
            let size = self.size(auto);
            let target = Target { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid, node: "" };
            if size.is_none() && target.is_pod() {
                self.retries.later(target, Instant::now());
            }
            let size = size.unwrap_or_else(|| Err(UNSIZED.to_owned()));
            self.account().set_size(&pod.uid, size.clone());
            pod.set_size(size);
        }
        let failed = |why: &str| {
            let all: serde_json::Map<String, Value> =
                names.iter().map(|name| ((*name).to_owned(), json!(why))).collect();
            json!({"NodeNames": [], "Nodes": null, "FailedNodes": all, "Error": ""})
        };
        let request = match &pod.request {
            Ok(Some(request)) => request,
            // The pod asks for no GPU memory, so the scheduler decides alone.
            Ok(None) => return keep(args, &names),
            Err(what) => {
                self.metrics.refused.fetch_add(1, Ordering::Relaxed);
                return failed(what);
            }
        };
        if pod.uid.is_empty() {
            return failed("the pod has no uid");
        }
        let mut account = self.account();
        if let Some(known) = account.pod(&pod.uid).filter(|known| !known.node.is_empty()) {
            // Its place must not be given up for another one.
            let why = format!("the pod is bound to {} already", known.node);
            drop(account);
            return failed(&why);
        }
        match account.choose(&pod.uid, request, &names) {
            Ok(place) => {
                drop(account);
                let members = json!({"pod": pod.full_name(), "node": place.node, "gpus": place.gpus});
                self.log.write("info", "chosen", members);
                keep(args, &[place.node.as_str()])
            }
            Err(cause) => {
                let why = why(&account, request, cause);
                drop(account);
                self.metrics.refused.fetch_add(1, Ordering::Relaxed);
                self.log.write("info", "refused", json!({"pod": pod.full_name(), "why": why}));
                failed(&why)
            }
        }
    }

    /// The answer to `prioritize`: the node that filter chose is the best.
    pub fn prioritize(&self, args: &Value) -> Value {
        let uid = objects::text(member(args, "Pod"), &["metadata", "uid"]);
        let chosen = self.account().assumption(uid).map(|assumed| assumed.place.node.clone());
        let score = |name: &&str| json!({"Host": name, "Score": if chosen.as_deref() == Some(*name) { 10 } else { 0 }});
        Value::Array(node_names(args).iter().map(score).collect())
    }

    /// The answer to `bind`.
    pub fn bind(&self, args: &Value) -> Value {
        let of = |name: &str| member(args, name).as_str().unwrap_or_default();
        let target = Target {
            namespace: of("PodNamespace"),
            name: of("PodName"),
            uid: of("PodUID"),
            node: of("Node"),
        };
        if let Err(what) = target.check() {
            self.metrics.conflicts.fetch_add(1, Ordering::Relaxed);
            self.log.write("warning", "bind refused", json!({"why": what}));
            return json!({"Error": what});
        }
        // After a restart, sizes must be computed again.
        let auto = {
            let account = self.account();
            let is_open = account.assumption(target.uid).is_none();
            account.pod(target.uid).filter(|_| is_open).and_then(|pod| pod.auto.clone())
        };
        if let Some(auto) = auto {
            let size = self.size(&auto).unwrap_or_else(|| Err(UNSIZED.to_owned()));
            self.account().set_size(target.uid, size);
        }
        let result = self.binder.bind(&self.api, &self.account, &self.log, target, &why);
        let pod = format!("{}/{}", target.namespace, target.name);
        match result {
            Ok(()) => {
                self.retries.forget(target.uid);
                self.log.write("info", "bound", json!({"pod": pod, "node": target.node}));
                json!({"Error": ""})
            }
            Err(what) => {
                self.metrics.conflicts.fetch_add(1, Ordering::Relaxed);
                self.log.write(
                    "warning",
                    "bind failed",
                    json!({"pod": pod, "node": target.node, "why": what}),
                );
                // The pod will be scheduled again, by the state at that time.
                let is_waiting = {
                    let mut account = self.account();
                    account.drop_assumption(target.uid);
                    account.pod(target.uid).is_some_and(|pod| pod.node.is_empty())
                };
                if is_waiting {
                    self.retries.later(target, Instant::now());
                }
                json!({"Error": what})
            }
        }
    }

    /// Drops assumptions that were not bound in time.
    pub fn expire(&self, now: Instant) {
        let (expired, left) = {
            let mut account = self.account();
            (account.expire(now), account.left_behind(now))
        };
        self.metrics.expired.fetch_add(expired, Ordering::Relaxed);
        for (node, uids) in left {
            self.binder.check(&self.api, &self.account, &self.log, &node, uids);
        }
    }

    /// Makes the scheduler repeat failed binds whose pause is over.
    pub fn retry(&self, now: Instant) {
        for pod in self.retries.due(now) {
            let is_waiting = self.account().pod(&pod.uid).is_some_and(|known| known.node.is_empty());
            if is_waiting && let Err(error) = pod.touch(&self.api) {
                self.log.write(
                    "warning",
                    "pod not touched",
                    json!({"pod": pod.name, "why": error.to_string()}),
                );
            }
        }
    }

    /// The listener for nodes.
    pub fn node_listener(&self) -> NodeListener<'_> {
        NodeListener(self)
    }

    /// The listener for pods.
    pub fn pod_listener(&self) -> PodListener<'_> {
        PodListener(self)
    }
}

/// The reason why a pod fits nowhere, for the event that its owner reads.
fn why(account: &Account, request: &Request, cause: Cause) -> String {
    if let (Cause::TooLarge, Share::Bytes(bytes)) = (cause, request.share) {
        let largest = account.desk().largest_gpu();
        if bytes > largest {
            let (asked, largest) = (Bytes(bytes), Bytes(largest));
            return format!("the pod asks for {asked} of one GPU; the largest GPU has {largest}");
        }
    }
    format!("Gapless: {}", cause.words())
}

/// Only these of the candidates, in the form in which they came.
fn keep(args: &Value, names: &[&str]) -> Value {
    let nodes = member(args, "Nodes");
    if nodes.is_null() {
        return json!({"NodeNames": names, "Nodes": null, "FailedNodes": {}, "Error": ""});
    }
    let items = member(nodes, "Items").as_array().map(Vec::as_slice).unwrap_or_default();
    let kept: Vec<&Value> =
        items.iter().filter(|node| names.contains(&objects::text(node, &["metadata", "name"]))).collect();
    json!({"Nodes": {"items": kept}, "NodeNames": names, "FailedNodes": {}, "Error": ""})
}

/// A member by its name in any letter case, as Go matches JSON members.
fn member<'a>(object: &'a Value, name: &str) -> &'a Value {
    static NOTHING: Value = Value::Null;
    let members = object.as_object();
    let found = members.and_then(|members| members.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)));
    found.map_or(&NOTHING, |(_, value)| value)
}

/// The names of the candidates.
fn node_names(args: &Value) -> Vec<&str> {
    if let Some(names) = member(args, "NodeNames").as_array() {
        return names.iter().filter_map(Value::as_str).collect();
    }
    let items = member(member(args, "Nodes"), "Items").as_array().map(Vec::as_slice).unwrap_or_default();
    items
        .iter()
        .map(|node| objects::text(node, &["metadata", "name"]))
        .filter(|name| !name.is_empty())
        .collect()
}

#[derive(Debug)]
pub struct NodeListener<'a>(&'a Extender);

#[derive(Debug)]
pub struct PodListener<'a>(&'a Extender);

impl Listener for NodeListener<'_> {
    fn replace(&self, objects: &[Value]) {
        self.0.account().replace_nodes(objects, &self.0.log);
    }

    fn changed(&self, object: &Value) {
        self.0.account().see_node(object, &self.0.log);
    }

    fn deleted(&self, object: &Value) {
        self.0.account().forget_node(objects::text(object, &["metadata", "name"]));
    }

    fn reached(&self, _version: &str) {}

    fn trouble(&self, what: &str) {
        self.0.log.write("warning", "API server", json!({"why": what}));
    }
}

impl Listener for PodListener<'_> {
    fn replace(&self, objects: &[Value]) {
        self.0.account().replace_pods(objects, &self.0.log);
    }

    fn changed(&self, object: &Value) {
        self.0.account().see_pod(objects::pod(object), &self.0.log);
    }

    fn deleted(&self, object: &Value) {
        self.0.account().forget_pod(objects::text(object, &["metadata", "uid"]));
    }

    fn reached(&self, _version: &str) {}

    fn trouble(&self, what: &str) {
        self.0.log.write("warning", "API server", json!({"why": what}));
    }
}
