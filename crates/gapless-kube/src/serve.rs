//! The server: connections from the scheduler, the API server, probes and Prometheus; threads that follow the API
//! server.

use crate::admit;
use crate::api::{self, Api};
use crate::crowd::{Crowd, Place};
use crate::extender::Extender;
use crate::http::{self, Connection};
use crate::limits::{AT_ONCE, CROWD, FEW, IDLE, PROBE_IDLE, PROBE_WHOLE, SMALL, WHOLE};
use crate::patience::{Answered, Patience};
use crate::{tls, watch};
use gapless_threads::or_exit;
use serde_json::{Value, json};
use std::io::{self, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const JSON: &str = "application/json";
const TOO_LARGE: &[u8] = b"the request is larger than 2 MiB: set nodeCacheCapable: true for this extender";
const PLAIN: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves until `stop` is set.
pub fn serve(
    listener: &TcpListener,
    secure: Option<tls::Server>,
    api: &Arc<Api>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let extender = Extender::new(Arc::clone(api));
    serve_with(&extender, listener, secure.as_ref(), api, stop)
}

/// Serves an extender that the caller keeps access to.
pub fn serve_with(
    extender: &Extender,
    listener: &TcpListener,
    secure: Option<&tls::Server>,
    api: &Arc<Api>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let crowd = Crowd::new(CROWD);
    std::thread::scope(|scope| {
        let (nodes, pods) = (extender.node_listener(), extender.pod_listener());
        scope.spawn(move || {
            or_exit("watch of nodes", || watch::follow(api, "/api/v1/nodes", &nodes, &extender.nodes, stop));
        });
        scope.spawn(move || {
            // Nodes are listed before pods, so that each pod finds its node.
            while !extender.nodes.listed.load(Ordering::Acquire) && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
            }
            or_exit("watch of pods", || watch::follow(api, "/api/v1/pods", &pods, &extender.pods, stop));
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                or_exit("retries", || extender.retry(Instant::now()));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        scope.spawn(move || {
            let mut next_expiry = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                if Instant::now() >= next_expiry {
                    or_exit("expiry", || extender.expire(Instant::now()));
                    next_expiry = Instant::now() + Duration::from_secs(5);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            // The thread below blocks in `accept`. This connection wakes it, so that it sees the flag.
            let _ = TcpStream::connect_timeout(&reachable(address), Duration::from_secs(1));
        });
        while !stop.load(Ordering::Relaxed) {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // Too many files are open, or the client has closed the connection.
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
            };
            let Some(place) = crowd.admit(&stream) else { continue };
            scope.spawn(move || {
                // An error or a panic ends only its own connection.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let answer = |request: &http::Request| answer(extender, request);
                    connection(stream, &place, secure, stop, [IDLE, WHOLE], &answer)
                }));
            });
        }
    });
    Ok(())
}

/// An address at which this machine reaches its own listener.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// The status, kind and body of an answer.
pub type Said = (u16, &'static str, Vec<u8>);

/// Serves probes and metrics, and nothing else, on their own port until `stop` is set. So only the scheduler needs
/// access to the other port.
pub fn serve_probes(extender: &Extender, listener: &TcpListener, stop: &AtomicBool) -> io::Result<()> {
    let most = Most { all: FEW, times: [PROBE_IDLE, PROBE_WHOLE] };
    serve_few(listener, most, &|| None, stop, &|request| about(extender, request))
}

/// Serves admission reviews of the API server until `stop` is set. The certificate is asked for at each connection.
pub fn serve_admission(
    listener: &TcpListener,
    secure: &(dyn Fn() -> Option<tls::Server> + Sync),
    stop: &AtomicBool,
) -> io::Result<()> {
    let most = Most { all: CROWD, times: [IDLE, WHOLE] };
    serve_few(listener, most, secure, stop, &admitted)
}

/// The answer to a request of the API server or of a kubelet.
pub fn admitted(request: &http::Request) -> Said {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("GET", "/healthz" | "/livez" | "/readyz") => (200, PLAIN, b"ok".to_vec()),
        ("POST", "/admit") => {
            let _turn = (request.body.len() > SMALL).then(Turn::take);
            let review = serde_json::from_slice::<Value>(&request.body).map_err(|error| error.to_string());
            match review.and_then(|review| admit::review(&review)) {
                Ok(answer) => (200, JSON, answer.to_string().into_bytes()),
                Err(why) => (400, PLAIN, format!("invalid body: {why}").into_bytes()),
            }
        }
        (_, "/admit") => (405, PLAIN, b"use POST".to_vec()),
        _ => (404, PLAIN, b"see /admit, /healthz".to_vec()),
    }
}

/// Limits of a port.
#[derive(Clone, Copy, Debug)]
struct Most {
    all: usize,
    times: [Duration; 2],
}

/// Serves other clients than the scheduler.
fn serve_few(
    listener: &TcpListener,
    most: Most,
    secure: &(dyn Fn() -> Option<tls::Server> + Sync),
    stop: &AtomicBool,
    answer: &(dyn Fn(&http::Request) -> Said + Sync),
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let crowd = Crowd::new(most.all);
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if stream.set_nonblocking(false).is_err() {
                continue;
            }
            let Some(place) = crowd.admit(&stream) else { continue };
            scope.spawn(move || {
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    connection(stream, &place, secure().as_ref(), stop, most.times, answer)
                }));
            });
        }
    });
    Ok(())
}

fn connection(
    stream: TcpStream,
    place: &Place<'_>,
    secure: Option<&tls::Server>,
    stop: &AtomicBool,
    times: [Duration; 2],
    answer: &dyn Fn(&http::Request) -> Said,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let watched = stream.try_clone()?;
    let answered = Answered::default();
    let stream = Patience::new(stream, times, answered.clone());
    let stream: Box<dyn http::Stream> = match secure {
        Some(config) => tls::accept(config, stream).map_err(io::Error::other)?,
        None => Box::new(stream),
    };
    let mut connection: Connection = BufReader::new(stream);
    while !stop.load(Ordering::Relaxed) {
        let request = match http::read_request(&mut connection) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let _ = http::write_response(
                    connection.get_mut(),
                    400,
                    PLAIN,
                    error.to_string().as_bytes(),
                    false,
                );
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let _ = http::write_response(connection.get_mut(), 413, PLAIN, TOO_LARGE, false);
                break;
            }
            Err(_) => break,
        };
        let (status, kind, body) = place.busy(|| answer(&request));
        let keep = request.keep_alive && !stop.load(Ordering::Relaxed);
        http::write_response(connection.get_mut(), status, kind, &body, keep)?;
        answered.tell();
        if !keep {
            break;
        }
    }
    let _ = watched.shutdown(std::net::Shutdown::Both);
    Ok(())
}

/// Answers about health and metrics.
fn about(extender: &Extender, request: &http::Request) -> Said {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("GET", "/healthz" | "/livez") => (200, PLAIN, b"ok".to_vec()),
        ("GET", "/readyz") if extender.is_ready() => (200, PLAIN, b"ok".to_vec()),
        ("GET", "/readyz") => (503, PLAIN, b"not ready: nodes and pods are not listed yet".to_vec()),
        ("GET", "/metrics") => (200, EXPOSITION, extender.metrics.text(&extender.gauges()).into_bytes()),
        _ => (404, PLAIN, b"see /healthz, /readyz, /metrics".to_vec()),
    }
}

/// The answer to a request of the scheduler.
pub fn answer(extender: &Extender, request: &http::Request) -> Said {
    let path = request.path.split('?').next().unwrap_or_default();
    match (request.method.as_str(), path) {
        ("GET", "/healthz" | "/livez" | "/readyz" | "/metrics") => about(extender, request),
        ("POST", "/filter" | "/prioritize" | "/bind") => {
            let began = Instant::now();
            let verb = match path {
                "/filter" => &extender.metrics.filter,
                "/prioritize" => &extender.metrics.prioritize,
                _ => &extender.metrics.bind,
            };
            // Objects take many times the bytes of their text, so only a few large requests are parsed at once.
            let _turn = (request.body.len() > SMALL).then(Turn::take);
            let Ok(args) = serde_json::from_slice::<Value>(&request.body) else {
                verb.note(began.elapsed(), false);
                return (400, PLAIN, b"invalid body: send the scheduler's arguments as JSON".to_vec());
            };
            if !extender.is_ready() {
                verb.note(began.elapsed(), false);
                let error = json!({"Error": "Gapless is not ready: nodes and pods are not listed yet"});
                return if path == "/prioritize" {
                    (200, JSON, b"[]".to_vec())
                } else {
                    (200, JSON, error.to_string().into_bytes())
                };
            }
            api::take_waited();
            let value = match path {
                "/filter" => extender.filter(&args),
                "/prioritize" => extender.prioritize(&args),
                _ => extender.bind(&args),
            };
            let ok = value["Error"].as_str().unwrap_or_default().is_empty();
            let took = began.elapsed();
            verb.note(took, ok);
            if path == "/bind" {
                extender.metrics.bind_own.note(took.saturating_sub(api::take_waited()), ok);
            }
            (200, JSON, value.to_string().into_bytes())
        }
        (_, "/filter" | "/prioritize" | "/bind") => (405, PLAIN, b"use POST".to_vec()),
        _ => (404, PLAIN, b"see /filter, /prioritize, /bind, /healthz, /readyz, /metrics".to_vec()),
    }
}

/// A place among the large requests that are parsed at once.
struct Turn;

static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Turn {
    fn take() -> Turn {
        let (busy, freed) = &TURNS;
        let busy = busy.lock().unwrap_or_else(PoisonError::into_inner);
        let mut busy =
            freed.wait_while(busy, |busy| *busy >= AT_ONCE).unwrap_or_else(PoisonError::into_inner);
        *busy += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (busy, freed) = &TURNS;
        *busy.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        freed.notify_one();
    }
}
