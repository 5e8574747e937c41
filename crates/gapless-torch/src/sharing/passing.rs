//! How pages get from one process to another: as file descriptors, over a socket of the process that has them.
//!
//! The socket has no name in any folder, so nothing is left when the process is killed. Its name is random, and only
//! processes of the same user, and root, are answered. A reader asks for pages by number and gets them a few at a time,
//! so neither side has many files open. A thread of its own answers, from the first block that is shared on.
//!
//! A reader says with one byte how many files of a message it took. One that had room for fewer gets the others again,
//! in messages of so many. A sender that has room for fewer sends fewer: [`Spares`] keep room for one.

use super::full;
use super::offers;
use super::readers::{self, Reader};
use super::socket::{self, BATCH, Line, Peer};
use super::spares::Spares;
use crate::hooks::guarded;
use crate::{background, state};
use gapless_cuda::locks::{Guard, Lock};
use gapless_cuda::shared_pages::SharedPage;
use gapless_cuda::sharing::{Exporter, Lent};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// A reader asks for so many pages at most.
const MOST_PAGES: usize = 1 << 20;
/// A reader waits so long for a sender that is stopped, and a sender for a reader.
const READER_WAITS: Duration = Duration::from_secs(30);
const SENDER_WAITS: Duration = Duration::from_secs(5);
const GREETING: [u8; 8] = *b"gapless2";
/// A reader has dropped pages, which it names as it asked for them.
const DROPPED: [u8; 8] = *b"gaplessD";
/// A reader asks what an offer says, by its number.
const QUESTION: [u8; 8] = *b"gaplessW";
/// More than any offer has.
const MOST_TEXT: u64 = 1 << 30;
/// Answers: pages follow; a page was given back; the driver refused; the sender has no free descriptors.
const HERE: u32 = 0;
const GONE: u32 = 1;
const REFUSED: u32 = 2;
const FULL: u32 = 3;
/// After a connection that could not be accepted, or a notice that could not be sent: at first, and at most.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The descriptor that is listened on; -1: none.
static LISTENING: AtomicI32 = AtomicI32::new(-1);
/// What keeps room for an answer, and how often connections were accepted or could not be.
static SPARES: Lock<Spares> = Lock::new(Spares::default);
static ACCEPTS: AtomicU64 = AtomicU64::new(0);

// ---- the process that has the pages ----

/// Begins to answer, once; the random part of the socket's name.
///
/// # Errors
/// With what is wrong.
pub(super) fn listen() -> Result<[u8; 16], String> {
    static TOKEN: Lock<Option<[u8; 16]>> = Lock::new(|| None);
    let mut known = TOKEN.lock();
    // The program may have closed a file that it did not open.
    if let Some(token) = *known
        && LISTENING.load(Ordering::Relaxed) >= 0
    {
        return Ok(token);
    }
    let token = begin().map_err(|error| match socket::is_full(&error) {
        true => full("the memory cannot be shared: this process"),
        false => {
            format!("no socket can be opened for processes that shall get memory of this one ({error})")
        }
    })?;
    *known = Some(token);
    Ok(token)
}

fn begin() -> io::Result<[u8; 16]> {
    let mut token = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut token)?;
    let listener = UnixListener::bind_addr(&socket::address(&name(token))?)?;
    listener.set_nonblocking(true)?;
    state::watch_forks();
    SPARES.lock().fill();
    LISTENING.store(listener.as_raw_fd(), Ordering::Relaxed);
    let serve = move || guarded((), || answer_all(listener));
    background::spawn("gapless-share", serve)
        .inspect_err(|_| LISTENING.store(-1, Ordering::Relaxed))
        .map(|_| token)
}

/// A child's copy would let readers wait for an answer when its parent is gone.
pub(super) fn close_in_forked_child() {
    let file = LISTENING.swap(-1, Ordering::Relaxed);
    if file >= 0 {
        // SAFETY: the child's own copy. The thread that listened is not in the child.
        drop(unsafe { OwnedFd::from_raw_fd(file) });
    }
}

fn name(token: [u8; 16]) -> String {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("gapless.share.{digits}")
}

/// Answers one reader after the other, for as long as the listener is there.
fn answer_all(listener: UnixListener) {
    let mut pause = PAUSE;
    loop {
        // The kernel takes a descriptor before it looks who waits: a process without one is told so at once. So the
        // thread first waits until a reader is there.
        if socket::wait_for(listener.as_raw_fd(), socket::READABLE, None).is_err() {
            break;
        }
        ACCEPTS.fetch_add(1, Ordering::Relaxed);
        let mut accepted = listener.accept();
        if accepted.as_ref().is_err_and(socket::is_full) && SPARES.lock().give_one() {
            accepted = listener.accept();
        }
        match accepted {
            Ok((reader, _)) => {
                pause = PAUSE;
                // A reader that does not understand, or dies, is no matter of this process.
                let line = Line::accepted(reader, SENDER_WAITS);
                let _ = line.and_then(|line| guarded(Ok(()), || answer(&line)));
            }
            // Another process that has the socket, or the reader itself, was faster.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if is_closed(&error) => break,
            Err(_) => {
                std::thread::sleep(pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        }
        SPARES.lock().fill();
    }
    // The number is not this library's any more: the program closed it, and may have opened a file of its own there.
    let number = listener.into_raw_fd();
    let _ = LISTENING.compare_exchange(number, -1, Ordering::Relaxed, Ordering::Relaxed);
}

/// Whether what was listened on is no listening socket now.
fn is_closed(error: &io::Error) -> bool {
    const BAD_FILE: i32 = 9;
    const INVALID: i32 = 22;
    const NO_SOCKET: i32 = 88;
    const NOT_SUPPORTED: i32 = 95;
    error.raw_os_error().is_some_and(|number| [BAD_FILE, INVALID, NO_SOCKET, NOT_SUPPORTED].contains(&number))
}

fn answer(reader: &Line) -> io::Result<()> {
    let Peer { process, user, .. } = reader.peer()?;
    if !is_trusted(user) {
        return Ok(());
    }
    let mut head = [0; 12];
    reader.read(&mut head)?;
    let count = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]) as usize;
    if head[..8] == QUESTION {
        return tell(reader, count as u32);
    }
    let is_dropped = head[..8] == DROPPED;
    if (head[..8] != GREETING && !is_dropped) || count > MOST_PAGES {
        return Ok(());
    }
    let mut numbers = vec![0; 8 * count];
    reader.read(&mut numbers)?;
    let numbers: Vec<SharedPage> =
        numbers.as_chunks::<8>().0.iter().map(|number| SharedPage(u64::from_ne_bytes(*number))).collect();
    let mut process = Reader::of(process as u32);
    // A look at the reader needs a descriptor for a moment.
    if !process.is_known() && SPARES.lock().give_one() {
        process = process.again();
        SPARES.lock().fill();
    }
    if is_dropped {
        readers::dropped(process, &numbers);
        return Ok(());
    }
    // Before the first is handed over: the reader says that it dropped all of them, also where it got only some.
    readers::took(process, &numbers);
    hand_over(reader, &numbers)
}

/// Sends files of pages, as many at once as the reader took last.
fn hand_over(reader: &Line, mut pages: &[SharedPage]) -> io::Result<()> {
    let mut most = BATCH;
    while !pages.is_empty() {
        let batch = &pages[..pages.len().min(most)];
        let sent = match lend(reader, batch) {
            Lent::Full if SPARES.lock().give_one() => {
                let sent = lend(reader, &batch[..1]);
                SPARES.lock().fill();
                sent
            }
            sent => sent,
        };
        let sent = match sent {
            Lent::Done(sent) => sent?,
            Lent::Gone => return reader.send(GONE, &[]),
            Lent::Full => return reader.send(FULL, &[]),
            Lent::Refused(_) => return reader.send(REFUSED, &[]),
        };
        // The reader has mapped them: the next ones may be opened.
        let mut taken = [0];
        reader.read(&mut taken)?;
        let taken = usize::from(taken[0]);
        if taken == 0 || taken > sent {
            break;
        }
        most = if taken < sent { taken } else { BATCH };
        pages = &pages[taken..];
    }
    Ok(())
}

/// Sends files of the first ones of these pages; how many.
fn lend(reader: &Line, pages: &[SharedPage]) -> Lent<io::Result<usize>> {
    let owner = exporters().iter().find(|exporter| exporter.has(pages[0])).cloned();
    let send = |files: &[RawFd]| reader.send(HERE, files).map(|()| files.len());
    owner.map_or(Lent::Gone, |owner| owner.lend(pages, send))
}

/// What an offer says: a status, how many bytes follow, and these.
fn tell(reader: &Line, number: u32) -> io::Result<()> {
    let offer = offers::get(number);
    let status = if offer.is_some() { HERE } else { GONE };
    let bytes = offer.as_deref().unwrap_or_default();
    reader.write(&[&status.to_ne_bytes()[..], &(bytes.len() as u64).to_ne_bytes()].concat())?;
    reader.write(bytes)
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

/// How often a reader came to this process, for tests.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_sharing_accepts() -> u64 {
    ACCEPTS.load(Ordering::Relaxed)
}

// ---- the process that wants them ----

/// What happened between this process and the one that shared memory, in words.
fn failed(error: io::Error) -> String {
    if socket::is_full(&error) {
        return full("this process");
    }
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

fn connect(token: [u8; 16]) -> Result<Line, String> {
    let sender = Line::connect(&name(token), READER_WAITS).map_err(failed)?;
    if !is_trusted(sender.peer().map_err(failed)?.user) {
        return Err("another user's process listens where the memory was shared".to_owned());
    }
    Ok(sender)
}

/// What the offer `number` of the process that listens under `token` says.
///
/// # Errors
/// With what is wrong.
pub(super) fn ask(token: [u8; 16], number: u32) -> Result<Vec<u8>, String> {
    let sender = connect(token)?;
    sender.write(&[&QUESTION[..], &number.to_ne_bytes()].concat()).map_err(failed)?;
    let mut head = [0; 12];
    sender.read(&mut head).map_err(failed)?;
    let (status, length) = head.split_at(4);
    let length = u64::from_ne_bytes(length.try_into().unwrap_or_default());
    if status != HERE.to_ne_bytes() || length > MOST_TEXT {
        return Err("the process that shared the memory does not share it any more".to_owned());
    }
    let mut bytes = vec![0; length as usize];
    sender.read(&mut bytes).map_err(failed)?;
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
        /// Who tells the others: a sender that is stopped keeps no thread waiting but this one.
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

/// A sender that has ended wants to know nothing. A process without a free descriptor tries again until it has one.
fn tell_dropped(token: [u8; 16], pages: &[SharedPage]) {
    let mut pause = PAUSE;
    loop {
        match Line::connect(&name(token), READER_WAITS) {
            Ok(sender) => {
                let _ = sender.write(&words(DROPPED, pages));
                return;
            }
            Err(error) if socket::is_full(&error) => std::thread::sleep(pause),
            Err(_) => return,
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
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
    mut pages: &[(SharedPage, u64)],
    mut take: impl FnMut(OwnedFd, u64) -> Result<(), String>,
) -> Result<Taken, String> {
    let sender = connect(token)?;
    let numbers: Vec<SharedPage> = pages.iter().map(|(page, _)| *page).collect();
    sender.write(&words(GREETING, &numbers)).map_err(failed)?;
    let taken = Taken { token, pages: numbers };
    while !pages.is_empty() {
        let brought = sender.receive().map_err(failed)?;
        let count = brought.files.len();
        match brought.status {
            HERE if count == 0 && brought.is_cut_off => return Err(full("this process")),
            HERE if count > 0 && count <= pages.len() => {}
            GONE => return Err("the process that shared the memory has given it back since".to_owned()),
            FULL => return Err(full("the process that shared the memory")),
            REFUSED => {
                return Err(
                    "the driver refused to let the memory leave the process that shared it".to_owned()
                );
            }
            _ => return Err("the process that shared the memory runs another release of gapless".to_owned()),
        }
        for (file, (_, size)) in brought.files.into_iter().zip(pages) {
            take(file, *size)?;
        }
        sender.write(&[count as u8]).map_err(failed)?;
        pages = &pages[count..];
    }
    Ok(taken)
}

unsafe extern "C" {
    fn geteuid() -> u32;
}

/// Root may look at every process anyway.
fn is_trusted(user: u32) -> bool {
    // SAFETY: it cannot fail.
    user == 0 || user == unsafe { geteuid() }
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
