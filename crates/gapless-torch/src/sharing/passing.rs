//! Pages go from one process to another as file descriptors, over a socket of the process that owns them.
//!
//! The socket has no name in any folder, so nothing is left when the process is killed. Its name is random, and only
//! processes of the same user, and root, are answered. A reader asks for pages by number and gets them a few at a time,
//! so neither side has many files open. From the first shared block on, a thread of its own answers.
//!
//! A reader confirms with one byte how many files of a message it took. If it had room for fewer, the sender sends the
//! others again, in messages of that number. A sender with room for fewer sends fewer: [`Spares`] keep room for one.

use super::full;
use super::listening;
use super::offers;
use super::readers::{self, Reader};
use super::socket::{self, BATCH, Line, Peer};
use super::spares::Spares;
use crate::guard::guarded;
use crate::{background, forks};
use gapless_cuda::locks::{Guard, Lock};
use gapless_cuda::shared_pages::SharedPage;
use gapless_cuda::sharing::{Exporter, Lent};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// The most pages that a reader asks for.
const MOST_PAGES: usize = 1 << 20;
/// Time that a reader waits for a stopped sender, and a sender for a reader.
const READER_WAITS: Duration = Duration::from_secs(30);
const SENDER_WAITS: Duration = Duration::from_secs(5);
const GREETING: [u8; 8] = *b"gapless2";
/// A reader has dropped pages, which it names by the same numbers.
const DROPPED: [u8; 8] = *b"gaplessD";
/// A reader asks for the text of an offer, by its number.
const QUESTION: [u8; 8] = *b"gaplessW";
/// More bytes than any offer has.
const MOST_TEXT: u64 = 1 << 30;
/// Answers: pages follow; a page was given back; the driver refused; the sender has no free descriptors.
const HERE: u32 = 0;
const GONE: u32 = 1;
const REFUSED: u32 = 2;
const FULL: u32 = 3;
/// Pause after a connection that could not be accepted, or a notice that could not be sent: first and longest.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// `SPARES` keep room for an answer. `ACCEPTS` counts attempts to accept a connection.
static SPARES: Lock<Spares> = Lock::new(Spares::default);
static ACCEPTS: AtomicU64 = AtomicU64::new(0);

// ---- the process that has the pages ----

/// Begins to answer, once. Returns the random part of the socket's name.
///
/// # Errors
/// If no socket can be opened, or no thread be started.
pub(super) fn listen() -> Result<[u8; 16], String> {
    static TOKEN: Lock<Option<[u8; 16]>> = Lock::new(|| None);
    let mut known = TOKEN.lock();
    // The program may have closed the descriptor, though it did not open it.
    if let Some(token) = *known
        && listening::is_open()
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
    forks::watch();
    SPARES.lock().fill();
    let number = listener.as_raw_fd();
    listening::set(number);
    let serve = move || guarded((), || answer_all(listener));
    background::spawn("gapless-share", serve).inspect_err(|_| listening::forget(number)).map(|_| token)
}

fn name(token: [u8; 16]) -> String {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("gapless.share.{digits}")
}

/// Answers one reader after the other, until the listener is closed.
fn answer_all(listener: UnixListener) {
    let mut pause = PAUSE;
    loop {
        // `accept` takes a descriptor before it looks for a reader, so without a free one it fails at once. The thread
        // therefore first waits until a reader is there.
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
                // A reader that sends invalid data, or dies, does not matter to this process.
                let line = Line::accepted(reader, SENDER_WAITS);
                let _ = line.and_then(|line| guarded(Ok(()), || answer(&line)));
            }
            // Another process with this socket took the reader, or the reader went away.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if is_closed(&error) => break,
            Err(_) => {
                std::thread::sleep(pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        }
        SPARES.lock().fill();
    }
    // The program closed this number, and may have opened a file of its own there, so it must not be closed here.
    let number = listener.into_raw_fd();
    listening::forget(number);
}

/// True if the descriptor is no listening socket any more.
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
    // Reading the reader's start time needs a descriptor for a moment.
    if !process.is_known() && SPARES.lock().give_one() {
        process = process.again();
        SPARES.lock().fill();
    }
    if is_dropped {
        readers::dropped(process, &numbers);
        return Ok(());
    }
    // Noted before the first page is sent: a reader reports that it dropped all of them, even if it got only some.
    readers::took(process, &numbers);
    hand_over(reader, &numbers)
}

/// Sends files of pages, in messages of as many as the reader took last.
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
        // The reader has mapped these files, so the next ones may be opened.
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

/// Sends files of the first of these pages. Returns how many.
fn lend(reader: &Line, pages: &[SharedPage]) -> Lent<io::Result<usize>> {
    let owner = exporters().iter().find(|exporter| exporter.has(pages[0])).cloned();
    let send = |files: &[RawFd]| reader.send(HERE, files).map(|()| files.len());
    owner.map_or(Lent::Gone, |owner| owner.lend(pages, send))
}

/// Sends an offer: a status, the number of bytes, and the bytes.
fn tell(reader: &Line, number: u32) -> io::Result<()> {
    let offer = offers::get(number);
    let status = if offer.is_some() { HERE } else { GONE };
    let bytes = offer.as_deref().unwrap_or_default();
    reader.write(&[&status.to_ne_bytes()[..], &(bytes.len() as u64).to_ne_bytes()].concat())?;
    reader.write(bytes)
}

/// The exporters of all cards that were shared from. They work without the card's lock, because a thread may hold that
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

/// Number of attempts to accept a reader, for tests.
pub(crate) fn accepts() -> u64 {
    ACCEPTS.load(Ordering::Relaxed)
}

// ---- the process that gets them ----

/// A failed connection to the process that shared memory, in words.
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

/// The text of the offer `number` of the process that listens under `token`.
///
/// # Errors
/// If that process does not answer, or ended the offer. The text says why.
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

/// The sender's token, and pages of it that were dropped.
type Notice = ([u8; 16], Vec<SharedPage>);

/// Pages of another process that this one has. Their owner hears when they are dropped.
#[derive(Debug)]
pub(super) struct Taken {
    token: [u8; 16],
    pages: Vec<SharedPage>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        /// The thread that reports drops: only this thread waits for a sender that is stopped.
        static NOTICES: Lock<Option<Sender<Notice>>> = Lock::new(|| None);
        let mut notices = NOTICES.lock();
        if notices.is_none() {
            let (sender, all) = mpsc::channel::<Notice>();
            let tell = move || all.iter().for_each(|(token, pages)| tell_dropped(token, &pages));
            // Without the thread the sender only notices when this process ends.
            *notices = background::spawn("gapless-dropped", tell).ok().map(|_| sender);
        }
        if let Some(sender) = &*notices {
            let _ = sender.send((self.token, std::mem::take(&mut self.pages)));
        }
    }
}

/// A sender that has ended needs no report. A process without a free descriptor tries again until it has one.
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

/// Gets pages from the process that listens under `token`, and passes each to `take`, in order. The caller drops the
/// returned value after the pages are unmapped.
///
/// # Errors
/// If the sender does not answer or cannot send, or if `take` fails. The text says why.
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

/// True for this process's user and for root, which may read every process anyway.
fn is_trusted(user: u32) -> bool {
    // SAFETY: `geteuid` takes nothing and cannot fail.
    user == 0 || user == unsafe { geteuid() }
}

// ---- files of a process without Gapless ----

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

/// The same numbers on all of Linux's architectures.
const PIDFD_OPEN: i64 = 434;
const PIDFD_GETFD: i64 = 438;

/// Copies files that are open in another process, as PyTorch does.
///
/// # Errors
/// If the process has ended, or if this one may not look at it.
pub(super) fn taken_from(process: i32, files: &[RawFd]) -> Result<Vec<OwnedFd>, String> {
    let failed = |what: &str| {
        let error = io::Error::last_os_error();
        format!(
            "{what} of process {process} cannot be had ({error}): it has ended, or this process may not look at it \
             (kernel.yama.ptrace_scope, CAP_SYS_PTRACE)"
        )
    };
    // SAFETY: the arguments are numbers. The answer is a new descriptor, or negative.
    let opened = unsafe { syscall(PIDFD_OPEN, process, 0) };
    if opened < 0 {
        return Err(failed("the memory"));
    }
    // SAFETY: the call above opened this descriptor, which nothing else owns.
    let handle = unsafe { OwnedFd::from_raw_fd(opened as RawFd) };
    let copy = |&file: &RawFd| {
        // SAFETY: the arguments are numbers. The answer is a new descriptor, or negative.
        let copied = unsafe { syscall(PIDFD_GETFD, handle.as_raw_fd(), file, 0) };
        if copied < 0 {
            return Err(failed("the memory"));
        }
        // SAFETY: the call above opened this descriptor, which nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(copied as RawFd) })
    };
    files.iter().map(copy).collect()
}
