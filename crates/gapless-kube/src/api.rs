//! A client of the Kubernetes API server: calls with JSON, and streams of events.

use crate::http::{self, Connection};
use crate::limits::{ANSWERED_WITHIN, LONGEST_WATCH, MOST_EVENT, PATIENCE, SILENCE};
use crate::patience::{Answered, Patience};
use crate::tls;
use serde_json::Value;
use std::cell::Cell;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The address of the API server and its credentials.
#[derive(Clone, Debug)]
pub struct Address {
    pub host: String,
    pub port: u16,
    /// Authorities of its certificate; `None`: plain HTTP.
    pub tls: Option<tls::Client>,
    /// A file with a bearer token, read again for every call, because Kubernetes renews it.
    pub token: Option<PathBuf>,
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the API server answered {status}: {message}")]
    Status { status: u16, message: String },
}

impl ApiError {
    pub fn status(&self) -> Option<u16> {
        match self {
            ApiError::Status { status, .. } => Some(*status),
            ApiError::Unreachable(_) => None,
        }
    }
}

/// The most connections that wait for the next call.
const MOST_IDLE: usize = 32;

thread_local! {
    /// Time that this thread has spent on waiting for the API server.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Time that this thread has waited for the API server, since the last call of this function.
pub fn take_waited() -> Duration {
    WAITED.take()
}

/// Runs `wait` and counts its time as waiting for the API server.
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = wait();
    WAITED.set(WAITED.get() + began.elapsed());
    result
}

/// A connection that waits for its next call, and the socket below it.
struct Kept {
    connection: Connection,
    socket: TcpStream,
    /// Gives the next answer its own time.
    answered: Answered,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Kept {
    /// True if the server has sent nothing since the last answer. Such bytes would be taken for the next answer.
    fn is_quiet(&mut self) -> bool {
        self.connection.buffer().is_empty()
            && self.socket.set_nonblocking(true).is_ok()
            && matches!(self.connection.fill_buf(), Err(error) if error.kind() == ErrorKind::WouldBlock)
            && self.socket.set_nonblocking(false).is_ok()
    }
}

/// The client.
pub struct Api {
    address: Address,
    /// The longest silence in an answer, and the longest time for a whole one.
    times: [Duration; 2],
    idle: Mutex<Vec<Kept>>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The objects of a list. An answer that is no list must not be taken for an empty one.
pub fn items(list: &mut Value) -> Result<Vec<Value>, ApiError> {
    let is_list = list["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match list.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        None | Some(Value::Null) if is_list => Ok(Vec::new()),
        _ => Err(unreachable("the answer is no list")),
    }
}

pub(crate) fn unreachable(error: impl std::fmt::Display) -> ApiError {
    ApiError::Unreachable(error.to_string())
}

impl Api {
    pub fn new(address: Address) -> Api {
        Api { address, times: [PATIENCE, ANSWERED_WITHIN], idle: Mutex::new(Vec::new()) }
    }

    /// Waits for answers with other limits: on a silence, and on a whole answer.
    #[must_use]
    pub fn within(mut self, times: [Duration; 2]) -> Api {
        self.times = times;
        self
    }

    /// A connection with limits on a silence and on a whole answer.
    fn connect(&self, times: [Duration; 2]) -> Result<Kept, ApiError> {
        let Address { host, port, tls, .. } = &self.address;
        let addresses = (host.as_str(), *port).to_socket_addrs().map_err(unreachable)?;
        let mut last = unreachable("the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    let set =
                        stream.set_write_timeout(Some(PATIENCE)).and_then(|()| stream.set_nodelay(true));
                    set.map_err(unreachable)?;
                    let socket = stream.try_clone().map_err(unreachable)?;
                    let answered = Answered::default();
                    let stream = Patience::new(stream, times, answered.clone());
                    let stream: Box<dyn http::Stream> = match tls {
                        Some(config) => tls::connect(config, host, stream).map_err(ApiError::Unreachable)?,
                        None => Box::new(stream),
                    };
                    return Ok(Kept { connection: BufReader::new(stream), socket, answered });
                }
                Err(error) => last = unreachable(error),
            }
        }
        Err(last)
    }

    fn headers(&self, kind: Option<&str>) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if let Some(token) = self.address.token.as_ref().and_then(|path| std::fs::read_to_string(path).ok()) {
            headers.push(("Authorization", format!("Bearer {}", token.trim())));
        }
        if let Some(kind) = kind {
            headers.push(("Content-Type", kind.to_owned()));
        }
        headers
    }

    /// Calls the API server and returns the object in its answer.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        kind: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        waiting(|| self.call_now(method, path, kind, body))
    }

    fn call_now(
        &self,
        method: &str,
        path: &str,
        kind: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let headers = self.headers(kind);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // The server may have closed a kept connection. Then it has not seen the call, which is made again.
        if let Some(mut kept) = kept
            && kept.is_quiet()
        {
            match self.exchange(&mut kept, method, path, &headers, body.as_bytes()) {
                Ok(answer) => return self.finish(kept, answer),
                Err(error) if is_closed(&error) => {}
                Err(error) => return Err(unreachable(error)),
            }
        }
        let mut fresh = self.connect(self.times)?;
        let answer =
            self.exchange(&mut fresh, method, path, &headers, body.as_bytes()).map_err(unreachable)?;
        self.finish(fresh, answer)
    }

    fn exchange(
        &self,
        Kept { connection, answered, .. }: &mut Kept,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<(u16, bool, Vec<u8>)> {
        let mut response = http::ask(connection, method, &self.address.host, path, headers, body)?;
        let mut text = Vec::new();
        response.body.read_all(connection, &mut text)?;
        answered.tell();
        Ok((response.status, response.keep_alive && response.body.is_done(), text))
    }

    fn finish(&self, kept: Kept, answer: (u16, bool, Vec<u8>)) -> Result<Value, ApiError> {
        let (status, keep_alive, text) = answer;
        if keep_alive {
            self.keep(kept);
        }
        Api::read(status, &text)
    }

    fn keep(&self, kept: Kept) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(kept);
        }
    }

    fn read(status: u16, text: &[u8]) -> Result<Value, ApiError> {
        let value: Result<Value, _> = serde_json::from_slice(text);
        match (status, value) {
            (200..=299, Ok(value)) => Ok(value),
            (200..=299, Err(error)) => Err(unreachable(format!("invalid JSON in the answer: {error}"))),
            (_, value) => {
                let message = value.ok().and_then(|value| value["message"].as_str().map(str::to_owned));
                Err(ApiError::Status { status, message: message.unwrap_or_default() })
            }
        }
    }

    /// Calls that go over one connection.
    pub fn session(&self) -> Session<'_> {
        Session { api: self, kept: None }
    }

    pub fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.call("GET", path, None, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.call("POST", path, Some("application/json"), Some(body))
    }

    /// Changes some members of an object. If they include its resource version, the server refuses the change (409)
    /// if the object has changed since.
    pub fn patch(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.call("PATCH", path, Some("application/merge-patch+json"), Some(body))
    }

    /// Hands over events, one JSON object a line, until the stream ends or `each` returns false.
    pub fn watch(&self, path: &str, mut each: impl FnMut(Value) -> bool) -> Result<(), ApiError> {
        let Kept { mut connection, .. } = self.connect([SILENCE, LONGEST_WATCH])?;
        let headers = self.headers(None);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut response = http::ask(&mut connection, "GET", &self.address.host, path, &headers, b"")
            .map_err(unreachable)?;
        if response.status != 200 {
            let mut text = Vec::new();
            let _ = response.body.read_all(&mut connection, &mut text);
            let message = String::from_utf8_lossy(&text).chars().take(200).collect();
            return Err(ApiError::Status { status: response.status, message });
        }
        let mut pending = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            let n = match response.body.read(&mut connection, &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) => return Err(unreachable(error)),
            };
            pending.extend_from_slice(&buffer[..n]);
            let mut start = 0;
            while let Some(length) = pending[start..].iter().position(|&byte| byte == b'\n') {
                let line = &pending[start..start + length];
                start += length + 1;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let event = serde_json::from_slice(line)
                    .map_err(|error| unreachable(format!("invalid JSON in an event of a watch: {error}")))?;
                if !each(event) {
                    return Ok(());
                }
            }
            pending.drain(..start);
            if pending.len() > MOST_EVENT {
                return Err(unreachable("an event is too long"));
            }
        }
    }
}

/// Calls over one connection: the server that answered the first one answers all, so all see the same history.
/// Backups are only restored while no server runs.
#[derive(Debug)]
pub struct Session<'a> {
    api: &'a Api,
    kept: Option<Kept>,
}

impl Session<'_> {
    /// Reads an object, over a new connection or a kept one without pending bytes.
    pub fn begin(&mut self, path: &str) -> Result<Value, ApiError> {
        if let Some(kept) = self.kept.take() {
            self.api.keep(kept);
        }
        let kept = self.api.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(mut kept) = kept
            && kept.is_quiet()
        {
            match waiting(|| self.exchange(kept, "GET", path, None, None)) {
                Err(ApiError::Unreachable(_)) => {}
                answer => return answer,
            }
        }
        waiting(|| {
            let kept = self.api.connect(self.api.times)?;
            self.exchange(kept, "GET", path, None, None)
        })
    }

    /// Calls over the same connection, and fails if that has ended. No call is made twice.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        kind: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let quiet = self.kept.take().and_then(|mut kept| kept.is_quiet().then_some(kept));
        let kept = quiet.ok_or_else(|| unreachable("the connection has ended"))?;
        waiting(|| self.exchange(kept, method, path, kind, body))
    }

    fn exchange(
        &mut self,
        mut kept: Kept,
        method: &str,
        path: &str,
        kind: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let headers = self.api.headers(kind);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = self.api.exchange(&mut kept, method, path, &headers, body.as_bytes());
        let (status, keep_alive, text) = answer.map_err(unreachable)?;
        self.kept = keep_alive.then_some(kept);
        Api::read(status, &text)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.api.keep(kept);
        }
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
    )
}
