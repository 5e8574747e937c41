//! What the scheduler asks: which node (filter, prioritize), and to bind the pod there.
//!
//! Filter picks the one node that the policy wants and assumes the pod there. Bind makes it true: it books the GPUs on
//! the node object ([`crate::book`]), writes them to the pod, and binds the pod. An assumption that is not bound in
//! time is dropped. The account is rebuilt from the API server: after a restart, bound pods are where their annotations
//! say.

use crate::api::{Api, ApiError};
use crate::book::{self, Entry};
use crate::metrics::{Gauges, Metrics};
use crate::objects::{self, BOOKED, INDICES, KubePod, NODE, UUIDS};
use crate::watch::{Listener, Progress};
use gapless_fleet::desk::{Desk, Place};
use gapless_fleet::sim::Cause;
use gapless_fleet::words::{Request, Share};
use gapless_trace::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A pod that is assumed on a node and not bound for so long is forgotten. The clock is monotonic.
pub const ASSUMED_FOR: Duration = Duration::from_secs(300);

/// The extender.
#[derive(Debug)]
pub struct Extender {
    api: Arc<Api>,
    desk: Desk,
    known: Mutex<Known>,
    pub metrics: Metrics,
    pub nodes: Progress,
    pub pods: Progress,
    quiet: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// Pods that have a place and are not bound yet.
    assumed: FxHashMap<String, (Place, Instant)>,
    /// Names of the GPUs of each node.
    uuids: FxHashMap<String, Vec<String>>,
    nodes: FxHashSet<String>,
    /// Pods that the API server knows, with their name; those whose node is not known yet wait.
    pods: FxHashMap<String, String>,
    waiting: FxHashMap<String, KubePod>,
}

impl Extender {
    pub fn new(api: Arc<Api>) -> Extender {
        Extender {
            api,
            desk: Desk::new(Vec::new()),
            known: Mutex::new(Known::default()),
            metrics: Metrics::default(),
            nodes: Progress::default(),
            pods: Progress::default(),
            quiet: AtomicBool::new(false),
        }
    }

    /// Writes no log.
    pub fn silence(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_ready(&self) -> bool {
        self.nodes.listed.load(Ordering::Acquire) && self.pods.listed.load(Ordering::Acquire)
    }

    /// Proves the account.
    pub fn check(&self) -> Result<(), String> {
        self.desk.check()
    }

    pub fn gauges(&self) -> Gauges {
        let (free_milli, total_milli) = self.desk.free();
        let sum = |of: fn(&Progress) -> &std::sync::atomic::AtomicU64| {
            of(&self.nodes).load(Ordering::Relaxed) + of(&self.pods).load(Ordering::Relaxed)
        };
        Gauges {
            free_milli,
            total_milli,
            pods: self.desk.pods() as u64,
            assumed: self.known().assumed.len() as u64,
            lists: sum(|progress| &progress.lists),
            troubles: sum(|progress| &progress.troubles),
        }
    }

    /// One line of the log, as JSON.
    pub fn log(&self, level: &str, event: &str, members: Value) {
        if self.quiet.load(Ordering::Relaxed) {
            return;
        }
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut line = json!({"time": since.as_secs_f64(), "level": level, "event": event});
        if let (Value::Object(line), Value::Object(members)) = (&mut line, members) {
            line.extend(members);
        }
        eprintln!("{line}");
    }

    /// The answer to `filter`.
    pub fn filter(&self, args: &Value) -> Value {
        let names = node_names(args);
        let pod = objects::pod(member(args, "Pod"));
        let failed = |why: &str| {
            let all: serde_json::Map<String, Value> =
                names.iter().map(|name| ((*name).to_owned(), json!(why))).collect();
            json!({"NodeNames": [], "Nodes": null, "FailedNodes": all, "Error": ""})
        };
        let request = match &pod.request {
            Ok(Some(request)) => request,
            // Not for us: the scheduler decides alone.
            Ok(None) => return self.keep(args, &names),
            Err(what) => {
                self.metrics.refused.fetch_add(1, Ordering::Relaxed);
                return failed(what);
            }
        };
        if pod.uid.is_empty() {
            return failed("the pod has no uid");
        }
        // Asked again: the old place may not be among the candidates any more. The same holds for a place that was
        // written to the pod and never bound.
        if pod.node.is_empty() {
            self.known().assumed.remove(&pod.uid);
            self.desk.delete(&pod.uid);
        }
        match self.desk.create_among(&pod.uid, request, &names) {
            Ok(place) => {
                let node = place.node.clone();
                self.known().assumed.insert(pod.uid.clone(), (place, Instant::now()));
                self.keep(args, &[node.as_str()])
            }
            Err(cause) => {
                self.metrics.refused.fetch_add(1, Ordering::Relaxed);
                let why = self.why(request, cause);
                self.log(
                    "info",
                    "refused",
                    json!({"pod": format!("{}/{}", pod.namespace, pod.name), "why": why}),
                );
                failed(&why)
            }
        }
    }

    /// Why a pod fits nowhere, for the event that its owner reads.
    fn why(&self, request: &Request, cause: Cause) -> String {
        if let (Cause::TooLarge, Share::Bytes(bytes)) = (cause, request.share) {
            let largest = self.desk.largest_gpu();
            if bytes > largest {
                let (asked, largest) = (Bytes(bytes), Bytes(largest));
                return format!("the pod asks for {asked} of one GPU; the largest GPU has {largest}");
            }
        }
        format!("Gapless: {}", cause.words())
    }

    /// Only these of the candidates, in the form in which they came.
    fn keep(&self, args: &Value, names: &[&str]) -> Value {
        let nodes = member(args, "Nodes");
        if nodes.is_null() {
            return json!({"NodeNames": names, "Nodes": null, "FailedNodes": {}, "Error": ""});
        }
        let items = member(nodes, "Items").as_array().map(Vec::as_slice).unwrap_or_default();
        let kept: Vec<&Value> =
            items.iter().filter(|node| names.contains(&objects::text(node, &["metadata", "name"]))).collect();
        json!({"Nodes": {"items": kept}, "NodeNames": names, "FailedNodes": {}, "Error": ""})
    }

    /// The answer to `prioritize`: the node that filter chose is the best.
    pub fn prioritize(&self, args: &Value) -> Value {
        let uid = objects::text(member(args, "Pod"), &["metadata", "uid"]);
        let chosen = self.known().assumed.get(uid).map(|(place, _)| place.node.clone());
        let score = |name: &&str| json!({"Host": name, "Score": if chosen.as_deref() == Some(*name) { 10 } else { 0 }});
        Value::Array(node_names(args).iter().map(score).collect())
    }

    /// The answer to `bind`.
    pub fn bind(&self, args: &Value) -> Value {
        let of = |name: &str| member(args, name).as_str().unwrap_or_default().to_owned();
        let (namespace, name, uid, node) = (of("PodNamespace"), of("PodName"), of("PodUID"), of("Node"));
        let result = self.bind_to(&namespace, &name, &uid, &node);
        let pod = format!("{namespace}/{name}");
        match result {
            Ok(()) => {
                self.log("info", "bound", json!({"pod": pod, "node": node}));
                json!({"Error": ""})
            }
            Err(what) => {
                self.metrics.conflicts.fetch_add(1, Ordering::Relaxed);
                self.log("warning", "bind failed", json!({"pod": pod, "node": node, "why": what}));
                // The pod is scheduled again, on what is true then.
                if self.known().assumed.remove(&uid).is_some() {
                    self.desk.delete(&uid);
                }
                json!({"Error": what})
            }
        }
    }

    fn bind_to(&self, namespace: &str, name: &str, uid: &str, node: &str) -> Result<(), String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let object = self.api.get(&path).map_err(|error| error.to_string())?;
        let pod = objects::pod(&object);
        if pod.uid != uid {
            return Err(format!("pod {namespace}/{name} was deleted and made anew since it was scheduled"));
        }
        if !pod.node.is_empty() {
            return if pod.node == node {
                Ok(())
            } else {
                Err(format!("it is bound to {} already", pod.node))
            };
        }
        let Some(request) = pod.request? else { return self.bind_object(&path, name, uid, node) };
        // After a restart the assumption is lost, but the node is the scheduler's choice.
        let place =
            self.desk.create_among(uid, &request, &[node]).map_err(|cause| self.why(&request, cause))?;
        if place.node != node {
            return Err(format!("Gapless has assumed it on {}, not on {node}", place.node));
        }
        self.known().assumed.insert(uid.to_owned(), (place.clone(), Instant::now()));
        let entry = Entry {
            uid: uid.to_owned(),
            pod: format!("{namespace}/{name}"),
            gpus: place.gpus.clone(),
            units: place.units,
        };
        book::add(&self.api, node, &entry, &|pod, uid| self.is_gone(pod, uid))
            .map_err(|error| error.to_string())?;
        let bound =
            self.note_on_pod(&path, &object, &place).and_then(|()| self.bind_object(&path, name, uid, node));
        if bound.is_err() {
            // Without the booking the GPU is free for others at once. If this fails too, the booking is cleared when it
            // is in the way.
            let _ = book::remove(&self.api, node, uid);
        } else if let Some((_, when)) = self.known().assumed.get_mut(uid) {
            *when = Instant::now();
        }
        bound
    }

    /// Writes the GPUs to the pod, if it is still the pod that was read.
    fn note_on_pod(&self, path: &str, object: &Value, place: &Place) -> Result<(), String> {
        let indices: Vec<String> = place.gpus.iter().map(u16::to_string).collect();
        let uuids = self.known().uuids.get(&place.node).map(|all| {
            let names = place.gpus.iter().filter_map(|&gpu| all.get(gpu as usize).cloned());
            names.collect::<Vec<_>>().join(",")
        });
        let mut version = objects::text(object, &["metadata", "resourceVersion"]).to_owned();
        let uid = objects::text(object, &["metadata", "uid"]);
        for _ in 0..5 {
            let body = json!({"metadata": {"uid": uid, "resourceVersion": version, "annotations": {
                NODE: place.node,
                INDICES: indices.join(";"),
                BOOKED: place.units.to_string(),
                UUIDS: uuids.clone().unwrap_or_default(),
            }}});
            match self.api.patch(path, &body) {
                Ok(_) => return Ok(()),
                Err(error) if error.status() == Some(409) => {
                    let again = self.api.get(path).map_err(|error| error.to_string())?;
                    if objects::text(&again, &["metadata", "uid"]) != uid {
                        return Err("the pod was deleted and made anew".to_owned());
                    }
                    if !objects::text(&again, &["spec", "nodeName"]).is_empty() {
                        return Err("another scheduler has bound the pod".to_owned());
                    }
                    objects::text(&again, &["metadata", "resourceVersion"]).clone_into(&mut version);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the pod changes all the time".to_owned())
    }

    fn bind_object(&self, path: &str, name: &str, uid: &str, node: &str) -> Result<(), String> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        match self.api.post(&format!("{path}/binding"), &body) {
            Ok(_) => Ok(()),
            Err(error) => {
                // An answer that was lost on its way, or a bind that came first.
                let object = self.api.get(path).map_err(|_| error.to_string())?;
                let is_ours = objects::text(&object, &["metadata", "uid"]) == uid
                    && objects::text(&object, &["spec", "nodeName"]) == node;
                if is_ours { Ok(()) } else { Err(error.to_string()) }
            }
        }
    }

    /// Whether a pod is gone for good: only what the API server says counts.
    fn is_gone(&self, pod: &str, uid: &str) -> bool {
        let Some((namespace, name)) = pod.split_once('/') else { return false };
        match self.api.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}")) {
            Ok(object) => {
                let now = objects::pod(&object);
                now.uid != uid || now.finished
            }
            Err(ApiError::Status { status: 404, .. }) => true,
            Err(_) => false,
        }
    }

    /// Drops assumptions that were not bound in time.
    pub fn expire(&self, now: Instant) {
        let mut known = self.known();
        let old: Vec<String> = known
            .assumed
            .iter()
            .filter(|(_, (_, when))| now.saturating_duration_since(*when) > ASSUMED_FOR)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in old {
            known.assumed.remove(&uid);
            self.desk.delete(&uid);
            self.metrics.expired.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn see_node(&self, object: &Value) {
        let name = objects::text(object, &["metadata", "name"]).to_owned();
        match objects::node(object) {
            Ok(kube) => {
                let waiting: Vec<KubePod> = {
                    let mut known = self.known();
                    known.uuids.insert(name.clone(), kube.uuids.clone());
                    known.nodes.insert(name.clone());
                    let ready = known.waiting.iter().filter(|(_, pod)| place_of(pod) == name);
                    let ids: Vec<String> = ready.map(|(uid, _)| uid.clone()).collect();
                    ids.iter().filter_map(|uid| known.waiting.remove(uid)).collect()
                };
                let is_same = self.desk.add_node(kube.node);
                if !is_same {
                    self.log("warning", "node changed", json!({"node": name, "why":
                        "its capacities are other ones than before; it gets no more pods until Gapless restarts"}));
                }
                if !kube.schedulable || !is_same {
                    self.desk.close_node(&name);
                }
                for pod in waiting {
                    self.see_pod(pod);
                }
            }
            Err(what) => {
                self.log("warning", "node refused", json!({"node": name, "why": what}));
                self.desk.close_node(&name);
            }
        }
    }

    fn see_pod(&self, pod: KubePod) {
        if pod.finished {
            self.forget_pod(&pod.uid);
            return;
        }
        let node = place_of(&pod);
        if node.is_empty() || pod.uid.is_empty() {
            return;
        }
        let (request, gpus) = match (&pod.request, &pod.booked) {
            (Ok(Some(request)), Some((_, gpus))) => (request.clone(), gpus.clone()),
            _ => (pod.plain.clone(), Vec::new()),
        };
        {
            let mut known = self.known();
            known.pods.insert(pod.uid.clone(), format!("{}/{}", pod.namespace, pod.name));
            if !known.nodes.contains(&node) {
                known.waiting.insert(pod.uid.clone(), pod);
                return;
            }
            if !pod.node.is_empty() {
                // Bound: the assumption has come true.
                known.assumed.remove(&pod.uid);
            } else if let Some((node, gpus)) = &pod.booked {
                // Booked by a bind that is under way, here or in another replica, or that never ended: it may expire.
                let place = Place { node: node.clone(), gpus: gpus.clone(), units: 0 };
                known.assumed.entry(pod.uid.clone()).or_insert_with(|| (place, Instant::now()));
            }
        }
        if let Some(place) = self.desk.find(&pod.uid) {
            if place.node == node && place.gpus == gpus {
                return;
            }
            self.desk.delete(&pod.uid);
        }
        if let Err(error) = self.desk.restore(&pod.uid, &node, &request, &gpus) {
            let is_ours = request.gpus > 0;
            // Others may use more CPUs than a node says it has; a GPU that is booked twice is another matter.
            if is_ours {
                self.metrics.conflicts.fetch_add(1, Ordering::Relaxed);
                self.desk.close_node(&node);
                self.log("error", "over-booked", json!({"pod": format!("{}/{}", pod.namespace, pod.name), "node": node,
                    "why": error.to_string(), "help": "the node gets no more pods; delete one of the pods on this GPU"}));
            }
        }
    }

    fn forget_pod(&self, uid: &str) {
        let mut known = self.known();
        known.assumed.remove(uid);
        known.pods.remove(uid);
        known.waiting.remove(uid);
        drop(known);
        self.desk.delete(uid);
    }

    /// Hears of nodes.
    pub fn node_listener(&self) -> NodeListener<'_> {
        NodeListener(self)
    }

    /// Hears of pods.
    pub fn pod_listener(&self) -> PodListener<'_> {
        PodListener(self)
    }
}

/// The node that a pod is on: bound, or booked and about to be.
fn place_of(pod: &KubePod) -> String {
    if !pod.node.is_empty() {
        return pod.node.clone();
    }
    pod.booked.as_ref().map(|(node, _)| node.clone()).unwrap_or_default()
}

/// A member by its name, in any case: Go writes and reads it so.
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
        let there: FxHashSet<&str> =
            objects.iter().map(|node| objects::text(node, &["metadata", "name"])).collect();
        let gone: Vec<String> =
            self.0.known().nodes.iter().filter(|name| !there.contains(name.as_str())).cloned().collect();
        for name in gone {
            self.0.desk.close_node(&name);
        }
        objects.iter().for_each(|object| self.0.see_node(object));
    }

    fn changed(&self, object: &Value) {
        self.0.see_node(object);
    }

    fn deleted(&self, object: &Value) {
        self.0.desk.close_node(objects::text(object, &["metadata", "name"]));
    }

    fn trouble(&self, what: &str) {
        self.0.log("warning", "API server", json!({"why": what}));
    }
}

impl Listener for PodListener<'_> {
    fn replace(&self, objects: &[Value]) {
        let there: FxHashSet<&str> =
            objects.iter().map(|pod| objects::text(pod, &["metadata", "uid"])).collect();
        let gone: Vec<String> =
            self.0.known().pods.keys().filter(|uid| !there.contains(uid.as_str())).cloned().collect();
        gone.iter().for_each(|uid| self.0.forget_pod(uid));
        objects.iter().for_each(|object| self.0.see_pod(objects::pod(object)));
    }

    fn changed(&self, object: &Value) {
        self.0.see_pod(objects::pod(object));
    }

    fn deleted(&self, object: &Value) {
        self.0.forget_pod(objects::text(object, &["metadata", "uid"]));
    }

    fn trouble(&self, what: &str) {
        self.0.log("warning", "API server", json!({"why": what}));
    }
}
