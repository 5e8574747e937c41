//! The server against a client made for the test: calls, small windows, split headers; and against hostile frames.

use gapless_grpc::hpack::{self, Decoder};
use gapless_grpc::message::Message;
use gapless_grpc::{Service, Status, serve};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Repeats a message, twice if the method asks for it.
struct Echo;

impl Service for Echo {
    fn call(&self, method: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
        match method {
            "/a.B/Echo" => Ok(message.to_vec()),
            "/a.B/Twice" => Ok([message, message].concat()),
            "/a.B/Panic" => panic!("a method of the test"),
            _ => Err(Status::invalid("no method \u{e4} %")),
        }
    }
}

struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Server {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("gapless-grpc-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).expect("a socket");
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        std::thread::spawn(move || serve(&listener, &Echo, &flag));
        Server { path, stop }
    }

    fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.path).expect("the server");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        Client { stream, decoder: Decoder::default(), next: 1 }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn headers(method: &str) -> Vec<u8> {
    let mut block = Vec::new();
    let all =
        [(":method", "POST"), (":scheme", "http"), (":path", method), ("content-type", "application/grpc")];
    for (name, value) in all {
        hpack::encode(&mut block, name, value);
    }
    block
}

fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

struct Client {
    stream: UnixStream,
    decoder: Decoder,
    next: u32,
}

/// The answer to a call.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    data: Vec<u8>,
    status: String,
    message: String,
}

impl Client {
    fn greet(&mut self, settings: &[u8]) {
        self.send(PREFACE);
        self.send(&frame(4, 0, 0, settings));
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn receive(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
    }

    /// Calls in frames of `part` bytes of data, and lets the server send `window` more bytes at a time.
    fn call(&mut self, method: &str, body: &[u8], part: usize, window: Option<u32>) -> Answer {
        let stream = self.next;
        self.next += 2;
        self.send(&frame(1, 4, stream, &headers(method)));
        let body = message(body);
        let parts: Vec<&[u8]> = body.chunks(part).collect();
        for (at, part) in parts.iter().enumerate() {
            self.send(&frame(0, u8::from(at + 1 == parts.len()), stream, part));
        }
        self.answer(stream, window)
    }

    fn answer(&mut self, stream: u32, window: Option<u32>) -> Answer {
        let mut answer = Answer::default();
        loop {
            let (kind, flags, of, payload) = self.receive().expect("an answer");
            match kind {
                0 if of == stream => {
                    answer.data.extend_from_slice(&payload);
                    let more = window.unwrap_or(payload.len() as u32).to_be_bytes();
                    self.send(&frame(8, 0, 0, &more));
                    self.send(&frame(8, 0, stream, &more));
                }
                1 => {
                    for (name, value) in self.decoder.decode(&payload, 1 << 16).expect("headers") {
                        let value = String::from_utf8(value).expect("a text");
                        match name.as_slice() {
                            b"grpc-status" => answer.status = value,
                            b"grpc-message" => answer.message = value,
                            _ => {}
                        }
                    }
                    if flags & 1 != 0 {
                        return answer;
                    }
                }
                7 => panic!("the server ends the connection: {payload:?}"),
                _ => {}
            }
        }
    }
}

#[test]
fn calls_are_answered_whatever_the_size_of_frames_and_windows() {
    let server = Server::start();
    let large: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
    for (part, first, window) in
        [(16_384, None, None), (1000, Some(1u32), Some(7000)), (16_384, Some(0), Some(60_000))]
    {
        let mut client = server.connect();
        let setting = first.map(|first| [&[0, 4][..], &first.to_be_bytes()].concat()).unwrap_or_default();
        client.greet(&setting);
        for (method, body, times) in
            [("/a.B/Echo", &b""[..], 1), ("/a.B/Echo", b"x", 1), ("/a.B/Twice", &large, 2)]
        {
            if first == Some(0) {
                // The server may send nothing until the window is opened.
                client.send(&frame(1, 4, client.next, &headers(method)));
                client.send(&frame(8, 0, client.next, &100u32.to_be_bytes()));
                let data = message(body);
                let parts: Vec<&[u8]> = data.chunks(part).collect();
                for (at, part) in parts.iter().enumerate() {
                    client.send(&frame(0, u8::from(at + 1 == parts.len()), client.next, part));
                }
                client.next += 2;
                let answer = client.answer(client.next - 2, window);
                assert_eq!(answer.data, message(&body.repeat(times)));
                continue;
            }
            let answer = client.call(method, body, part, window);
            assert_eq!(answer.status, "0");
            assert_eq!(answer.data, message(&body.repeat(times)), "{method}");
        }
        let wrong = client.call("/a.B/None", b"", 100, None);
        assert_eq!((wrong.status.as_str(), wrong.message.as_str()), ("3", "no method %C3%A4 %25"));
    }
}

#[test]
fn padding_priorities_continuations_and_unknown_frames_change_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    client.greet(&[0, 1, 0, 0, 0, 0, 0x77, 0x77, 0, 0, 0, 1]);
    client.send(&frame(6, 0, 0, b"12345678"));
    client.send(&frame(0x42, 0xff, 0, b"unknown"));
    client.send(&frame(2, 0, 3, &[0; 5]));
    let block = headers("/a.B/Echo");
    let first = [&[2][..], &[0, 0, 0, 0, 9], &block[..10], &[0, 0]].concat();
    client.send(&frame(1, 8 | 32, 1, &first));
    for (at, part) in block[10..].chunks(7).enumerate() {
        let is_last = 10 + (at + 1) * 7 >= block.len();
        client.send(&frame(9, if is_last { 4 } else { 0 }, 1, part));
    }
    client.send(&frame(0, 8, 1, &[&[3][..], &message(b"abc")[..6], &[0, 0, 0]].concat()));
    client.send(&frame(0, 1, 1, &message(b"abc")[6..]));
    let mut has_ping = false;
    let mut data = Vec::new();
    while let Some((kind, flags, _, payload)) = client.receive() {
        has_ping |= (kind, flags) == (6, 1) && payload == b"12345678";
        if kind == 0 {
            data.extend(payload);
        } else if kind == 1 && flags & 1 != 0 {
            break;
        }
    }
    assert!(has_ping);
    assert_eq!(data, message(b"abc"));
    // A call that is reset is forgotten, also with data on its way.
    client.send(&frame(1, 4, 3, &headers("/a.B/Echo")));
    client.send(&frame(3, 0, 3, &8u32.to_be_bytes()));
    client.send(&frame(0, 1, 3, &message(b"late")));
    client.next = 5;
    assert_eq!(client.call("/a.B/Echo", b"on", 100, None).data, message(b"on"));
}

#[test]
fn a_call_that_is_no_grpc_and_one_that_panics_end_alone() {
    let server = Server::start();
    let mut client = server.connect();
    client.greet(&[]);
    let mut block = Vec::new();
    hpack::encode(&mut block, ":method", "GET");
    hpack::encode(&mut block, ":path", "/a.B/Echo");
    client.send(&frame(1, 5, 1, &block));
    assert_eq!(client.answer(1, None).status, "12");
    for (wrong, status) in
        [(vec![], "13"), (b"\x01\0\0\0\0".to_vec(), "12"), (b"\0\0\0\0\x05abc".to_vec(), "13")]
    {
        client.next += 2;
        client.send(&frame(1, 4, client.next, &headers("/a.B/Echo")));
        client.send(&frame(0, 1, client.next, &wrong));
        assert_eq!(client.answer(client.next, None).status, status, "{wrong:?}");
    }
    client.next += 2;
    client.send(&frame(1, 4, client.next, &headers("/a.B/Panic")));
    client.send(&frame(0, 1, client.next, &message(b"")));
    while client.receive().is_some() {}
    let mut other = server.connect();
    other.greet(&[]);
    assert_eq!(other.call("/a.B/Echo", b"x", 9, None).data, message(b"x"));
}

#[test]
fn wrong_frames_end_their_connection_with_the_reason() {
    let server = Server::start();
    let opening = |flags: u8, stream: u32| frame(1, flags, stream, &headers("/a.B/Echo"));
    let cases: Vec<(&str, Vec<u8>, u32)> = vec![
        ("a frame that is too long", frame(0x42, 0, 0, &vec![0; 16_385]), 6),
        ("an even stream", opening(4, 2), 1),
        ("a stream again", [opening(5, 1), opening(5, 1)].concat(), 1),
        ("data of no stream", frame(0, 0, 7, b"x"), 1),
        ("a continuation of nothing", frame(9, 4, 1, b""), 1),
        ("headers that stop", [opening(0, 1), frame(6, 0, 0, &[0; 8])].concat(), 1),
        ("padding beyond the frame", frame(1, 4 | 8, 1, &[200, 0]), 1),
        ("an invalid header", frame(1, 4, 1, &[0xff, 0xff, 0xff, 0xff, 0xff]), 9),
        ("a promise", frame(5, 4, 1, b""), 1),
        ("half a setting", frame(4, 0, 0, &[0; 5]), 6),
        ("a window beyond all", frame(4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]), 3),
        ("a window by nothing", frame(8, 0, 0, &[0; 4]), 1),
        (
            "windows that add up",
            [frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff])].concat(),
            3,
        ),
        ("endless headers", [opening(0, 1), frame(9, 0, 1, &vec![0; 16_000]).repeat(5)].concat(), 11),
    ];
    for (what, bytes, reason) in cases {
        let mut client = server.connect();
        client.greet(&[]);
        // The server may end the connection before it has read all.
        let _ = client.stream.write_all(&bytes);
        let mut last = None;
        while let Some((kind, _, _, payload)) = client.receive() {
            if kind == 7 {
                last = Some(u32::from_be_bytes(payload[4..8].try_into().expect("a reason")));
            }
        }
        assert_eq!(last, Some(reason), "{what}");
    }
}

#[test]
fn memory_is_bounded_and_other_calls_go_on() {
    let server = Server::start();
    let mut client = server.connect();
    client.greet(&[]);
    // More calls at once than a client may have: those beyond are refused.
    for at in 0..70u32 {
        client.send(&frame(1, 4, 2 * at + 1, &headers("/a.B/Echo")));
    }
    let mut refused = 0;
    while refused < 6 {
        let (kind, _, _, payload) = client.receive().expect("a frame");
        refused += usize::from(kind == 3 && payload == 7u32.to_be_bytes());
    }
    // A message above 4 MiB is reset.
    let part = vec![0; 16_384];
    for _ in 0..257 {
        client.send(&frame(0, 0, 1, &part));
    }
    loop {
        let (kind, _, stream, payload) = client.receive().expect("a frame");
        if kind == 3 {
            assert_eq!((stream, payload), (1, 11u32.to_be_bytes().to_vec()));
            break;
        }
    }
    client.send(&frame(0, 1, 3, &message(b"on")));
    assert_eq!(client.answer(3, None).data, message(b"on"));
}

/// Random changes of a right connection: the server lives.
#[test]
fn no_bytes_end_the_server() {
    let server = Server::start();
    let right = [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]),
        frame(1, 4, 1, &headers("/a.B/Echo")),
        frame(0, 1, 1, &message(&Message::default().text(1, "abc").finish())),
        frame(8, 0, 0, &[0, 0, 1, 0]),
        frame(1, 5, 3, &headers("/a.B/Twice")),
    ]
    .concat();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |most: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % most
    };
    for _ in 0..2000 {
        let mut bytes = right.clone();
        for _ in 0..=random(4) {
            let at = PREFACE.len() + random(bytes.len() - PREFACE.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes.truncate(at),
                _ => bytes.insert(at, random(256) as u8),
            }
            if bytes.len() <= PREFACE.len() {
                break;
            }
        }
        let client = server.connect();
        let _ = (&client.stream).write_all(&bytes);
    }
    // The last of these connections may still be ending, and a connection beyond the most is closed.
    let mut client = loop {
        let mut client = server.connect();
        if client.stream.write_all(PREFACE).is_ok() && client.receive().is_some() {
            break client;
        }
    };
    client.send(&frame(4, 0, 0, &[]));
    assert_eq!(client.call("/a.B/Echo", b"x", 9, None).data, message(b"x"));
}
