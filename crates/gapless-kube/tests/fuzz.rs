//! 100,000 damaged requests of the scheduler, and as many damaged answers of the API server, from a seed. None of them
//! panics, hangs, costs much memory or leaves the account wrong.

use gapless_kube::api::{Address, Api};
use gapless_kube::extender::Extender;
use gapless_kube::http::{self, Connection};
use gapless_kube::limits::MOST_REQUEST;
use gapless_kube::watch::Listener;
use gapless_kube::{book, objects, serve};
use gapless_ledger::promise::{Amount, Attempt, Booking, Entry, Step, Told};
use serde_json::{Value, json};
use std::io::{BufReader, Cursor, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const CASES: usize = 100_000;
/// The most memory of this process, in bytes.
const MOST_MEMORY: u64 = 100 << 20;

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % most.max(1) as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// Texts on which parsers often fail.
const PIECES: &[&str] = &[
    "\r\n",
    "\r\n\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 18446744073709551615\r\n",
    "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "{\"",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "\\ud800",
    "null",
    "-1",
    "1e999",
    "18446744073709551616",
    "gapless.dev/gpu-memory",
    "auto",
    "8388608TiB",
    "../",
    "\u{0}",
    "\u{fffd}",
    ";",
    ",",
    " ",
    "\"\"",
];

/// Damages a text in a few places.
fn damage(dice: &mut Dice, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..dice.below(5) {
        let at = dice.below(bytes.len() + 1);
        match dice.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.truncate(at),
            3 => {
                let end = (at + dice.below(40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            4 => {
                let end = (at + dice.below(20)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let piece = dice.of(PIECES);
                bytes.splice(at..at, piece.bytes());
            }
        }
    }
    bytes
}

fn node(number: usize) -> Value {
    let name = format!("n{number}");
    let entry = Entry {
        uid: format!("u{number}"),
        pod: format!("default/p{number}"),
        gpus: vec![format!("GPU-{number}-0")],
        amount: Amount::Bytes(20 << 30),
        seen: "3".to_owned(),
    };
    json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "7", "annotations": {
            "gapless.dev/gpus": "2", "gapless.dev/gpu-memory": "80GiB", "gapless.dev/gpu-model": "H200",
            "gapless.dev/gpu-uuids": format!("GPU-{number}-0,GPU-{number}-1"),
            "gapless.dev/bookings": book::written(&name, &[entry]),
        }},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}},
    })
}

fn pod(number: usize, node: Option<usize>) -> Value {
    let mut annotations = json!({"gapless.dev/gpu-memory": "20GiB"});
    if let Some(node) = node {
        annotations["gapless.dev/gpu-uuids"] = json!(format!("GPU-{node}-0"));
        annotations["gapless.dev/gpu-booked"] = json!((20u64 << 30).to_string());
    }
    json!({
        "metadata": {"name": format!("p{number}"), "namespace": "default", "uid": format!("u{number}"),
            "resourceVersion": "9", "annotations": annotations},
        "spec": {"nodeName": node.map(|node| format!("n{node}")),
            "containers": [{"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
        "status": {"phase": "Pending"},
    })
}

/// An extender with a small cluster. Its API server is a port that refuses connections.
fn extender() -> Extender {
    let address = Address { host: "127.0.0.1".to_owned(), port: 1, tls: None, token: None };
    let extender = Extender::new(Arc::new(Api::new(address)));
    extender.silence();
    extender.node_listener().replace(&(0..4).map(node).collect::<Vec<_>>());
    extender.pod_listener().replace(&[pod(0, Some(0)), pod(1, Some(1)), pod(2, None), pod(3, None)]);
    extender.nodes.listed.store(true, Ordering::Relaxed);
    extender.pods.listed.store(true, Ordering::Relaxed);
    extender
}

fn memory_stays_small() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    assert!(kib << 10 < MOST_MEMORY, "{kib} KiB");
}

#[test]
fn damaged_requests_leave_the_account_right() {
    let extender = extender();
    let names = json!(["n0", "n1", "n2", "n3"]);
    let filter = json!({"Pod": pod(2, None), "NodeNames": names}).to_string();
    let nodes = json!({"Pod": pod(3, None), "Nodes": {"Items": [node(2), node(3)]}}).to_string();
    let bind = json!({"PodName": "p2", "PodNamespace": "default", "PodUID": "u2", "Node": "n2"}).to_string();
    let post = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let chunked = format!(
        "POST /filter HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{filter}\r\n0\r\n\r\n",
        filter.len()
    );
    let right = [
        post("/filter", &filter),
        post("/filter", &nodes),
        post("/prioritize", &filter),
        post("/bind", &bind),
        chunked,
        "GET /metrics HTTP/1.1\r\n\r\n".to_owned(),
    ];
    let mut dice = Dice(1);
    let (mut answered, mut refused) = (0, 0);
    for case in 0..CASES {
        let at = dice.below(right.len());
        let body_only = dice.below(2) == 0 && at < 4;
        let bytes = match (body_only, right[at].split_once("\r\n\r\n")) {
            // The length is valid, so that the damaged body is parsed.
            (true, Some((head, body))) => {
                let body = damage(&mut dice, body);
                let path = head.split(' ').nth(1).expect("a path");
                let head = format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
                [head.into_bytes(), body].concat()
            }
            _ => damage(&mut dice, &right[at]),
        };
        let mut input = BufReader::new(Cursor::new(bytes));
        loop {
            match http::read_request(&mut input) {
                Ok(Some(request)) => {
                    let (status, _, _) = serve::answer(&extender, &request);
                    assert!([200, 400, 404, 405, 503].contains(&status), "case {case}: {status}");
                    answered += 1;
                }
                Ok(None) => break,
                Err(_) => {
                    refused += 1;
                    break;
                }
            }
        }
        if case.is_multiple_of(1000) {
            extender.check().unwrap_or_else(|what| panic!("case {case}: {what}"));
        }
    }
    extender.check().expect("the account is right");
    assert!(answered > CASES / 4 && refused > CASES / 20, "{answered} answered, {refused} refused");
    memory_stays_small();
}

#[test]
fn the_largest_bodies_cost_little() {
    let extender = extender();
    let fill = |open: &str, part: &str, close: &str| {
        let count = (MOST_REQUEST as usize - open.len() - close.len()) / part.len();
        format!("{open}{}{close}", part.repeat(count))
    };
    for body in [
        fill("[", "0,", "0]"),
        fill("[", "[],", "0]"),
        fill("[", "\"\",", "0]"),
        fill("[", "{},", "0]"),
        fill("{\"NodeNames\":[", "\"n0\",", "\"n0\"]}"),
        fill("{\"Pod\":{\"metadata\":{\"annotations\":{\"gapless.dev/gpu-models\":\"", "|", "\"}}}}"),
        "[".repeat(MOST_REQUEST as usize),
    ] {
        let head = format!("POST /filter HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut input = BufReader::new(Cursor::new([head, body].concat()));
        let request = http::read_request(&mut input).expect("it is small enough").expect("a request");
        let (status, ..) = serve::answer(&extender, &request);
        assert!([200, 400].contains(&status), "{status}");
    }
    memory_stays_small();
}

/// A connection from which these bytes are read.
struct Said(Cursor<Vec<u8>>);

impl Read for Said {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Said {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        Ok(buffer.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn damaged_answers_leave_the_account_right() {
    let extender = extender();
    let object = |dice: &mut Dice| match dice.below(3) {
        0 => node(dice.below(5)).to_string(),
        1 => pod(dice.below(6), Some(dice.below(5))).to_string(),
        _ => pod(dice.below(6), None).to_string(),
    };
    let mut dice = Dice(2);
    let mut heard = 0;
    for case in 0..CASES {
        let text = object(&mut dice);
        let bytes = if dice.below(2) == 0 {
            let body = damage(&mut dice, &text);
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body].concat()
        } else {
            damage(&mut dice, &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()))
        };
        let mut connection: Connection = BufReader::new(Box::new(Said(Cursor::new(bytes))));
        let mut body = Vec::new();
        let asked = http::ask(&mut connection, "GET", "a", "/api/v1/pods", &[], b"");
        let Ok(mut response) = asked else { continue };
        if response.body.read_all(&mut connection, &mut body).is_err() {
            continue;
        }
        let Ok(object) = serde_json::from_slice::<Value>(&body) else { continue };
        heard += 1;
        let _ = (objects::node(&object), objects::promised(&object), book::page(&object));
        match dice.below(8) {
            0 => extender.pod_listener().deleted(&object),
            1 => extender.node_listener().deleted(&object),
            2 if dice.below(20) == 0 => extender.node_listener().replace(&[node(0), object.clone()]),
            3 if dice.below(20) == 0 => extender.pod_listener().replace(&[pod(0, Some(0)), object.clone()]),
            _ if text.contains("allocatable") => extender.node_listener().changed(&object),
            _ => extender.pod_listener().changed(&object),
        }
        drive(&mut dice, &object);
        if case.is_multiple_of(1000) {
            extender.check().unwrap_or_else(|what| panic!("case {case}: {what}"));
        }
    }
    extender.check().expect("the account is right");
    assert!(heard > CASES / 4, "{heard} were JSON");
    memory_stays_small();
}

/// The state machines must end for any answers.
fn drive(dice: &mut Dice, object: &Value) {
    let told = |dice: &mut Dice| match dice.below(7) {
        0 => Told::Node(gapless_ledger::promise::Node {
            version: "1".to_owned(),
            gpus: vec!["GPU-0-0".to_owned()],
            capacity: (dice.below(2) == 0).then_some(80 << 30),
            is_founded: dice.below(2) == 0,
            entries: book::page(object).unwrap_or_default().entries,
        }),
        1 => Told::Pod(Some(objects::promised(object))),
        2 => Told::Pod(None),
        3 => Told::BoundPods(vec![objects::promised(object)]),
        4 => Told::Done,
        5 => Told::Conflict,
        _ => Told::Nothing,
    };
    let gpus = vec!["GPU-0-0".to_owned()];
    let mut attempt = Attempt::new("u2", "default/p2", "n0", gpus.clone(), Amount::Bytes(1 << 30));
    let mut steps = 0;
    while matches!(attempt.step(), Step::Ask(_) | Step::Book(_) | Step::Choose(_)) {
        match attempt.step().clone() {
            Step::Ask(_) => attempt.hear(told(dice)),
            Step::Book(entry) => {
                let mut booking = Booking::new("n0", vec![entry], Vec::new())
                    .with_suspects(vec!["u0".to_owned()], dice.below(2) == 0);
                while booking.ask().is_ok() {
                    booking.hear(told(dice));
                    steps += 1;
                    assert!(steps < 1000, "it does not end");
                }
                let Err(results) = booking.ask() else { unreachable!() };
                attempt.booked(results[0].clone());
            }
            _ => attempt.give_up(),
        }
        steps += 1;
    }
    assert!(steps < 1000, "it does not end");
}
