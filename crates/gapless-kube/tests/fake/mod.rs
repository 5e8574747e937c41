//! A fake API server: nodes, pods and slices in memory, versions, watches, preconditions, bindings, faults on demand.

use gapless_kube::http::{Connection, Request, read_request, write_response};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Store {
    version: u64,
    /// Versions up to this one are forgotten, so watches from them get 410.
    forgotten: u64,
    /// Grows with each restore from a backup.
    epoch: u64,
    /// The prefix of versions.
    mark: &'static str,
    /// Objects by path.
    objects: BTreeMap<String, Value>,
    events: Vec<(u64, &'static str, String, Value)>,
}

pub(crate) struct Fake {
    pub(crate) port: u16,
    store: Mutex<Store>,
    changed: Condvar,
    stop: AtomicBool,
    /// Every n-th call is dropped without an answer, after it was carried out; 0: none.
    pub(crate) drop_every: AtomicU64,
    /// Every n-th call is refused for now (429); 0: none.
    pub(crate) busy_every: AtomicU64,
    /// If set, bindings are carried out but not answered, and later reads of pods are refused (429).
    pub(crate) loses_bindings: AtomicBool,
    has_lost: AtomicBool,
    /// What happens at the call with this number, if that is set.
    pub(crate) fault: Mutex<Option<(u64, Fault)>>,
    /// True if there are ResourceSlices; `shares` is true if their GPUs can be shared.
    pub(crate) has_dra: AtomicBool,
    pub(crate) shares: AtomicBool,
    pub(crate) calls: AtomicU64,
    /// What was called, as roles name it: a verb, the API group, and a resource.
    pub(crate) used: Mutex<BTreeSet<[String; 3]>>,
    /// Bindings that were carried out.
    pub(crate) bound: AtomicU64,
}

pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// A call that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// True if the call is carried out all the same.
    pub(crate) is_done: bool,
    /// The status and the body of the answer; `None`: the connection ends without one.
    pub(crate) answer: Option<(u16, &'static str)>,
}

impl Fake {
    pub(crate) fn start() -> Arc<Fake> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let fake = Arc::new(Fake {
            port,
            store: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            drop_every: AtomicU64::new(0),
            busy_every: AtomicU64::new(0),
            loses_bindings: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            fault: Mutex::default(),
            has_dra: AtomicBool::new(true),
            shares: AtomicBool::new(true),
            calls: AtomicU64::new(0),
            used: Mutex::default(),
            bound: AtomicU64::new(0),
        });
        let server = Arc::clone(&fake);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if server.stop.load(Ordering::Relaxed) {
                    break;
                }
                let (server, Ok(stream)) = (Arc::clone(&server), stream) else { continue };
                std::thread::spawn(move || server.connection(stream));
            }
        });
        fake
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }

    pub(crate) fn node(&self, name: &str, gpus: u32, gib: u64) {
        self.node_of(name, &format!("uid-{name}"), gpus, gib);
    }

    /// A node whose object has this uid.
    pub(crate) fn node_of(&self, name: &str, uid: &str, gpus: u32, gib: u64) {
        let uuids: Vec<String> = (0..gpus).map(|gpu| format!("GPU-{name}-{gpu}")).collect();
        self.put(
            &format!("/api/v1/nodes/{name}"),
            json!({
                "metadata": {"name": name, "uid": uid, "annotations": {
                    "gapless.dev/gpus": gpus.to_string(),
                    "gapless.dev/gpu-memory": format!("{gib}GiB"),
                    "gapless.dev/gpu-model": "H200",
                    "gapless.dev/gpu-uuids": uuids.join(","),
                }},
                "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}},
            }),
        );
    }

    pub(crate) fn pod(&self, name: &str, annotations: &Value) -> Value {
        let object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "annotations": annotations},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
            "status": {"phase": "Pending"},
        });
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        self.put(&path, object);
        self.get(&path).expect("it was put")
    }

    pub(crate) fn config_map(&self, name: &str, data: &Value) {
        self.put(
            &format!("/api/v1/namespaces/default/configmaps/{name}"),
            json!({"metadata": {"name": name}, "data": data}),
        );
    }

    pub(crate) fn claim(&self, name: &str, object: Value) {
        self.put(&format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"), object);
    }

    fn put(&self, path: &str, object: Value) {
        let mut store = self.store.lock().expect("no panic");
        let kind = if store.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        store.write(kind, path, object);
        self.changed.notify_all();
    }

    /// Writes an annotation, without a call, if the object is there.
    pub(crate) fn note(&self, path: &str, name: &str, value: &str) {
        self.notes(path, &[(name, value)]);
    }

    /// Writes annotations at once, without a call, if the object is there.
    pub(crate) fn notes(&self, path: &str, notes: &[(&str, &str)]) {
        let mut store = self.store.lock().expect("no panic");
        if let Some(mut object) = store.objects.get(path).cloned() {
            for (name, value) in notes {
                object["metadata"]["annotations"][*name] = json!(value);
            }
            store.write("MODIFIED", path, object);
        }
        self.changed.notify_all();
    }

    /// Binds a pod without an event for watches.
    pub(crate) fn bind_behind_the_back(&self, name: &str, node: &str, notes: &Value) {
        let mut store = self.store.lock().expect("no panic");
        let object =
            store.objects.get_mut(&format!("/api/v1/namespaces/default/pods/{name}")).expect("the pod");
        object["spec"]["nodeName"] = json!(node);
        for (name, value) in notes.as_object().expect("notes") {
            object["metadata"]["annotations"][name] = value.clone();
        }
    }

    pub(crate) fn delete(&self, path: &str) {
        let mut store = self.store.lock().expect("no panic");
        if let Some(object) = store.objects.remove(path) {
            store.version += 1;
            let version = store.version;
            store.events.push((version, "DELETED", path.to_owned(), object));
        }
        self.changed.notify_all();
    }

    /// Forgets all versions, and ends all watches.
    pub(crate) fn forget(&self) {
        let mut store = self.store.lock().expect("no panic");
        store.forgotten = store.version;
        store.version += 1;
        store.events.clear();
        self.changed.notify_all();
    }

    /// Restores a backup: all versions are small again, and all watches end.
    pub(crate) fn restore(&self) {
        self.restore_from(self.backup());
    }

    pub(crate) fn backup(&self) -> BTreeMap<String, Value> {
        self.store.lock().expect("no panic").objects.clone()
    }

    pub(crate) fn restore_from(&self, objects: BTreeMap<String, Value>) {
        let mut store = self.store.lock().expect("no panic");
        store.epoch += 1;
        (store.forgotten, store.version) = (0, 0);
        store.events.clear();
        store.objects.clear();
        for (path, object) in objects {
            store.write("ADDED", &path, object);
        }
        self.changed.notify_all();
    }

    /// Makes versions that are not numbers from now on.
    pub(crate) fn write_odd_versions(&self) {
        self.store.lock().expect("no panic").mark = "x";
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.store.lock().expect("no panic").objects.get(path).cloned()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<Value> {
        let store = self.store.lock().expect("no panic");
        let of_kind = store.objects.iter().filter(|(path, _)| path.contains(&format!("/{kind}/")));
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    fn connection(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut connection: Connection = BufReader::new(Box::new(stream));
        let epoch = self.store.lock().expect("no panic").epoch;
        while let Ok(Some(request)) = read_request(&mut connection) {
            // Connections end at a restore, because no server runs meanwhile.
            if self.store.lock().expect("no panic").epoch != epoch {
                return;
            }
            self.used.lock().expect("no panic").insert(right(&request));
            if request.path.contains("watch=1") {
                let _ = self.watch(&mut connection, &request.path);
                return;
            }
            let loses = self.loses_bindings.load(Ordering::Relaxed);
            let busy = self.busy_every.load(Ordering::Relaxed);
            let is_busy = busy > 0 && (self.calls.load(Ordering::Relaxed) + 1).is_multiple_of(busy);
            let number = self.calls.load(Ordering::Relaxed) + 1;
            let fault = self.fault.lock().expect("no panic").filter(|(at, _)| *at == number);
            if let Some((_, fault)) = fault {
                if fault.is_done {
                    self.answer(&request);
                }
                self.calls.fetch_add(1, Ordering::Relaxed);
                let Some((status, body)) = fault.answer else { return };
                let body = body.as_bytes();
                if write_response(connection.get_mut(), status, "application/json", body, true).is_err() {
                    return;
                }
                continue;
            }
            let (status, body) = match request.method.as_str() {
                _ if is_busy => (429, json!({"message": "too many requests"})),
                "GET"
                    if loses && self.has_lost.load(Ordering::Relaxed) && request.path.contains("/pods/") =>
                {
                    (429, json!({"message": "too many requests"}))
                }
                _ => self.answer(&request),
            };
            if loses && request.path.ends_with("/binding") {
                self.has_lost.store(true, Ordering::Relaxed);
                return;
            }
            let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let every = self.drop_every.load(Ordering::Relaxed);
            if every > 0 && call.is_multiple_of(every) {
                return;
            }
            let text = body.to_string();
            if write_response(connection.get_mut(), status, "application/json", text.as_bytes(), true)
                .is_err()
            {
                return;
            }
        }
    }

    fn answer(&self, request: &Request) -> (u16, Value) {
        let path = request.path.split('?').next().unwrap_or_default();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let mut store = self.store.lock().expect("no panic");
        match (request.method.as_str(), path) {
            ("GET", "/api/v1/nodes" | "/api/v1/pods") => {
                let kind = path.rsplit('/').next().unwrap_or_default();
                let of_kind = store.objects.iter().filter(|(path, _)| path.contains(&format!("/{kind}/")));
                let items: Vec<&Value> = of_kind.map(|(_, object)| object).collect();
                (200, json!({"metadata": {"resourceVersion": store.text()}, "items": items}))
            }
            (_, _) if path.starts_with(SLICES) => self.slices(&mut store, &request.method, path, body),
            ("GET", _) => match store.objects.get(path) {
                Some(object) => (200, object.clone()),
                None => (404, json!({"message": "not found"})),
            },
            ("PATCH", _) => {
                let Some(mut object) = store.objects.get(path).cloned() else {
                    return (404, json!({"message": "not found"}));
                };
                for name in ["resourceVersion", "uid"] {
                    let wanted = &body["metadata"][name];
                    if !wanted.is_null() && *wanted != object["metadata"][name] {
                        return (409, json!({"message": format!("{name} is another one")}));
                    }
                }
                if let Some(annotations) = body["metadata"]["annotations"].as_object() {
                    for (name, value) in annotations {
                        object["metadata"]["annotations"][name] = value.clone();
                    }
                }
                store.write("MODIFIED", path, object);
                self.changed.notify_all();
                (200, store.objects[path].clone())
            }
            ("POST", _) => {
                let path = path.strip_suffix("/binding").unwrap_or(path);
                let Some(mut object) = store.objects.get(path).cloned() else {
                    return (404, json!({"message": "not found"}));
                };
                let version = &body["metadata"]["resourceVersion"];
                let is_other = !version.is_null() && *version != object["metadata"]["resourceVersion"];
                if body["metadata"]["uid"] != object["metadata"]["uid"]
                    || is_other
                    || !object["spec"]["nodeName"].is_null()
                {
                    return (409, json!({"message": "another pod, or bound already"}));
                }
                self.bound.fetch_add(1, Ordering::Relaxed);
                object["spec"]["nodeName"] = body["target"]["name"].clone();
                // Like the real server, it copies the binding's annotations to the pod.
                if let Some(annotations) = body["metadata"]["annotations"].as_object() {
                    for (name, value) in annotations {
                        object["metadata"]["annotations"][name] = value.clone();
                    }
                }
                store.write("MODIFIED", path, object);
                self.changed.notify_all();
                (201, json!({"status": "Success"}))
            }
            _ => (405, json!({"message": "not allowed"})),
        }
    }

    fn slices(&self, store: &mut Store, method: &str, path: &str, mut body: Value) -> (u16, Value) {
        if !self.has_dra.load(Ordering::Relaxed) {
            return (404, json!({"message": "the server could not find the requested resource"}));
        }
        // Like the real server without the feature gate, it silently drops unknown members.
        if !self.shares.load(Ordering::Relaxed) {
            for device in body["spec"]["devices"].as_array_mut().into_iter().flatten() {
                device.as_object_mut().expect("a device").remove("allowMultipleAllocations");
                device["capacity"]["memory"].as_object_mut().expect("a capacity").remove("requestPolicy");
            }
        }
        match method {
            "GET" => {
                let all = store.objects.iter().filter(|(path, _)| path.starts_with(SLICES));
                let items: Vec<&Value> = all.map(|(_, object)| object).collect();
                (200, json!({"metadata": {"resourceVersion": store.text()}, "items": items}))
            }
            "POST" | "PUT" => {
                let path = format!("{SLICES}/{}", body["metadata"]["name"].as_str().expect("a name"));
                let there = store.objects.get(&path);
                if there.is_some() == (method == "POST") {
                    return (409, json!({"message": "it exists already, or does not"}));
                }
                if there.is_some_and(|old| {
                    old["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]
                }) {
                    return (409, json!({"message": "another version"}));
                }
                store.write("MODIFIED", &path, body);
                (200, store.objects[&path].clone())
            }
            "DELETE" => match store.objects.remove(path) {
                Some(object) => (200, object),
                None => (404, json!({"message": "not found"})),
            },
            _ => (405, json!({"message": "not allowed"})),
        }
    }

    fn watch(&self, connection: &mut Connection, path: &str) -> std::io::Result<()> {
        let out = connection.get_mut();
        out.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let kind = if path.starts_with("/api/v1/nodes") { "/nodes/" } else { "/pods/" };
        let from = path.split("resourceVersion=").nth(1);
        let mut from: u64 = from.and_then(|text| text.trim_start_matches('x').parse().ok()).unwrap_or(0);
        let epoch = self.store.lock().expect("no panic").epoch;
        loop {
            let (lines, is_forgotten) = {
                let store = self.store.lock().expect("no panic");
                let (store, _) =
                    self.changed.wait_timeout(store, Duration::from_millis(200)).expect("no panic");
                let new = store.events.iter().filter(|(version, ..)| *version > from);
                let lines: Vec<String> = new
                    .filter(|(_, _, path, _)| path.contains(kind))
                    .map(|(_, what, _, object)| json!({"type": what, "object": object}).to_string())
                    .collect();
                // A version that is too large is from before the restore.
                let is_forgotten = from < store.forgotten || from > store.version || epoch != store.epoch;
                from = from.max(if is_forgotten { 0 } else { store.version });
                (lines, is_forgotten)
            };
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let mut send =
                |line: &str| write!(out, "{:x}\r\n{line}\n\r\n", line.len() + 1).and_then(|()| out.flush());
            if is_forgotten {
                return send("{\"type\":\"ERROR\",\"object\":{\"code\":410}}");
            }
            for line in lines {
                send(&line)?;
            }
        }
    }
}

/// The right that a call needs.
fn right(request: &Request) -> [String; 3] {
    let path = request.path.split('?').next().unwrap_or_default();
    let mut words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let group = if words[0] == "apis" { words[1] } else { "" };
    words.drain(..if words[0] == "apis" { 3 } else { 2 });
    if words[0] == "namespaces" {
        words.drain(..2);
    }
    let verb = match (request.method.as_str(), words.len()) {
        ("GET", _) if request.path.contains("watch=1") => "watch",
        ("GET", 1) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        _ => "delete",
    };
    let resource = [words.first(), words.get(2)].into_iter().flatten().copied().collect::<Vec<_>>().join("/");
    [verb, group, &resource].map(str::to_owned)
}

impl Store {
    fn text(&self) -> String {
        format!("{}{}", self.mark, self.version)
    }

    fn write(&mut self, kind: &'static str, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.text());
        self.events.push((self.version, kind, path.to_owned(), object.clone()));
        self.objects.insert(path.to_owned(), object);
    }
}
