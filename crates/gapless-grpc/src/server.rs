//! The server: the part of HTTP/2 (RFC 9113) that unary gRPC calls use. Calls of one connection are served in turn.

use crate::hpack::{self, Decoder};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The most connections at once.
const CONNECTIONS: usize = 16;
/// The most calls of a connection that have begun.
const STREAMS: usize = 64;
/// The largest frame.
const FRAME: usize = 16_384;
/// The most bytes of the headers of a call.
const HEADERS: usize = 64 << 10;
/// The largest message, and the most bytes of all messages of a connection.
const MESSAGE: usize = 4 << 20;
const MESSAGES: usize = 16 << 20;
/// The longest time that a client may leave an answer unread.
const UNREAD: Duration = Duration::from_secs(10);
/// The window of a stream and of a connection before a frame says otherwise.
const WINDOW: i64 = 65_535;
/// The client is told that it may send more after this many bytes.
const MANY: u32 = 32_768;
const MOST_WINDOW: i64 = (1 << 31) - 1;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames.
const DATA: u8 = 0;
const OPENING: u8 = 1;
const PRIORITY: u8 = 2;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PROMISE: u8 = 5;
const PING: u8 = 6;
const AWAY: u8 = 7;
const WIDER: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flags of frames.
const END_STREAM: u8 = 1;
const ACKNOWLEDGED: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const HAS_PRIORITY: u8 = 32;

/// The error of a call, with gRPC's number for its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: u32,
    pub message: String,
}

impl Status {
    pub fn invalid(message: impl Into<String>) -> Status {
        Status { code: 3, message: message.into() }
    }

    pub fn unimplemented(message: impl Into<String>) -> Status {
        Status { code: 12, message: message.into() }
    }

    pub fn internal(message: impl Into<String>) -> Status {
        Status { code: 13, message: message.into() }
    }
}

/// The methods that a server has.
pub trait Service: Sync {
    /// The answer to a message for a method, such as `/pluginregistration.Registration/GetInfo`.
    fn call(&self, method: &str, message: &[u8]) -> Result<Vec<u8>, Status>;
}

/// Serves until `stop` is set.
pub fn serve(listener: &UnixListener, service: &dyn Service, stop: &AtomicBool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            if busy.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS || stream.set_nonblocking(false).is_err() {
                busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let busy = &busy;
            scope.spawn(move || {
                // An error or a panic ends only its own connection.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    Connection::serve(&stream, service, stop)
                }));
                let _ = stream.shutdown(std::net::Shutdown::Both);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    Ok(())
}

/// A call that has begun.
#[derive(Debug, Default)]
struct Stream {
    method: String,
    message: Vec<u8>,
    /// The rest of the answer that is not sent yet, and the trailers.
    answer: Option<(Vec<u8>, Vec<u8>)>,
    /// The bytes of data that the client accepts.
    window: i64,
}

struct Connection<'a> {
    socket: &'a UnixStream,
    service: &'a dyn Service,
    decoder: Decoder,
    streams: BTreeMap<u32, Stream>,
    last: u32,
    /// The headers that wait for their continuation: the stream, whether it ends with them, and their bytes.
    open: Option<(u32, bool, Vec<u8>)>,
    window: i64,
    /// Bytes that were read since the client was told that it may send more.
    read: u32,
    /// The window of new streams, by the client's settings.
    first_window: i64,
}

/// Ends a connection with HTTP/2's number for the reason.
struct End(u32);

const PROTOCOL: End = End(1);
const FLOW: End = End(3);
const SIZE: End = End(6);
const COMPRESSION: End = End(9);
const CALM: End = End(11);
/// The socket is of no use any more.
const LOST: End = End(u32::MAX);

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        LOST
    }
}

impl Connection<'_> {
    fn serve(socket: &UnixStream, service: &dyn Service, stop: &AtomicBool) -> io::Result<()> {
        socket.set_write_timeout(Some(UNREAD))?;
        // Short, so that a signal ends the connection soon.
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        let mut connection = Connection {
            socket,
            service,
            decoder: Decoder::default(),
            streams: BTreeMap::new(),
            last: 0,
            open: None,
            window: WINDOW,
            read: 0,
            first_window: WINDOW,
        };
        if let Err(End(code)) = connection.run(stop)
            && code != LOST.0
        {
            let _ = connection.away(code);
        }
        Ok(())
    }

    fn run(&mut self, stop: &AtomicBool) -> Result<(), End> {
        let mut preface = [0; PREFACE.len()];
        if !self.fill(&mut preface, stop)? {
            return Ok(());
        }
        if preface != PREFACE {
            return Err(PROTOCOL);
        }
        // The most streams (3), the window of a stream (4), and the most bytes of headers (6). A stream's window has
        // room for its message, so only the connection's is widened.
        let mut settings = Vec::new();
        for (name, value) in [(3u16, STREAMS as u32), (4, MESSAGE as u32 + 5), (6, HEADERS as u32)] {
            settings.extend(name.to_be_bytes());
            settings.extend(value.to_be_bytes());
        }
        self.send(SETTINGS, 0, 0, &settings)?;
        let mut head = [0; 9];
        while self.fill(&mut head, stop)? {
            let [a, b, c, kind, flags, rest @ ..] = head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let stream = u32::from_be_bytes(rest) & 0x7fff_ffff;
            if length > FRAME {
                return Err(SIZE);
            }
            let mut payload = vec![0; length];
            if !self.fill(&mut payload, stop)? {
                return Ok(());
            }
            if self.open.is_some() != (kind == CONTINUATION) {
                return Err(PROTOCOL);
            }
            self.frame(kind, flags, stream, &payload)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Fills a buffer; false if the client has closed the connection, or the server ends.
    fn fill(&self, buffer: &mut [u8], stop: &AtomicBool) -> io::Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match (&mut &*self.socket).read(&mut buffer[filled..]) {
                Ok(0) => return Ok(false),
                Ok(n) => filled += n,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn send(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(9 + payload.len());
        frame.extend(&(payload.len() as u32).to_be_bytes()[1..]);
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        (&mut &*self.socket).write_all(&frame)
    }

    fn away(&self, code: u32) -> io::Result<()> {
        self.send(AWAY, 0, 0, &[self.last.to_be_bytes(), code.to_be_bytes()].concat())
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<(), End> {
        match kind {
            OPENING => {
                if stream.is_multiple_of(2) || stream <= self.last {
                    return Err(PROTOCOL);
                }
                self.last = stream;
                let mut block = unpadded(flags, payload)?;
                if flags & HAS_PRIORITY != 0 {
                    block = block.get(5..).ok_or(SIZE)?;
                }
                self.open = Some((stream, flags & END_STREAM != 0, block.to_vec()));
                self.headers(flags)
            }
            CONTINUATION => {
                let (open, _, block) = self.open.as_mut().ok_or(PROTOCOL)?;
                if *open != stream {
                    return Err(PROTOCOL);
                }
                block.extend_from_slice(payload);
                if block.len() > HEADERS {
                    return Err(CALM);
                }
                self.headers(flags)
            }
            DATA => self.data(flags, stream, payload),
            RESET if payload.len() != 4 => Err(SIZE),
            RESET if stream == 0 || stream > self.last => Err(PROTOCOL),
            RESET => {
                self.streams.remove(&stream);
                Ok(())
            }
            SETTINGS => self.settings(flags, stream, payload),
            PING if payload.len() != 8 => Err(SIZE),
            PING if flags & ACKNOWLEDGED == 0 => Ok(self.send(PING, ACKNOWLEDGED, 0, payload)?),
            WIDER => self.wider(stream, payload),
            PROMISE => Err(PROTOCOL),
            PRIORITY | AWAY | PING => Ok(()),
            // Kinds that are not known are ignored.
            _ => Ok(()),
        }
    }

    /// Begins a call once its headers are complete.
    fn headers(&mut self, flags: u8) -> Result<(), End> {
        if flags & END_HEADERS == 0 {
            return Ok(());
        }
        let Some((stream, ends, block)) = self.open.take() else { return Err(PROTOCOL) };
        // Also of a call that is refused, because the headers change the decoder's table.
        let headers = self.decoder.decode(&block, HEADERS).map_err(|_| COMPRESSION)?;
        if self.streams.len() >= STREAMS {
            // Refused (7): the client may call again.
            return Ok(self.send(RESET, 0, stream, &7u32.to_be_bytes())?);
        }
        let of =
            |name: &[u8]| headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_slice());
        let is_call = of(b":method") == Some(b"POST")
            && of(b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc"));
        let path = of(b":path").and_then(|path| std::str::from_utf8(path).ok());
        let method = path.filter(|_| is_call).unwrap_or_default().to_owned();
        self.streams.insert(stream, Stream { method, window: self.first_window, ..Stream::default() });
        if ends { self.serve_call(stream) } else { Ok(()) }
    }

    fn data(&mut self, flags: u8, stream: u32, payload: &[u8]) -> Result<(), End> {
        if stream == 0 || stream > self.last {
            return Err(PROTOCOL);
        }
        let data = unpadded(flags, payload)?;
        self.read += payload.len() as u32;
        if self.read >= MANY {
            self.send(WIDER, 0, 0, &self.read.to_be_bytes())?;
            self.read = 0;
        }
        let all: usize = self.streams.values().map(|stream| stream.message.len()).sum();
        // A stream that was reset may have data on its way.
        let Some(call) = self.streams.get_mut(&stream) else { return Ok(()) };
        if call.answer.is_some() {
            return Err(PROTOCOL);
        }
        if call.message.len() + data.len() > MESSAGE + 5 || all + data.len() > MESSAGES {
            self.streams.remove(&stream);
            return Ok(self.send(RESET, 0, stream, &CALM.0.to_be_bytes())?);
        }
        call.message.extend_from_slice(data);
        if flags & END_STREAM != 0 { self.serve_call(stream) } else { Ok(()) }
    }

    fn settings(&mut self, flags: u8, stream: u32, payload: &[u8]) -> Result<(), End> {
        if stream != 0 {
            return Err(PROTOCOL);
        }
        if flags & ACKNOWLEDGED != 0 {
            return if payload.is_empty() { Ok(()) } else { Err(SIZE) };
        }
        if !payload.len().is_multiple_of(6) {
            return Err(SIZE);
        }
        for setting in payload.chunks_exact(6) {
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match u16::from_be_bytes([setting[0], setting[1]]) {
                4 => {
                    let window = i64::from(value);
                    if window > MOST_WINDOW {
                        return Err(FLOW);
                    }
                    let more = window - self.first_window;
                    self.first_window = window;
                    for stream in self.streams.values_mut() {
                        stream.window += more;
                        if stream.window > MOST_WINDOW {
                            return Err(FLOW);
                        }
                    }
                }
                // A client may accept larger frames. This server sends none.
                5 if (value as usize) < FRAME => return Err(PROTOCOL),
                _ => {}
            }
        }
        Ok(self.send(SETTINGS, ACKNOWLEDGED, 0, &[])?)
    }

    fn wider(&mut self, stream: u32, payload: &[u8]) -> Result<(), End> {
        let more: [u8; 4] = payload.try_into().map_err(|_| SIZE)?;
        let more = i64::from(u32::from_be_bytes(more) & 0x7fff_ffff);
        if more == 0 || stream > self.last {
            return Err(PROTOCOL);
        }
        let window = match stream {
            0 => &mut self.window,
            _ => match self.streams.get_mut(&stream) {
                Some(stream) => &mut stream.window,
                None => return Ok(()),
            },
        };
        *window += more;
        if *window > MOST_WINDOW { Err(FLOW) } else { Ok(()) }
    }

    /// Serves a call whose message is complete.
    fn serve_call(&mut self, stream: u32) -> Result<(), End> {
        let Some(call) = self.streams.get_mut(&stream) else { return Ok(()) };
        let (method, message) = (std::mem::take(&mut call.method), std::mem::take(&mut call.message));
        let result = match unwrapped(&message) {
            _ if method.is_empty() => Err(Status::unimplemented("only gRPC is served here")),
            Ok(message) => self.service.call(&method, message),
            Err(status) => Err(status),
        };
        let mut headers = Vec::new();
        hpack::encode(&mut headers, ":status", "200");
        hpack::encode(&mut headers, "content-type", "application/grpc");
        let mut trailers = Vec::new();
        match result {
            Ok(answer) => {
                hpack::encode(&mut trailers, "grpc-status", "0");
                self.send(OPENING, END_HEADERS, stream, &headers)?;
                let length = (answer.len() as u32).to_be_bytes();
                let answer = [&[0][..], &length, &answer].concat();
                if let Some(call) = self.streams.get_mut(&stream) {
                    call.answer = Some((answer, trailers));
                }
            }
            Err(Status { code, message }) => {
                hpack::encode(&mut headers, "grpc-status", &code.to_string());
                hpack::encode(&mut headers, "grpc-message", &escaped(&message));
                self.send(OPENING, END_HEADERS | END_STREAM, stream, &headers)?;
                self.streams.remove(&stream);
            }
        }
        Ok(())
    }

    /// Sends as much of the answers as the client accepts.
    fn flush(&mut self) -> Result<(), End> {
        let ready: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, call)| call.answer.is_some())
            .map(|(stream, _)| *stream)
            .collect();
        for stream in ready {
            while let Some(call) = self.streams.get_mut(&stream)
                && let Some((answer, trailers)) = &mut call.answer
            {
                if answer.is_empty() {
                    let trailers = std::mem::take(trailers);
                    self.streams.remove(&stream);
                    self.send(OPENING, END_HEADERS | END_STREAM, stream, &trailers)?;
                    break;
                }
                let most = self.window.min(call.window).max(0).min(FRAME as i64) as usize;
                if most == 0 {
                    break;
                }
                let part: Vec<u8> = answer.drain(..most.min(answer.len())).collect();
                call.window -= part.len() as i64;
                self.window -= part.len() as i64;
                self.send(DATA, 0, stream, &part)?;
            }
        }
        Ok(())
    }
}

/// The payload without its padding.
fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], End> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(SIZE)?;
    let length = rest.len().checked_sub(usize::from(padding)).ok_or(PROTOCOL)?;
    Ok(&rest[..length])
}

/// The one message of a unary call.
fn unwrapped(data: &[u8]) -> Result<&[u8], Status> {
    let Some((&[kind, a, b, c, d], message)) = data.split_first_chunk::<5>() else {
        return Err(Status::internal("the call has no message"));
    };
    if kind != 0 {
        return Err(Status::unimplemented("compressed messages are not served"));
    }
    if u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return Err(Status::internal("the call has not one message"));
    }
    Ok(message)
}

/// A text in the form of `grpc-message`: other bytes than printable ones as `%XX`.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes().take(4096) {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
