//! The part of HTTP/1.1 that an extender and a client of the API server need, over any stream.
//!
//! The other side is untrusted: heads and bodies are limited in bytes; callers limit the time. A message whose length
//! can be read in two ways is refused, and so is a request of ours with a line break in a text.

use crate::limits::{MOST_BODY, MOST_HEAD, MOST_REQUEST};
use std::io::{self, BufRead, BufReader, Read, Write};

/// A byte stream to a client or server.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A buffered connection.
pub type Connection = BufReader<Box<dyn Stream>>;

/// A request as a server gets it.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub body: Vec<u8>,
    pub keep_alive: bool,
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "the body is too large".to_owned())
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// The lines of a head; `None` if the stream ends before it.
fn head(input: &mut impl BufRead) -> io::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    let mut left = MOST_HEAD;
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(left).read_until(b'\n', &mut line)? as u64;
        left -= read;
        if line.last() != Some(&b'\n') {
            if lines.is_empty() && line.is_empty() {
                return Ok(None);
            }
            return Err(invalid(if left == 0 { "the head is too long" } else { "the head is cut off" }));
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
        if text.is_empty() {
            if lines.is_empty() {
                continue;
            }
            return Ok(Some(lines));
        }
        if text.bytes().any(|byte| byte.is_ascii_control() && (byte != b'\t' || lines.is_empty())) {
            return Err(invalid("a control character in the head"));
        }
        // Whoever reads a name with other characters in another way would see another message.
        let is_named = |text: &str| text.split_once(':').is_some_and(|(name, _)| is_token(name));
        if !lines.is_empty() && !is_named(text) {
            return Err(invalid("a header without a valid name"));
        }
        let text = text.to_owned();
        lines.push(text);
    }
}

/// True if this may be the name of a header.
fn is_token(name: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_inside)
}

fn header<'a>(lines: &'a [String], name: &str) -> Option<&'a str> {
    headers(lines, name).next()
}

fn headers<'a>(lines: &'a [String], name: &str) -> impl Iterator<Item = &'a str> {
    lines.iter().skip(1).filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim_matches([' ', '\t']))
    })
}

/// Reads a request; `None` if the client has closed the connection.
pub fn read_request(input: &mut impl BufRead) -> io::Result<Option<Request>> {
    let Some(lines) = head(input)? else { return Ok(None) };
    let words: Vec<&str> = lines[0].split(' ').collect();
    let [method, path, version] = words[..] else {
        return Err(invalid("invalid request line: expected METHOD PATH HTTP/1.1"));
    };
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Err(invalid("only HTTP/1.1 is served"));
    }
    let (method, path) = (method.to_owned(), path.to_owned());
    let close = header(&lines, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let keep_alive = version == "HTTP/1.1" && !close;
    let mut body = Vec::new();
    let mut reader = Body::of(&lines, End::Length(0), MOST_REQUEST)?;
    reader.read_all(input, &mut body)?;
    Ok(Some(Request { method, path, body, keep_alive }))
}

/// Writes an answer.
pub fn write_response(
    out: &mut dyn Write,
    status: u16,
    kind: &str,
    body: &[u8],
    keep_alive: bool,
) -> io::Result<()> {
    let words = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} {words}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n"
    );
    // Written in one piece, because the second of two small writes would wait for the first one's acknowledgement.
    let mut whole = head.into_bytes();
    whole.extend_from_slice(body);
    out.write_all(&whole)?;
    out.flush()
}

/// The rule for the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Length(u64),
    /// Bytes left of the current chunk; `None` before a chunk.
    Chunks(Option<u64>),
    Close,
    Done,
}

/// The body of a message that is being read.
#[derive(Debug)]
pub struct Body {
    end: End,
    read: u64,
    most: u64,
}

impl Body {
    fn of(lines: &[String], otherwise: End, most: u64) -> io::Result<Body> {
        let mut codings = headers(lines, "transfer-encoding");
        let chunked = match codings.next() {
            Some(coding) if coding.eq_ignore_ascii_case("chunked") && codings.next().is_none() => true,
            Some(_) => return Err(invalid("a Transfer-Encoding other than chunked")),
            None => false,
        };
        let mut lengths = headers(lines, "content-length");
        let end = match lengths.next() {
            Some(_) if chunked => return Err(invalid("both Transfer-Encoding and Content-Length")),
            Some(length) if lengths.all(|other| other == length) => {
                let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
                let length = length.parse().ok().filter(|_| is_number);
                End::Length(length.ok_or_else(|| invalid("invalid Content-Length"))?)
            }
            Some(_) => return Err(invalid("two Content-Lengths that differ")),
            None if chunked => End::Chunks(None),
            None => otherwise,
        };
        if matches!(end, End::Length(length) if length > most) {
            return Err(too_large());
        }
        Ok(Body { end, read: 0, most })
    }

    /// Reads up to the end of `buffer`; 0 at the end of the body.
    pub fn read(&mut self, input: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.end {
                End::Done | End::Length(0) => {
                    self.end = End::Done;
                    return Ok(0);
                }
                End::Length(left) => {
                    let most = (buffer.len() as u64).min(left) as usize;
                    let n = input.read(&mut buffer[..most])?;
                    if n == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.end = End::Length(left - n as u64);
                    return Ok(n);
                }
                End::Close => {
                    let n = input.read(buffer)?;
                    if n == 0 {
                        self.end = End::Done;
                    }
                    return Ok(n);
                }
                End::Chunks(Some(left)) if left > 0 => {
                    let most = (buffer.len() as u64).min(left) as usize;
                    let n = input.read(&mut buffer[..most])?;
                    if n == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.end = End::Chunks(Some(left - n as u64));
                    return Ok(n);
                }
                End::Chunks(after) => {
                    if after.is_some() && !line(input)?.is_empty() {
                        return Err(invalid("a chunk that is longer than its size"));
                    }
                    let size = line(input)?;
                    let digits = size.split(';').next().unwrap_or_default().trim_matches([' ', '\t']);
                    // A sign is no part of a size, though the parser below takes one.
                    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                    let size = u64::from_str_radix(digits, 16).ok().filter(|_| is_number);
                    let size = size.ok_or_else(|| invalid("invalid chunk"))?;
                    if size == 0 {
                        let mut trailer = 0;
                        while let text = line(input)?
                            && !text.is_empty()
                        {
                            trailer += text.len() as u64;
                            if trailer > MOST_HEAD {
                                return Err(invalid("the trailer is too long"));
                            }
                        }
                        self.end = End::Done;
                    } else {
                        self.end = End::Chunks(Some(size));
                    }
                }
            }
        }
    }

    /// Reads the rest.
    pub fn read_all(&mut self, input: &mut impl BufRead, out: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        loop {
            let n = self.read(input, &mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            self.read += n as u64;
            if self.read > self.most {
                return Err(too_large());
            }
            out.extend_from_slice(&buffer[..n]);
        }
    }

    /// True if the connection can serve another request after this body.
    pub fn is_done(&self) -> bool {
        matches!(self.end, End::Done | End::Length(0))
    }
}

fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    input.take(4096).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = String::from_utf8_lossy(&line);
    Ok(text.trim_end_matches('\n').trim_end_matches('\r').to_owned())
}

/// An answer as a client gets it.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub body: Body,
    pub keep_alive: bool,
}

/// Sends a request and reads the head of the answer.
pub fn ask(
    connection: &mut Connection,
    method: &str,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_line = |text: &str| text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if ![method, host, path].into_iter().all(is_word)
        || !path.starts_with('/')
        || !headers.iter().all(|(name, value)| is_word(name) && is_line(value))
    {
        let what = format!("a request of {path:?} is not sent: a part of it would end a line");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    // An address of version 6 stands in brackets, because a colon would begin a port.
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    let mut whole = head.into_bytes();
    whole.extend_from_slice(body);
    connection.get_mut().write_all(&whole)?;
    connection.get_mut().flush()?;
    let lines = self::head(connection)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = lines[0].split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| invalid("invalid status line: expected HTTP/1.1 and a status"))?;
    let close = header(&lines, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok(Response { status, body: Body::of(&lines, End::Close, MOST_BODY)?, keep_alive: !close })
}
