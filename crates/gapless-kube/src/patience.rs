//! Time limits of a connection: one for silence, and one for a message that has begun, so that no other side can hold
//! a connection by sending a byte now and then.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A socket whose reads end in time.
pub(crate) struct Patience {
    socket: TcpStream,
    began: Option<Instant>,
    /// The longest silence.
    idle: Duration,
    /// The longest time from the first byte of a message to its last.
    whole: Duration,
    is_answered: Answered,
}

/// Tells that a message is complete, so that the next one gets its own time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<AtomicBool>);

impl Answered {
    pub(crate) fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Patience {
    pub(crate) fn new(socket: TcpStream, [idle, whole]: [Duration; 2], is_answered: Answered) -> Patience {
        Patience { socket, began: None, idle, whole, is_answered }
    }
}

impl Read for Patience {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_answered.0.swap(false, Ordering::Relaxed) {
            self.began = None;
        }
        let most = match self.began {
            None => self.idle,
            Some(began) => self
                .whole
                .checked_sub(began.elapsed())
                .filter(|left| !left.is_zero())
                .ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))?,
        };
        self.socket.set_read_timeout(Some(most.min(self.idle)))?;
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
