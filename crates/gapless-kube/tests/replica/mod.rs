//! A replica of the extender over the fake API server, and helpers for tests of both.

use crate::fake::Fake;
use gapless_kube::api::{Address, Api};
use gapless_kube::book::{BOOKINGS, page, written};
use gapless_kube::extender::Extender;
use gapless_kube::{http, serve};
use gapless_ledger::promise::{Amount, Entry};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A replica of the extender, which ends as by a kill, without saving its state.
pub(crate) struct Replica {
    port: u16,
    stop: Arc<AtomicBool>,
    pub(crate) extender: Arc<Extender>,
}

impl Replica {
    pub(crate) fn start(fake: &Fake) -> Replica {
        Replica::with(fake, |extender| extender)
    }

    pub(crate) fn with(fake: &Fake, more: impl FnOnce(Extender) -> Extender) -> Replica {
        let address = Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None };
        let api = Arc::new(Api::new(address));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stop = Arc::new(AtomicBool::new(false));
        let extender = Arc::new(more(Extender::new(Arc::clone(&api))));
        extender.silence();
        let (flag, shared) = (Arc::clone(&stop), Arc::clone(&extender));
        std::thread::spawn(move || serve::serve_with(&shared, &listener, None, &api, &flag));
        let replica = Replica { port, stop, extender };
        replica.wait("it is ready", |replica| replica.extender.is_ready());
        replica
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until a condition holds.
    pub(crate) fn wait(&self, what: &str, is_true: impl Fn(&Replica) -> bool) {
        let began = Instant::now();
        while !is_true(self) {
            assert!(began.elapsed() < Duration::from_secs(60), "it never came true that {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let mut connection: http::Connection = BufReader::new(Box::new(stream));
        let mut response =
            http::ask(&mut connection, method, "localhost", path, &[], body).expect("an answer");
        let mut text = Vec::new();
        response.body.read_all(&mut connection, &mut text).expect("a body");
        (response.status, text)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.ask("POST", path, body.to_string().as_bytes());
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&text));
        serde_json::from_slice(&text).expect("JSON")
    }

    pub(crate) fn filter(&self, fake: &Fake, pod: &Value) -> Value {
        let nodes = fake.all("nodes");
        let names: Vec<&Value> = nodes.iter().map(|node| &node["metadata"]["name"]).collect();
        self.post("/filter", &json!({"Pod": pod, "NodeNames": names}))
    }

    pub(crate) fn bind(&self, pod: &Value, node: &str) -> String {
        let of = &pod["metadata"];
        let args = json!({"PodName": of["name"], "PodNamespace": of["namespace"], "PodUID": of["uid"], "Node": node});
        self.post("/bind", &args)["Error"].as_str().unwrap_or_default().to_owned()
    }

    /// Filter and bind, as the scheduler does; the node if it worked.
    pub(crate) fn schedule(&self, fake: &Fake, pod: &Value) -> Option<String> {
        let node = self.filter(fake, pod)["NodeNames"][0].as_str()?.to_owned();
        self.bind(pod, &node).is_empty().then_some(node)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

pub(crate) const GIB: u64 = 1 << 30;

/// The bytes that bound pods hold on each GPU, which is known by its UUID, by the pods' own annotations.
pub(crate) fn held(fake: &Fake) -> BTreeMap<(String, String), u64> {
    let mut held = BTreeMap::new();
    for pod in fake.all("pods") {
        let notes = &pod["metadata"]["annotations"];
        if let (Some(node), Some(gpus)) =
            (pod["spec"]["nodeName"].as_str(), notes["gapless.dev/gpu-uuids"].as_str())
        {
            assert_eq!(notes["gapless.dev/node"], node);
            let bytes: u64 =
                notes["gapless.dev/gpu-booked"].as_str().expect("bytes").parse().expect("a number");
            for gpu in gpus.split(',') {
                *held.entry((node.to_owned(), gpu.to_owned())).or_default() += bytes;
            }
        }
    }
    held
}

pub(crate) fn none_is_over_booked(fake: &Fake, capacity: u64) {
    for ((node, gpu), bytes) in held(fake) {
        assert!(bytes <= capacity, "GPU {gpu} of {node} lends {bytes} of {capacity}");
    }
}

pub(crate) fn asks(size: &str) -> Value {
    json!({"gapless.dev/gpu-memory": size})
}

/// Writes annotations of an object by hand; null removes one.
pub(crate) fn edit(fake: &Fake, path: &str, annotations: &Value) {
    let address = Address { host: "127.0.0.1".to_owned(), port: fake.port, tls: None, token: None };
    Api::new(address).patch(path, &json!({"metadata": {"annotations": annotations}})).expect("it is there");
}

/// The entries on a node's page, as they are written.
pub(crate) fn bookings(fake: &Fake, node: &str) -> Value {
    let object = fake.get(&format!("/api/v1/nodes/{node}")).expect("the node");
    let text = object["metadata"]["annotations"][BOOKINGS].as_str().unwrap_or("{}");
    let mut all: Value = serde_json::from_str(text).expect("JSON");
    all.as_object_mut().expect("a page").remove("");
    all
}

/// Books a GPU for a pod as another replica would.
pub(crate) fn book(fake: &Fake, node: &str, pod: &str, gpu: u16, gib: u64) {
    let object = fake.get(&format!("/api/v1/nodes/{node}")).expect("the node");
    let seen = fake.get(&format!("/api/v1/namespaces/default/pods/{pod}")).expect("the pod");
    let mut entries = page(&object).expect("a page").entries;
    let name = format!("GPU-{node}-{gpu}");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    entries.push(Entry {
        uid: text(&seen["metadata"]["uid"]),
        pod: format!("default/{pod}"),
        gpus: vec![name],
        amount: Amount::Bytes(gib * GIB),
        seen: text(&seen["metadata"]["resourceVersion"]),
    });
    let text = written(&text(&object["metadata"]["uid"]), &entries);
    edit(fake, &format!("/api/v1/nodes/{node}"), &json!({ BOOKINGS: text }));
}
