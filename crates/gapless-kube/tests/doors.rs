//! Attacks that must fail: invalid names, texts with line breaks, unasked answers, messages with two lengths, and
//! large or slow requests.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod replica;

use fake::Fake;
use gapless_kube::api::{Address, Api};
use gapless_kube::auto::{Sizer, Wish};
use gapless_kube::http::read_request;
use gapless_kube::limits::{CROWD, FEW, MOST_REQUEST, MOST_UNKNOWN, UNKNOWN_FOR};
use gapless_kube::retry::RETRIED;
use gapless_kube::serve;
use replica::{Replica, asks};
use serde_json::{Value, json};
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Texts that an attacker could put between two names.
const BETWEEN: [&str; 9] =
    ["/", "/../", "?", "#", " ", "%2f", "\r\n", "\n", " HTTP/1.1\r\nHost: a\r\n\r\nDELETE /api/v1/pods/x"];

#[test]
fn a_bind_of_what_is_no_name_asks_the_api_server_for_nothing() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let pod = fake.pod("mine", &asks("40GiB"));
    replica.wait("it knows the pod", |replica| replica.extender.gauges().known == 1);
    replica.filter(&fake, &pod);
    let right = json!({"PodName": "mine", "PodNamespace": "default", "PodUID": "uid-mine", "Node": "n0"});
    let before = fake.calls.load(Ordering::Relaxed);
    for member in ["PodName", "PodNamespace", "PodUID", "Node"] {
        let name = right[member].as_str().expect("a name");
        for between in BETWEEN {
            for wrong in [
                format!("{name}{between}x"),
                format!("{between}{name}"),
                format!("{name}{between}"),
                String::new(),
            ] {
                let mut args = right.clone();
                args[member] = json!(wrong);
                let said = replica.post("/bind", &args)["Error"].as_str().unwrap_or_default().to_owned();
                assert!(said.contains(member), "{member} {wrong:?}: {said:?}");
            }
        }
    }
    assert_eq!(fake.calls.load(Ordering::Relaxed), before, "the API server was asked");
    assert_eq!(replica.post("/bind", &right)["Error"], "");
    fake.stop();
}

/// A server that answers each request with these bytes, and counts the requests.
fn answering(bytes: &'static [u8]) -> (u16, std::sync::Arc<std::sync::atomic::AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = std::sync::Arc::clone(&count);
            std::thread::spawn(move || {
                let mut input = BufReader::new(stream.try_clone().expect("a socket"));
                let mut out = stream;
                while let Ok(Some(request)) = read_request(&mut input) {
                    count.fetch_add(1, Ordering::Relaxed);
                    // The answer repeats the path, so that it shows its request.
                    let body = format!("{{\"path\":\"{}\"}}", request.path);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    if out.write_all(&[head.as_bytes(), bytes].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, asked)
}

fn api(port: u16) -> Api {
    Api::new(Address { host: "127.0.0.1".to_owned(), port, tls: None, token: None })
}

#[test]
fn an_answer_that_nobody_asked_for_is_taken_for_no_answer() {
    let surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"path\":\"/not\"}";
    for bytes in
        [&b""[..], &surplus[..], b"x", b"\r\n", b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"]
    {
        let (port, _) = answering(bytes);
        let api = api(port);
        for turn in 0..20 {
            let path = format!("/turn/{turn}");
            assert_eq!(api.get(&path).expect("an answer")["path"], path, "after {bytes:?}");
        }
    }
}

#[test]
fn no_text_ends_a_line_of_a_request() {
    let (port, asked) = answering(b"");
    let api = api(port);
    for between in BETWEEN.iter().filter(|text| text.contains(['\r', '\n', ' '])) {
        assert!(api.get(&format!("/api/v1/pods/a{between}b")).is_err(), "{between:?}");
        assert!(api.post(&format!("/a{between}b"), &json!({})).is_err());
    }
    for byte in (0..=0x20u8).chain([0x7f, 0x80, 0xff]) {
        let path = format!("/a{}b", char::from(byte));
        assert!(api.get(&path).is_err(), "{path:?}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert!(api.get("/api/v1/pods/a-b").is_ok());
}

#[test]
fn a_message_of_two_lengths_is_refused() {
    let request = |heads: &str| format!("POST /bind HTTP/1.1\r\n{heads}\r\n4\r\nabcd\r\n0\r\n\r\n");
    for wrong in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: 4, 4\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: \r\n",
        "Content-Length: 0x4\r\n",
        "Content-Length : 4\r\n",
        " Content-Length: 4\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Content-Length: 99999999999999999999\r\n",
    ] {
        let text = request(wrong);
        assert!(read_request(&mut BufReader::new(text.as_bytes())).is_err(), "{wrong:?}");
    }
    for (right, body) in
        [("Content-Length: 4\r\nContent-Length: 4\r\n", "4\r\na"), ("Transfer-Encoding: chunked\r\n", "abcd")]
    {
        let text = request(right);
        let read =
            read_request(&mut BufReader::new(text.as_bytes())).expect("it is right").expect("a request");
        assert_eq!(read.body, body.as_bytes());
    }
}

#[test]
fn a_large_request_is_refused_with_what_to_do() {
    let fake = Fake::start();
    let replica = Replica::start(&fake);
    let names: Vec<String> = (0..5000).map(|i| format!("{i:0>250}")).collect();
    let args = json!({"Pod": fake.pod("mine", &asks("1GiB")), "NodeNames": names});
    assert!(args.to_string().len() as u64 <= MOST_REQUEST, "5,000 nodes with the longest names");
    assert_eq!(replica.ask("POST", "/filter", args.to_string().as_bytes()).0, 200);
    // The announced length is enough for a refusal, without a body.
    let mut stream = TcpStream::connect(("127.0.0.1", replica.port())).expect("it listens");
    let head = format!("POST /filter HTTP/1.1\r\nContent-Length: {}\r\n\r\n", MOST_REQUEST + 1);
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("an answer");
    assert!(said.starts_with("HTTP/1.1 413 ") && said.contains("nodeCacheCapable"), "{said}");
    fake.stop();
}

#[test]
fn the_door_for_probes_binds_nothing() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve::serve_probes(&replica.extender, &listener, &stop));
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            stream.write_all(request.as_bytes()).expect("it reads");
            let mut said = String::new();
            stream.read_to_string(&mut said).expect("an answer");
            said
        };
        for path in ["/healthz", "/livez", "/readyz", "/metrics"] {
            let said = ask(&format!("GET {path} HTTP/1.0\r\n\r\n"));
            assert!(said.starts_with("HTTP/1.1 200 "), "{path}: {said}");
        }
        for path in ["/filter", "/prioritize", "/bind", "/"] {
            for method in ["GET", "POST"] {
                let said = ask(&format!("{method} {path} HTTP/1.0\r\nContent-Length: 2\r\n\r\n{{}}"));
                assert!(said.starts_with("HTTP/1.1 404 "), "{path}: {said}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    fake.stop();
}

#[test]
fn slow_connections_stop_neither_door() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let replica = Replica::start(&fake);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve::serve_probes(&replica.extender, &listener, &stop));
        // More connections than the scheduler's port takes, each with half a request.
        let slow = |port: u16, count: usize| -> Vec<TcpStream> {
            let one = |_| {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
                let _ = stream.write_all(b"POST /bind HTTP/1.1\r\nContent-Length: 9\r\n\r\n");
                stream
            };
            (0..count).map(one).collect()
        };
        // Each connection takes three file descriptors of this process, whose limit may be low.
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let files: usize =
            files.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(1024);
        let held = slow(replica.port(), (CROWD + 8).min(files.saturating_sub(400) / 3));
        let healthy = |from: &str| {
            let mut stream = TcpStream::connect((from, port)).expect("it listens");
            let _ = stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n");
            let mut said = String::new();
            let _ = stream.read_to_string(&mut said);
            said.starts_with("HTTP/1.1 200 ")
        };
        assert_eq!(replica.ask("GET", "/healthz", b"").0, 200, "slow connections end for others");
        assert!(healthy("127.0.0.1"), "probes have a door of their own");
        drop(held);
        let _held = slow(port, FEW * 2);
        assert!(healthy("127.0.0.1"), "here too");
        stop.store(true, Ordering::Relaxed);
    });
    fake.stop();
}

#[test]
fn pods_that_do_not_exist_take_little_for_a_short_time() {
    let fake = Fake::start();
    (0..4).for_each(|i| fake.node(&format!("n{i}"), 8, 80));
    let replica = Replica::start(&fake);
    let made_up = |i: u32| {
        let metadata = json!({"name": format!("x{i}"), "namespace": "default", "uid": format!("x{i}"),
            "annotations": {"gapless.dev/gpu-memory": "80GiB"}});
        json!({"metadata": metadata, "spec": {"containers": []}})
    };
    for i in 0..100 {
        replica.filter(&fake, &made_up(i));
    }
    assert_eq!(replica.extender.gauges().assumed as usize, MOST_UNKNOWN);
    let pod = fake.pod("real", &asks("80GiB"));
    replica.wait("it knows the pod", |replica| replica.extender.gauges().known == 1);
    assert_eq!(
        replica.filter(&fake, &pod)["NodeNames"].as_array().map(Vec::len),
        Some(1),
        "pods that exist fit"
    );
    replica.extender.expire(Instant::now() + UNKNOWN_FOR * 2);
    assert_eq!(replica.extender.gauges().assumed, 1, "only the one that exists");
    fake.stop();
}

/// A sizer that answers once its flag is set.
#[derive(Debug)]
struct Slow(Arc<AtomicBool>);

impl Sizer for Slow {
    fn size(&self, _: &Wish) -> Result<u64, String> {
        while !self.0.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(1 << 30)
    }
}

#[test]
fn a_size_that_takes_long_holds_no_filter() {
    let fake = Fake::start();
    fake.node("n0", 1, 80);
    let may = Arc::new(AtomicBool::new(false));
    let slow = Slow(Arc::clone(&may));
    let replica = Replica::with(&fake, |extender| extender.with_sizer(Box::new(slow)));
    let auto = |i: u32| json!({"gapless.dev/gpu-memory": "auto", "gapless.dev/fit": format!("model{i}")});
    for i in 0..6 {
        let answer = replica.filter(&fake, &fake.pod(&format!("slow{i}"), &auto(i)));
        assert!(
            answer["FailedNodes"]["n0"].as_str().is_some_and(|why| why.contains("worked out")),
            "{answer}"
        );
    }
    let pod = fake.pod("other", &asks("1GiB"));
    assert_eq!(replica.filter(&fake, &pod)["NodeNames"], json!(["n0"]), "others are placed meanwhile");
    may.store(true, Ordering::Relaxed);
    let pod = fake.pod("again", &auto(0));
    replica.wait("it is known", |replica| replica.filter(&fake, &pod)["NodeNames"] == json!(["n0"]));
    // The first pods are touched, so that the scheduler tries them again.
    replica.extender.retry(Instant::now() + Duration::from_secs(2));
    let touched = fake.get("/api/v1/namespaces/default/pods/slow0").expect("the pod");
    assert!(touched["metadata"]["annotations"][RETRIED].is_string());
    fake.stop();
}

#[test]
fn the_manifest_opens_no_door_to_binds() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/fleet/deployment.yaml");
    let text = std::fs::read_to_string(file).expect("the manifest");
    let manifest: Value = serde_yaml_ng::from_str(&text).expect("YAML");
    let extender = &manifest["spec"]["template"]["spec"]["containers"][0];
    let words: Vec<&str> =
        extender["command"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    let behind = |flag: &str| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
    assert_eq!(behind("--listen"), Some("127.0.0.1:8888"));
    let port = behind("--probes").and_then(|address| address.rsplit(':').next()).expect("a port");
    assert_eq!(extender["ports"].to_string(), format!("[{{\"containerPort\":{port},\"name\":\"probes\"}}]"));
}

#[test]
fn every_byte_of_a_head_is_read_in_one_way_or_refused() {
    let read = |head: &[u8]| {
        let whole = [head, b"\r\n\r\nGET /next HTTP/1.1\r\n\r\n"].concat();
        let mut input = BufReader::new(&whole[..]);
        let first = read_request(&mut input).ok()??;
        let next = read_request(&mut input).ok()??;
        assert_eq!(
            (next.path.as_str(), next.body.len()),
            ("/next", 0),
            "{:?}",
            String::from_utf8_lossy(head)
        );
        Some(first)
    };
    for byte in 0..=255u8 {
        // Around and inside a name, a value, and the words of the first line.
        let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        for name in [&[b'C', byte, b'c'][..], &[b"Content-Length", &[byte][..]].concat(), &[byte, b'x']] {
            let head = [b"POST /a HTTP/1.1\r\n", name, b": 0"].concat();
            // `C:c: 0` is a header too.
            let is_right = is_token || (byte == b':' && name.len() == 3);
            assert_eq!(read(&head).is_some(), is_right, "{:?}", String::from_utf8_lossy(&head));
        }
        let value = [b"POST /a HTTP/1.1\r\nX: a", &[byte][..], b"b"].concat();
        let is_right = !byte.is_ascii_control() || byte == b'\t';
        assert_eq!(read(&value).is_some(), is_right, "{:?}", String::from_utf8_lossy(&value));
        let first = [b"POST /a", &[byte][..], b"b HTTP/1.1"].concat();
        let is_right = !byte.is_ascii_control() && byte != b' ';
        assert_eq!(read(&first).is_some(), is_right, "{:?}", String::from_utf8_lossy(&first));
        // A blank of another kind around a value is a part of it, so the value is no number.
        let length = [b"POST /a HTTP/1.1\r\nContent-Length: ", &[byte][..], b"0"].concat();
        let is_right = matches!(byte, b' ' | b'\t' | b'0');
        assert_eq!(read(&length).is_some(), is_right, "{:?}", String::from_utf8_lossy(&length));
    }
}

#[test]
fn a_chunk_has_one_size() {
    let read = |body: &str| {
        let text = format!("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        read_request(&mut BufReader::new(text.as_bytes())).ok().flatten().map(|request| request.body)
    };
    for right in
        ["4\r\nabcd\r\n0\r\n\r\n", "4;a=b\r\nabcd\r\n0\r\nX: y\r\n\r\n", "004 \r\nabcd\r\n00\r\n\r\n"]
    {
        assert_eq!(read(right).as_deref(), Some(&b"abcd"[..]), "{right:?}");
    }
    let long = format!("4\r\nabcd\r\n0\r\n{}\r\n", "X: y\r\n".repeat(20_000));
    for wrong in [
        "+4\r\nabcd\r\n0\r\n\r\n",
        "-4\r\nabcd\r\n0\r\n\r\n",
        "0x4\r\nabcd\r\n0\r\n\r\n",
        "\r\nabcd\r\n0\r\n\r\n",
        "4\r\nabcde\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "4\r\nabcd0\r\n\r\n",
        "10000000000000000\r\nabcd\r\n0\r\n\r\n",
        &long,
    ] {
        assert_eq!(read(wrong), None, "{wrong:?}");
    }
}

/// A server that begins an answer with `text`, then sends `drops` for ever, one each few milliseconds.
fn dripping(text: &'static str, drops: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                for byte in text.bytes().chain(drops.bytes().cycle()) {
                    if stream.write_all(&[byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
    });
    port
}

/// Each would hold a bind, and all binds of its node behind it, for ever.
#[test]
fn an_answer_that_never_ends_is_given_up() {
    for (text, drops) in [
        ("", "\r\n"),
        ("HTTP/1.1 200 ", "K"),
        ("HTTP/1.1 200 OK\r\n", "X: y\r\n"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", " "),
        ("HTTP/1.1 200 OK\r\n\r\n", " "),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n"),
    ] {
        let api = api(dripping(text, drops)).within([Duration::from_secs(60), Duration::from_millis(100)]);
        assert!(api.get("/api/v1/nodes/n").is_err(), "{text:?}");
        assert!(api.session().begin("/api/v1/nodes/n").is_err(), "{text:?}");
    }
}
