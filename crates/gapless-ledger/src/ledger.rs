//! The book of one card, in a file that processes share. A process changes it under the file's advisory lock, which the
//! kernel releases when its holder dies. A process writes its own entry from its own records, so its next change
//! repairs any damage to the file.
//!
//! A process that is stopped while it holds the lock would block the others. They give up after [`PATIENCE`], with an
//! error that the caller turns into an out-of-memory error.

use crate::book::{Answer, Book, Entry, JoinError};
use crate::processes::{Processes, Who};
use crate::record::{self, Record, SIZE};
use crate::share::Share;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time limit for getting the lock, which is held for microseconds.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two tries for a lock that another process holds.
const PAUSE: Duration = Duration::from_micros(50);

/// The reason why a ledger cannot be used.
#[derive(Debug)]
pub enum LedgerError {
    Io(PathBuf, std::io::Error),
    /// The file is not a ledger of this version, or is one of another card.
    Foreign(PathBuf),
    /// Another process has the lock and does not release it.
    Busy(PathBuf),
    Join(JoinError),
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerError::Io(path, error) => write!(f, "the ledger {}: {error}", path.display()),
            LedgerError::Foreign(path) => write!(
                f,
                "{} is not this card's ledger, or one of another version of gapless: end the processes that use it, and remove it",
                path.display()
            ),
            LedgerError::Busy(path) => {
                write!(
                    f,
                    "the ledger {} is locked by a process that does not run: is one stopped?",
                    path.display()
                )
            }
            LedgerError::Join(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LedgerError {}

/// The result of [`Ledger::tick`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Bytes that dead processes had held.
    pub freed: u64,
    /// Bytes that this process's tenant should give back: see [`Book::overdue`].
    pub overdue: u64,
}

/// A process's place in a card's ledger.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    /// This process's own entry, of which the file has a copy.
    me: Entry,
    processes: Box<dyn Processes>,
}

/// The lock, until it is dropped.
struct Held<'a>(&'a File);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn lock<'a>(file: &'a File, path: &Path) -> Result<Held<'a>, LedgerError> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Held(file)),
            Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(LedgerError::Busy(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(LedgerError::Io(path.to_owned(), error)),
        }
    }
}

/// Opens the file, and creates it if needed, with access for this user only.
fn open_file(path: &Path) -> Result<File, LedgerError> {
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = open.map_err(|error| LedgerError::Io(path.to_owned(), error))?;
    let is_own = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    if is_own { Ok(file) } else { Err(LedgerError::Foreign(path.to_owned())) }
}

/// The book in a file whose lock is held, with its records; `None` if the file is empty.
fn read_book(file: &File, path: &Path) -> Result<Option<(Book, Vec<Record>)>, LedgerError> {
    let failed = |error| LedgerError::Io(path.to_owned(), error);
    let length = file.metadata().map_err(failed)?.len() as usize;
    if length == 0 {
        return Ok(None);
    }
    let count = (length / SIZE).clamp(1, 1 + crate::book::MOST);
    let mut bytes = vec![0; count * SIZE];
    // If the file was cut meanwhile, the missing part stays zero, which reads as empty places.
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64).map_err(failed)? {
            0 => break,
            n => read += n,
        }
    }
    let mut records: Vec<Record> = bytes.as_chunks::<SIZE>().0.to_vec();
    let head = records.remove(0);
    let capacity = record::capacity_of(&head).ok_or_else(|| LedgerError::Foreign(path.to_owned()))?;
    let entries = records.iter().map(record::read).collect();
    Ok(Some((Book { capacity, entries }, records)))
}

/// The book of a card, for callers that only read it.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn look(path: &Path) -> Result<Book, LedgerError> {
    let file =
        OpenOptions::new().read(true).open(path).map_err(|error| LedgerError::Io(path.to_owned(), error))?;
    let _held = lock(&file, path)?;
    Ok(read_book(&file, path)?.map(|(book, _)| book).unwrap_or_default())
}

impl Ledger {
    /// Enters this process into the ledger `path` of a card with `capacity` bytes, as one of a tenant's.
    ///
    /// # Errors
    /// When the ledger cannot be used, or the tenant's share cannot be.
    pub fn join(
        path: &Path,
        capacity: u64,
        share: &Share,
        processes: Box<dyn Processes>,
    ) -> Result<Ledger, LedgerError> {
        let file = open_file(path)?;
        let me = Entry {
            who: processes.me(),
            name: share.name.clone(),
            limit: share.size.of(capacity),
            borrow: share.borrow,
            held: 0,
            wants: 0,
            outside: 0,
        };
        let mut ledger = Ledger { path: path.to_owned(), file, me, processes };
        {
            let _held = lock(&ledger.file, path)?;
            ledger.prepare(capacity)?;
        }
        ledger
            .change(|book, me, processes| {
                book.drop_dead(|who| processes.is_alive(who));
                book.join(me.clone())
            })?
            .map_err(LedgerError::Join)?;
        Ok(ledger)
    }

    /// Writes the head if there is none, or if it is of another card and no process uses the file. The lock is held.
    fn prepare(&self, capacity: u64) -> Result<(), LedgerError> {
        let failed = |error| LedgerError::Io(self.path.clone(), error);
        let in_use = match read_book(&self.file, &self.path) {
            Ok(Some((book, _))) if book.capacity == capacity => return Ok(()),
            Ok(Some((mut book, _))) => {
                book.drop_dead(|who| self.processes.is_alive(who));
                book.iter().next().is_some()
            }
            // A file without a whole head is of a killed process. A longer one is no ledger, and is kept.
            Err(LedgerError::Foreign(_)) => self.file.metadata().map_err(failed)?.len() >= SIZE as u64,
            Ok(None) => false,
            Err(other) => return Err(other),
        };
        if in_use {
            return Err(LedgerError::Foreign(self.path.clone()));
        }
        self.file.set_len(0).map_err(failed)?;
        self.file.write_all_at(&record::head(capacity), 0).map_err(failed)
    }

    /// Runs `work` on the book under the lock, and writes the entries that it changed.
    fn change<T>(
        &mut self,
        work: impl FnOnce(&mut Book, &Entry, &dyn Processes) -> T,
    ) -> Result<T, LedgerError> {
        let held = lock(&self.file, &self.path)?;
        let (mut book, before) =
            read_book(&self.file, &self.path)?.ok_or_else(|| LedgerError::Foreign(self.path.clone()))?;
        let result = work(&mut book, &self.me, &*self.processes);
        for (at, entry) in book.entries.iter().enumerate() {
            let now = record::write(entry.as_ref());
            if before.get(at) != Some(&now) {
                let place = (1 + at) * SIZE;
                self.file
                    .write_all_at(&now, place as u64)
                    .map_err(|error| LedgerError::Io(self.path.clone(), error))?;
            }
        }
        drop(held);
        if let Some(entry) = book.entries.into_iter().flatten().find(|entry| entry.who == self.me.who) {
            self.me = entry;
        }
        Ok(result)
    }

    /// Asks for `bytes` more, and enters them, which must happen before the driver is asked for them. Dead processes
    /// are searched only if the bytes are not there.
    ///
    /// # Errors
    /// When the ledger cannot be used; nothing was granted.
    pub fn ask(&mut self, bytes: u64) -> Result<Answer, LedgerError> {
        self.change(|book, me, processes| {
            book.put(me.clone());
            match book.ask(me.who, bytes) {
                Answer::Granted => Answer::Granted,
                _ if book.drop_dead(|who| processes.is_alive(who)) > 0 => book.ask(me.who, bytes),
                other => other,
            }
        })
    }

    /// Gives granted `bytes` back, which the driver has again or never gave.
    pub fn give(&mut self, bytes: u64) {
        self.me.held = self.me.held.saturating_sub(bytes);
        self.enter();
    }

    /// [`Ledger::ask`] for memory outside of the pool, such as a context that is about to be made.
    ///
    /// # Errors
    /// As there.
    pub fn ask_outside(&mut self, bytes: u64) -> Result<Answer, LedgerError> {
        let answer = self.ask(bytes)?;
        if answer == Answer::Granted {
            self.me.outside += bytes;
            self.enter();
        }
        Ok(answer)
    }

    /// Stops waiting for the last request.
    pub fn withdraw(&mut self) {
        self.me.wants = 0;
        self.enter();
    }

    /// Sets the bytes that this process holds outside of the pool. They exist already, so they cannot be refused.
    pub fn set_outside(&mut self, bytes: u64) {
        self.me.held = self.me.held.saturating_sub(self.me.outside) + bytes;
        self.me.outside = bytes;
        self.enter();
    }

    /// Writes this process's own entry. If that fails, the next change writes it.
    fn enter(&mut self) {
        let _ = self.change(|book, me, _| book.put(me.clone()));
    }

    /// Forgets processes that are gone, repairs this one's own entry, and returns the bytes to give back.
    ///
    /// # Errors
    /// When the ledger cannot be used.
    pub fn tick(&mut self) -> Result<Tick, LedgerError> {
        self.reopen_if_replaced()?;
        self.change(|book, me, processes| {
            let freed = book.drop_dead(|who| who == me.who || processes.is_alive(who));
            book.put(me.clone());
            Tick { freed, overdue: book.overdue(me.who) }
        })
    }

    /// If the ledger's file was removed while in use, it is made again, for processes that join later.
    fn reopen_if_replaced(&mut self) -> Result<(), LedgerError> {
        let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
        let there = std::fs::metadata(&self.path).ok().map(inode);
        if there.is_some() && there == self.file.metadata().ok().map(inode) {
            return Ok(());
        }
        let capacity = read_book(&self.file, &self.path)?.map_or(0, |(book, _)| book.capacity);
        self.file = open_file(&self.path)?;
        let _held = lock(&self.file, &self.path)?;
        self.prepare(capacity)
    }

    /// Takes this process out.
    pub fn leave(mut self) {
        let _ = self.change(|book, me, _| book.remove(me.who));
    }

    /// The present book.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn look(&self) -> Result<Book, LedgerError> {
        look(&self.path)
    }

    #[must_use]
    pub fn who(&self) -> Who {
        self.me.who
    }

    /// This process's own entry.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.me
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
