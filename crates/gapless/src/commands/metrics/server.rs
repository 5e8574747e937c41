//! The part of HTTP/1.1 that a scrape needs: one GET a connection, one answer.
//!
//! Clients are untrusted: their requests are limited in bytes and in time, and so is the number of connections.

use crate::Answer;
use anyhow::Result;
use gapless_kube::crowd::Crowd;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The largest head of a request, and the time limit for it and for the answer.
const HEAD: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at once.
const CROWD: usize = 16;

const PLAIN: &str = "text/plain; charset=utf-8";
/// The content type of Prometheus' text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Makes the answer, or an error.
type Source<'a> = &'a (dyn Fn() -> Result<String> + Sync);

/// Serves until the process ends.
pub(crate) fn serve(listener: &TcpListener, source: Source<'_>) -> Result<Answer> {
    let crowd = &Crowd::new(CROWD);
    std::thread::scope(|scope| {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                // Too many open files, or a peer that has gone: the next connection may succeed.
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                }
            };
            let Some(place) = crowd.admit(&stream) else {
                let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
                let _ = answer(&stream, 503, PLAIN, "too many at once", true);
                continue;
            };
            // Without a thread the connection ends.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || {
                // An error on one connection must not end the server.
                let source: Source<'_> = &|| place.busy(source);
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handle(&stream, source)));
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    })
}

fn handle(stream: &TcpStream, source: Source<'_>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = match read_head(stream)? {
        Ok(head) => head,
        Err((status, why)) => return answer(stream, status, PLAIN, why, true),
    };
    let (method, path) = match request(&head) {
        Some(request) => request,
        None => return answer(stream, 400, PLAIN, "invalid HTTP request", true),
    };
    let with_body = method != "HEAD";
    if !matches!(method, "GET" | "HEAD") {
        return answer(stream, 405, PLAIN, "only GET", true);
    }
    match path.split('?').next().unwrap_or_default() {
        "/metrics" => match source() {
            Ok(text) => answer(stream, 200, EXPOSITION, &text, with_body),
            Err(error) => answer(stream, 500, PLAIN, &format!("{error:#}"), with_body),
        },
        "/" => answer(stream, 200, PLAIN, "gapless: see /metrics", with_body),
        _ => answer(stream, 404, PLAIN, "see /metrics", with_body),
    }
}

/// The bytes up to the empty line; or the status of their error.
fn read_head(mut stream: &TcpStream) -> std::io::Result<Result<Vec<u8>, (u16, &'static str)>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err((408, "too slow")));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(Err((400, "the request is not whole"))),
            Ok(count) => head.extend(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(Err((408, "too slow")));
            }
            Err(error) => return Err(error),
        }
        if head.windows(4).any(|four| four == b"\r\n\r\n") {
            return Ok(Ok(head));
        }
        if head.len() > HEAD {
            return Ok(Err((431, "the request is too long")));
        }
    }
}

/// Method and path of the first line.
fn request(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|&byte| byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    let is_http = version.starts_with("HTTP/1.") && words.next().is_none() && path.starts_with('/');
    is_http.then_some((method, path))
}

fn answer(
    mut stream: &TcpStream,
    status: u16,
    kind: &str,
    body: &str,
    with_body: bool,
) -> std::io::Result<()> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed\r\nAllow: GET, HEAD",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let end = if status == 200 && kind == EXPOSITION { "" } else { "\n" };
    let length = body.len() + end.len();
    let mut text = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if with_body {
        text.push_str(body);
        text.push_str(end);
    }
    stream.write_all(text.as_bytes())?;
    // Unread bytes at the close would reset the connection and lose the answer, so the rest is read for a short time.
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut rest = [0; 1024];
    for _ in 0..16 {
        if !matches!(stream.read(&mut rest), Ok(1..)) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server in a thread that ends with the test's process.
    fn start(source: &'static (dyn Fn() -> Result<String> + Sync)) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        std::thread::spawn(move || serve(&listener, source));
        address
    }

    fn ask(address: std::net::SocketAddr, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).expect("a connection");
        // The server may close the connection before all is sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn a_scrape_gets_the_text_and_all_else_a_status() {
        let address = start(&|| Ok("a 1\n".to_owned()));
        let get = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            get.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            "{get}"
        );
        assert!(get.contains("Content-Length: 4\r\n") && get.ends_with("\r\n\r\na 1\n"), "{get}");
        let head = ask(address, b"HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let status = |bytes: &[u8]| ask(address, bytes).split(' ').nth(1).unwrap_or_default().to_owned();
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n"), "200");
        assert_eq!(status(b"GET /metrics?x=1 HTTP/1.1\r\n\r\n"), "200");
        assert_eq!(status(b"GET /etc/passwd HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "405");
        for wrong in [
            &b"GET /metrics\r\n\r\n"[..],
            b"\r\n\r\n",
            b"\xff\xfe /\r\n\r\n",
            b"GET x HTTP/1.1\r\n\r\n",
            b"GET /",
            b"",
        ] {
            assert_eq!(status(wrong), "400", "{}", String::from_utf8_lossy(wrong));
        }
        assert_eq!(status(&[b'x'; 64 << 10]), "431");
        let many = [b"GET /metrics HTTP/1.1\r\n".as_slice(), &b"A: b\r\n".repeat(4000)].concat();
        assert_eq!(status(&many), "431");
        // The server still answers.
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\n\r\n"), "200");
    }

    #[test]
    fn what_cannot_be_read_is_said_and_a_panic_ends_one_connection() {
        let failing = start(&|| Err(anyhow::anyhow!("no statistics files")));
        let answer = ask(failing, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("no statistics files"), "{answer}");
        let panicking = start(&|| panic!("inside a test"));
        assert_eq!(ask(panicking, b"GET /metrics HTTP/1.1\r\n\r\n"), "");
        assert!(ask(panicking, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn those_who_only_connect_keep_no_others_out() {
        let address = start(&|| Ok(String::new()));
        let connect = || TcpStream::connect(address).expect("a connection");
        let mut held: Vec<TcpStream> = (0..2 * CROWD).map(|_| connect()).collect();
        for _ in 0..CROWD {
            held.push(connect());
            let answer = ask(address, b"GET /metrics HTTP/1.1\r\n\r\n");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        drop(held);
    }
}
