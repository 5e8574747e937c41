//! A connection between two processes. Every wait on it ends within the patience that it was made with, and goes on
//! after a signal.
//!
//! The socket does not block; only `poll` waits. A signal interrupts `poll` even if its handler restarts calls, so the
//! rest of the patience is computed again each time.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

/// Descriptors in one message. The kernel allows 253.
pub(super) const BATCH: usize = 64;
/// Pause between two attempts at a listener whose queue is full.
const PAUSE: Duration = Duration::from_millis(1);

#[repr(C)]
struct IoVec {
    at: *mut u8,
    size: usize,
}

/// `msghdr` of 64-bit Linux.
#[repr(C)]
struct Message {
    name: *mut u8,
    name_size: u32,
    parts: *mut IoVec,
    count: usize,
    control: *mut Control,
    control_size: usize,
    flags: i32,
}

/// A `cmsghdr` with room for a batch of descriptors.
#[repr(C)]
struct Control {
    size: usize,
    level: i32,
    kind: i32,
    files: [RawFd; BATCH],
}

/// `struct pollfd`.
#[repr(C)]
struct Polled {
    file: RawFd,
    wanted: i16,
    found: i16,
}

/// `struct sockaddr_un`, of a name that begins with NUL.
#[repr(C)]
struct Address {
    family: u16,
    name: [u8; 108],
}

/// Credentials of the other end.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub(super) process: i32,
    pub(super) user: u32,
    group: u32,
}

const UNIX: u16 = 1;
const STREAM: i32 = 1;
const NON_BLOCKING: i32 = 0x800;
const SOCKET_LEVEL: i32 = 1;
const RIGHTS: i32 = 1;
const PEER_CREDENTIALS: i32 = 17;
const NO_SIGNAL: i32 = 0x4000;
const CLOSE_ON_EXEC: i32 = 0x4000_0000;
/// `O_CLOEXEC`, the value that `socket` takes.
const CLOSE_ON_EXEC_SOCKET: i32 = 0x8_0000;
const CUT_OFF: i32 = 8;
const HEAD: usize = 16;
pub(super) const READABLE: i16 = 1;
const WRITABLE: i16 = 4;

unsafe extern "C" {
    fn socket(family: i32, kind: i32, protocol: i32) -> i32;
    fn connect(socket: i32, address: *const Address, size: u32) -> i32;
    fn poll(files: *mut Polled, count: u64, milliseconds: i32) -> i32;
    fn sendmsg(socket: i32, message: *const Message, flags: i32) -> isize;
    fn recvmsg(socket: i32, message: *mut Message, flags: i32) -> isize;
    fn send(socket: i32, bytes: *const u8, size: usize, flags: i32) -> isize;
    fn recv(socket: i32, bytes: *mut u8, size: usize, flags: i32) -> isize;
    fn getsockopt(socket: i32, level: i32, name: i32, value: *mut Peer, size: *mut u32) -> i32;
}

/// Waits for a file, at most until `end`; `None` means without limit.
///
/// # Errors
/// `TimedOut` at `end`.
pub(super) fn wait_for(file: RawFd, wanted: i16, end: Option<Instant>) -> io::Result<()> {
    loop {
        let left = match end {
            None => -1,
            Some(end) => match end.checked_duration_since(Instant::now()) {
                // Rounded up, so that the last look is not before the end.
                Some(left) => i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX),
                None => return Err(io::ErrorKind::TimedOut.into()),
            },
        };
        let mut polled = Polled { file, wanted, found: 0 };
        // SAFETY: one entry, which lives on this function's stack.
        match unsafe { poll(&raw mut polled, 1, left) } {
            0 => {}
            1.. => return Ok(()),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// The contents of a message.
pub(super) struct Brought {
    pub(super) status: u32,
    pub(super) files: Vec<OwnedFd>,
    /// True if this process had too few descriptors for the files that were sent.
    pub(super) is_cut_off: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Line {
    socket: OwnedFd,
    patience: Duration,
}

impl Line {
    /// Connects to the process that listens under `name`.
    ///
    /// # Errors
    /// If no process listens there, or its queue stays full.
    pub(super) fn connect(name: &str, patience: Duration) -> io::Result<Line> {
        let mut address = Address { family: UNIX, name: [0; 108] };
        address.name[1..=name.len()].copy_from_slice(name.as_bytes());
        let size = (size_of::<u16>() + 1 + name.len()) as u32;
        // SAFETY: the arguments are numbers.
        let made = unsafe { socket(i32::from(UNIX), STREAM | NON_BLOCKING | CLOSE_ON_EXEC_SOCKET, 0) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `socket` opened this descriptor, which nothing else owns.
        let line = Line { socket: unsafe { OwnedFd::from_raw_fd(made) }, patience };
        let end = Instant::now() + patience;
        loop {
            // SAFETY: the address lives to the end of the call and has at least `size` bytes.
            if unsafe { connect(made, &raw const address, size) } == 0 {
                return Ok(line);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                // The listener's queue is full, and the kernel does not signal when it has room.
                io::ErrorKind::WouldBlock if Instant::now() < end => std::thread::sleep(PAUSE),
                _ => return Err(error),
            }
        }
    }

    /// The accepted end.
    ///
    /// # Errors
    /// If the socket is closed.
    pub(super) fn accepted(socket: UnixStream, patience: Duration) -> io::Result<Line> {
        socket.set_nonblocking(true)?;
        Ok(Line { socket: socket.into(), patience })
    }

    /// The process and the user at the other end.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub(super) fn peer(&self) -> io::Result<Peer> {
        let mut peer = Peer { process: 0, user: u32::MAX, group: 0 };
        let mut size = size_of::<Peer>() as u32;
        // SAFETY: the out-pointers are ours, and `size` is that of `Peer`.
        let status =
            unsafe { getsockopt(self.raw(), SOCKET_LEVEL, PEER_CREDENTIALS, &raw mut peer, &raw mut size) };
        if status == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
    }

    fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Repeats `call` until it is neither interrupted nor has to wait. It returns a negative number for an error.
    fn done(&self, wanted: i16, end: Instant, mut call: impl FnMut() -> isize) -> io::Result<usize> {
        loop {
            let answer = call();
            if let Ok(answer) = usize::try_from(answer) {
                return Ok(answer);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => wait_for(self.raw(), wanted, Some(end))?,
                _ => return Err(error),
            }
        }
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// If the other end is closed or does not read in time.
    pub(super) fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        let end = Instant::now() + self.patience;
        while !bytes.is_empty() {
            // SAFETY: `bytes` live to the end of the call.
            let sent = self.done(WRITABLE, end, || unsafe {
                send(self.raw(), bytes.as_ptr(), bytes.len(), NO_SIGNAL)
            })?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Fills all of `bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end closes before.
    pub(super) fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        let end = Instant::now() + self.patience;
        let mut at = 0;
        while at < bytes.len() {
            let rest = &mut bytes[at..];
            // SAFETY: `rest` lives to the end of the call.
            let read = self.done(READABLE, end, || unsafe {
                recv(self.raw(), rest.as_mut_ptr(), rest.len(), CLOSE_ON_EXEC)
            })?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += read;
        }
        Ok(())
    }

    /// Sends a status with files, which stay open in this process too.
    ///
    /// # Errors
    /// If the other end is closed or does not read in time.
    pub(super) fn send(&self, status: u32, files: &[RawFd]) -> io::Result<()> {
        let size = HEAD + 4 * files.len();
        let mut control = Control { size, level: SOCKET_LEVEL, kind: RIGHTS, files: [-1; BATCH] };
        control.files[..files.len()].copy_from_slice(files);
        let mut bytes = status.to_ne_bytes();
        let mut part = IoVec { at: bytes.as_mut_ptr(), size: bytes.len() };
        let message = Message {
            name: std::ptr::null_mut(),
            name_size: 0,
            parts: &raw mut part,
            count: 1,
            control: &raw mut control,
            control_size: if files.is_empty() { 0 } else { size.next_multiple_of(8) },
            flags: 0,
        };
        let end = Instant::now() + self.patience;
        // SAFETY: the message and all that it points to live to the end of the call.
        let sent =
            self.done(WRITABLE, end, || unsafe { sendmsg(self.raw(), &raw const message, NO_SIGNAL) })?;
        if sent == 4 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives the next status, with its files.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end is closed.
    pub(super) fn receive(&self) -> io::Result<Brought> {
        let mut control = Control { size: 0, level: 0, kind: 0, files: [-1; BATCH] };
        let mut bytes = [0; 4];
        let mut part = IoVec { at: bytes.as_mut_ptr(), size: bytes.len() };
        let mut message = Message {
            name: std::ptr::null_mut(),
            name_size: 0,
            parts: &raw mut part,
            count: 1,
            control: &raw mut control,
            control_size: size_of::<Control>(),
            flags: 0,
        };
        let end = Instant::now() + self.patience;
        // SAFETY: the message and all that it points to live to the end of the call.
        let read =
            self.done(READABLE, end, || unsafe { recvmsg(self.raw(), &raw mut message, CLOSE_ON_EXEC) })?;
        let has_files =
            message.control_size >= HEAD && (control.level, control.kind) == (SOCKET_LEVEL, RIGHTS);
        let count = if has_files { (control.size.saturating_sub(HEAD) / 4).min(BATCH) } else { 0 };
        let taken = control.files[..count].iter();
        // SAFETY: the kernel opened these for this process just now, and nothing else owns them.
        let files = taken.map(|&file| unsafe { OwnedFd::from_raw_fd(file) }).collect();
        if read != 4 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Brought { status: u32::from_ne_bytes(bytes), files, is_cut_off: message.flags & CUT_OFF != 0 })
    }
}

/// The address under which a process listens.
///
/// # Errors
/// If the name is too long.
pub(super) fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// True if a call failed because this process, or the machine, has no free descriptors.
pub(super) fn is_full(error: &io::Error) -> bool {
    const TOO_MANY: [i32; 2] = [24, 23];
    error.raw_os_error().is_some_and(|number| TOO_MANY.contains(&number))
}

#[cfg(test)]
mod tests;
