//! How pages get from one process to another: as file descriptors, over a socket of the process that has them.
//!
//! The socket has no name in any folder, so nothing is left when the process is killed. Its name is random, and only
//! processes of the same user, and root, are answered. A reader asks for pages by number and gets them a few at a time,
//! so neither side has many files open. A thread of its own answers, from the first block that is shared on.

use super::offers;
use super::readers;
use crate::hooks::guarded;
use crate::{background, state};
use gapless_cuda::locks::{Guard, Lock};
use gapless_cuda::shared_pages::SharedPage;
use gapless_cuda::sharing::Exporter;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// Files in one message. The kernel takes 253.
const BATCH: usize = 64;
/// A reader asks for so many pages at most.
const MOST_PAGES: usize = 1 << 20;
/// A reader waits so long for a sender that is stopped, and a sender for a reader.
const READER_WAITS: Duration = Duration::from_secs(30);
const SENDER_WAITS: Duration = Duration::from_secs(5);
const GREETING: [u8; 8] = *b"gapless1";
/// A reader has dropped pages, which it names as it asked for them.
const DROPPED: [u8; 8] = *b"gaplessD";
/// A reader asks what an offer says, by its number.
const QUESTION: [u8; 8] = *b"gaplessW";
/// More than any offer has.
const MOST_TEXT: u64 = 1 << 30;
/// Answers: pages follow; a page was given back; the driver refused.
const HERE: u32 = 0;
const GONE: u32 = 1;
const REFUSED: u32 = 2;

/// The descriptor that is listened on; -1: none.
static LISTENING: AtomicI32 = AtomicI32::new(-1);

// ---- the process that has the pages ----

/// Begins to answer, once; the random part of the socket's name.
pub(super) fn listen() -> io::Result<[u8; 16]> {
    static TOKEN: Lock<Option<[u8; 16]>> = Lock::new(|| None);
    let mut known = TOKEN.lock();
    if let Some(token) = *known {
        return Ok(token);
    }
    let mut token = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut token)?;
    let listener = UnixListener::bind_addr(&name(token)?)?;
    LISTENING.store(listener.as_raw_fd(), Ordering::Relaxed);
    state::watch_forks();
    background::spawn("gapless-share", move || {
        for reader in listener.incoming().flatten() {
            // A reader that does not understand, or dies, is no matter of this process.
            let _ = guarded(Ok(()), || answer(reader));
        }
    })?;
    *known = Some(token);
    Ok(token)
}

/// A child's copy would let readers wait for an answer when its parent is gone.
pub(super) fn close_in_forked_child() {
    let file = LISTENING.swap(-1, Ordering::Relaxed);
    if file >= 0 {
        // SAFETY: the child's own copy. The thread that listened is not in the child.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
    }
}

fn name(token: [u8; 16]) -> io::Result<SocketAddr> {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("gapless.share.{digits}"))
}

fn answer(mut reader: UnixStream) -> io::Result<()> {
    let Credentials { process, user, .. } = peer_of(&reader)?;
    if !is_trusted(user) {
        return Ok(());
    }
    reader.set_read_timeout(Some(SENDER_WAITS))?;
    reader.set_write_timeout(Some(SENDER_WAITS))?;
    let mut head = [0; 12];
    reader.read_exact(&mut head)?;
    let count = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]) as usize;
    if head[..8] == QUESTION {
        return tell(&mut reader, count as u32);
    }
    let is_dropped = head[..8] == DROPPED;
    if (head[..8] != GREETING && !is_dropped) || count > MOST_PAGES {
        return Ok(());
    }
    let mut numbers = vec![0; 8 * count];
    reader.read_exact(&mut numbers)?;
    let numbers: Vec<SharedPage> =
        numbers.as_chunks::<8>().0.iter().map(|number| SharedPage(u64::from_ne_bytes(*number))).collect();
    if is_dropped {
        readers::dropped(process as u32, &numbers);
        return Ok(());
    }
    // Before the first is handed over: the reader says that it dropped all of them, also where it got only some.
    readers::took(process as u32, &numbers);
    for batch in numbers.chunks(BATCH) {
        let (status, files) = match exported(batch) {
            Ok(files) => (HERE, files),
            Err(status) => (status, Vec::new()),
        };
        send(&reader, status, &files)?;
        drop(files);
        if status != HERE {
            break;
        }
        // The reader has mapped them: the next ones may be opened.
        reader.read_exact(&mut [0])?;
    }
    Ok(())
}

/// What an offer says: a status, how many bytes follow, and these.
fn tell(reader: &mut UnixStream, number: u32) -> io::Result<()> {
    let offer = offers::get(number);
    let status = if offer.is_some() { HERE } else { GONE };
    let bytes = offer.as_deref().unwrap_or_default();
    reader.write_all(&status.to_ne_bytes())?;
    reader.write_all(&(bytes.len() as u64).to_ne_bytes())?;
    reader.write_all(bytes)
}

/// What hands pages over, of each card that was shared from: asked without the card's lock, which a thread may hold
/// while it waits for work that waits for the reader.
static EXPORTERS: Lock<Vec<Exporter>> = Lock::new(Vec::new);

fn exporters() -> Guard<'static, Vec<Exporter>> {
    EXPORTERS.lock()
}

/// Pages of this card are shared from now on.
pub(super) fn add_exporter(exporter: Exporter) {
    let mut all = exporters();
    if !all.iter().any(|known| known.is_of_card_of(&exporter)) {
        all.push(exporter);
    }
}

fn exported(pages: &[SharedPage]) -> Result<Vec<OwnedFd>, u32> {
    let exporters = exporters().clone();
    let export = |&page: &SharedPage| match exporters.iter().find_map(|exporter| exporter.export(page)) {
        Some(Ok((file, _))) => Ok(file),
        Some(Err(_)) => Err(REFUSED),
        None => Err(GONE),
    };
    pages.iter().map(export).collect()
}

// ---- the process that wants them ----

/// What happened between this process and the one that shared memory, in words.
fn failed(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            "the process that shared the memory has ended, or runs in another network namespace".to_owned()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the process that shared the memory did not answer within {} s", READER_WAITS.as_secs())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "the process that shared the memory ended while it handed it over".to_owned()
        }
        _ => format!("the process that shared the memory cannot be asked for it: {error}"),
    }
}

fn connect(token: [u8; 16]) -> Result<UnixStream, String> {
    let sender = name(token).and_then(|name| UnixStream::connect_addr(&name)).map_err(failed)?;
    if !is_trusted(peer_of(&sender).map_err(failed)?.user) {
        return Err("another user's process listens where the memory was shared".to_owned());
    }
    sender.set_read_timeout(Some(READER_WAITS)).map_err(failed)?;
    sender.set_write_timeout(Some(READER_WAITS)).map_err(failed)?;
    Ok(sender)
}

/// What the offer `number` of the process that listens under `token` says.
///
/// # Errors
/// With what is wrong.
pub(super) fn ask(token: [u8; 16], number: u32) -> Result<Vec<u8>, String> {
    let mut sender = connect(token)?;
    let question = [&QUESTION[..], &number.to_ne_bytes()].concat();
    sender.write_all(&question).map_err(failed)?;
    let (mut status, mut length) = ([0; 4], [0; 8]);
    sender.read_exact(&mut status).map_err(failed)?;
    sender.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_ne_bytes(length);
    if u32::from_ne_bytes(status) != HERE || length > MOST_TEXT {
        return Err("the process that shared the memory does not share it any more".to_owned());
    }
    let mut bytes = Vec::new();
    sender.take(length).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 != length {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(bytes)
}

/// The sender's token, and pages of its that were dropped.
type Notice = ([u8; 16], Vec<SharedPage>);

/// Pages that this process has of another one, which hears when they are dropped.
#[derive(Debug)]
pub(super) struct Taken {
    token: [u8; 16],
    pages: Vec<SharedPage>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        /// Who tells the others: a sender that is stopped keeps nobody waiting but this thread.
        static NOTICES: Lock<Option<Sender<Notice>>> = Lock::new(|| None);
        let mut notices = NOTICES.lock();
        if notices.is_none() {
            let (sender, all) = mpsc::channel::<Notice>();
            let tell = move || all.iter().for_each(|(token, pages)| tell_dropped(token, &pages));
            // Without the thread the sender hears of the end of this process alone.
            *notices = background::spawn("gapless-dropped", tell).ok().map(|_| sender);
        }
        if let Some(sender) = &*notices {
            let _ = sender.send((self.token, std::mem::take(&mut self.pages)));
        }
    }
}

/// A sender that has ended wants to know nothing.
fn tell_dropped(token: [u8; 16], pages: &[SharedPage]) {
    if let Ok(mut sender) = connect(token) {
        let _ = sender.write_all(&words(DROPPED, pages));
    }
}

/// A greeting, and pages by their numbers.
fn words(greeting: [u8; 8], pages: &[SharedPage]) -> Vec<u8> {
    let mut words = greeting.to_vec();
    words.extend_from_slice(&(pages.len() as u32).to_ne_bytes());
    pages.iter().for_each(|page| words.extend_from_slice(&page.0.to_ne_bytes()));
    words
}

/// Gets pages from the process that listens under `token`; `take` gets each of them, in their order. What is returned
/// is dropped after they are unmapped.
///
/// # Errors
/// With what is wrong, or with what `take` says.
pub(super) fn receive(
    token: [u8; 16],
    pages: &[(SharedPage, u64)],
    mut take: impl FnMut(OwnedFd, u64) -> Result<(), String>,
) -> Result<Taken, String> {
    let mut sender = connect(token)?;
    let numbers: Vec<SharedPage> = pages.iter().map(|(page, _)| *page).collect();
    sender.write_all(&words(GREETING, &numbers)).map_err(failed)?;
    let taken = Taken { token, pages: numbers };
    for batch in pages.chunks(BATCH) {
        let (status, files) = take_message(&sender).map_err(failed)?;
        match status {
            HERE if files.len() == batch.len() => {}
            GONE => return Err("the process that shared the memory has given it back since".to_owned()),
            REFUSED => {
                return Err(
                    "the driver refused to let the memory leave the process that shared it".to_owned()
                );
            }
            _ => return Err("the process that shared the memory runs another release of gapless".to_owned()),
        }
        for (file, (_, size)) in files.into_iter().zip(batch) {
            take(file, *size)?;
        }
        sender.write_all(&[1]).map_err(failed)?;
    }
    Ok(taken)
}

// ---- what the standard library does not have ----

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

#[repr(C)]
struct Credentials {
    process: i32,
    user: u32,
    group: u32,
}

const SOCKET_LEVEL: i32 = 1;
const RIGHTS: i32 = 1;
const PEER_CREDENTIALS: i32 = 17;
const NO_SIGNAL: i32 = 0x4000;
const CLOSE_ON_EXEC: i32 = 0x4000_0000;
const HEAD: usize = 16;

unsafe extern "C" {
    fn sendmsg(socket: i32, message: *const Message, flags: i32) -> isize;
    fn recvmsg(socket: i32, message: *mut Message, flags: i32) -> isize;
    fn getsockopt(socket: i32, level: i32, name: i32, value: *mut Credentials, size: *mut u32) -> i32;
    fn geteuid() -> u32;
}

/// Root may look at every process anyway.
fn is_trusted(user: u32) -> bool {
    // SAFETY: it cannot fail.
    user == 0 || user == unsafe { geteuid() }
}

/// Which process is at the other end, and whose.
fn peer_of(socket: &UnixStream) -> io::Result<Credentials> {
    let mut peer = Credentials { process: 0, user: u32::MAX, group: 0 };
    let mut size = size_of::<Credentials>() as u32;
    // SAFETY: out-pointers of our own, and their size.
    let status = unsafe {
        getsockopt(socket.as_raw_fd(), SOCKET_LEVEL, PEER_CREDENTIALS, &raw mut peer, &raw mut size)
    };
    if status == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// Calls `work` with a message of 4 bytes and room for a batch of descriptors.
fn with_message<T>(status: &mut [u8; 4], control: &mut Control, work: impl FnOnce(&mut Message) -> T) -> T {
    let mut part = IoVec { at: status.as_mut_ptr(), size: status.len() };
    work(&mut Message {
        name: std::ptr::null_mut(),
        name_size: 0,
        parts: &raw mut part,
        count: 1,
        control: &raw mut *control,
        control_size: size_of::<Control>(),
        flags: 0,
    })
}

fn send(socket: &UnixStream, status: u32, files: &[OwnedFd]) -> io::Result<()> {
    let mut control =
        Control { size: HEAD + 4 * files.len(), level: SOCKET_LEVEL, kind: RIGHTS, files: [-1; BATCH] };
    for (place, file) in control.files.iter_mut().zip(files) {
        *place = file.as_raw_fd();
    }
    let mut bytes = status.to_ne_bytes();
    let sent = with_message(&mut bytes, &mut control, |message| {
        message.control_size =
            if files.is_empty() { 0 } else { (HEAD + 4 * files.len()).next_multiple_of(8) };
        // SAFETY: the message and what it points at live to the end of the call.
        unsafe { sendmsg(socket.as_raw_fd(), message, NO_SIGNAL) }
    });
    match sent {
        4 => Ok(()),
        0.. => Err(io::ErrorKind::WriteZero.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next message's status and files.
fn take_message(socket: &UnixStream) -> io::Result<(u32, Vec<OwnedFd>)> {
    let mut control = Control { size: 0, level: 0, kind: 0, files: [-1; BATCH] };
    let mut bytes = [0; 4];
    let (read, room) = with_message(&mut bytes, &mut control, |message| {
        // SAFETY: the message and what it points at live to the end of the call.
        let read = unsafe { recvmsg(socket.as_raw_fd(), message, CLOSE_ON_EXEC) };
        (read, message.control_size)
    });
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    let has_files = room >= HEAD && (control.level, control.kind) == (SOCKET_LEVEL, RIGHTS);
    let count = if has_files { (control.size.saturating_sub(HEAD) / 4).min(BATCH) } else { 0 };
    // SAFETY: the kernel has opened these for this process, and nobody else knows of them.
    let files = control.files[..count].iter().map(|&file| unsafe { OwnedFd::from_raw_fd(file) }).collect();
    if read == 4 { Ok((u32::from_ne_bytes(bytes), files)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

// ---- files of a process without Gapless ----

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

/// The same numbers on all of Linux's architectures.
const PIDFD_OPEN: i64 = 434;
const PIDFD_GETFD: i64 = 438;

/// Copies of files that are open in another process, as PyTorch takes them.
///
/// # Errors
/// With what is wrong.
pub(super) fn taken_from(process: i32, files: &[RawFd]) -> Result<Vec<OwnedFd>, String> {
    let failed = |what: &str| {
        let error = io::Error::last_os_error();
        format!(
            "{what} of process {process} cannot be had ({error}): it has ended, or this process may not look at it \
             (kernel.yama.ptrace_scope, CAP_SYS_PTRACE)"
        )
    };
    // SAFETY: numbers alone; the answer is a new descriptor, or negative.
    let opened = unsafe { syscall(PIDFD_OPEN, process, 0) };
    if opened < 0 {
        return Err(failed("the memory"));
    }
    // SAFETY: a new descriptor of our own.
    let handle = unsafe { OwnedFd::from_raw_fd(opened as RawFd) };
    let copy = |&file: &RawFd| {
        // SAFETY: as above.
        let copied = unsafe { syscall(PIDFD_GETFD, handle.as_raw_fd(), file, 0) };
        if copied < 0 {
            return Err(failed("the memory"));
        }
        // SAFETY: as above.
        Ok(unsafe { OwnedFd::from_raw_fd(copied as RawFd) })
    };
    files.iter().map(copy).collect()
}
