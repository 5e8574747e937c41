//! How long a connection may take: it may be silent between requests, and a request that has begun must come soon.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A connection that says nothing for so long is closed.
const IDLE: Duration = Duration::from_secs(120);
/// From the first byte of a request to its last.
const WHOLE: Duration = Duration::from_secs(10);

/// A socket whose reads end in time.
pub(crate) struct Patience {
    socket: TcpStream,
    began: Option<Instant>,
    is_answered: Answered,
}

/// Says that the request is answered: the next one has its own time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<AtomicBool>);

impl Answered {
    pub(crate) fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Patience {
    pub(crate) fn new(socket: TcpStream, is_answered: Answered) -> Patience {
        Patience { socket, began: None, is_answered }
    }
}

impl Read for Patience {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_answered.0.swap(false, Ordering::Relaxed) {
            self.began = None;
        }
        let most = match self.began {
            None => IDLE,
            Some(began) => WHOLE
                .checked_sub(began.elapsed())
                .filter(|left| !left.is_zero())
                .ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))?,
        };
        self.socket.set_read_timeout(Some(most))?;
        let read = self.socket.read(buffer)?;
        self.began.get_or_insert_with(Instant::now);
        Ok(read)
    }
}

impl Write for Patience {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.socket.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
