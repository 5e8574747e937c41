//! A file or a folder that appears whole or not at all: written beside its place, renamed when it is complete and on
//! disk.
//!
//! A writer holds a lock on its part. A part whose lock is free was left by a writer that was killed: numbers of
//! processes cannot show that, because containers reuse the same ones after a restart.

use crate::boundary::boundary;
use crate::checksum::checksum;
use crate::error::{Error, Result};
use crate::whole::check_apart;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a file's name that its part repeats; file systems allow 255 in all.
const SHOWN: usize = 200;

/// A file beside its destination; removed again unless it is put in place.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    part: PathBuf,
    destination: PathBuf,
    done: bool,
}

impl Output {
    pub(crate) fn create(destination: &Path) -> Result<Output> {
        boundary();
        let fail = |source| Error::Write { path: destination.to_owned(), source };
        let Some(name) = destination.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            return Error::refused(destination, "this is not a file name", "name a file with -o");
        };
        // A rename would put a file in the place of /dev/null, or of a pipe that another program reads.
        match fs::metadata(destination) {
            Ok(there) if there.is_dir() => {
                return Error::refused(destination, "this is a directory", "name a file with -o");
            }
            Ok(there) if !there.is_file() => {
                let what = "this is a device, a pipe or a socket, and would be replaced by a file";
                return Error::refused(destination, what, "name a file with -o");
            }
            _ => {}
        }
        remove_stale(destination, &name);
        let (part, file) = make(destination, &name, |part| {
            OpenOptions::new().read(true).write(true).create_new(true).open(part)
        })
        .map_err(fail)?;
        Ok(Output { file, part, destination: destination.to_owned(), done: false })
    }

    fn fail(&self, source: io::Error) -> Error {
        Error::Write { path: self.destination.clone(), source }
    }

    /// Writes all of `bytes` at `at`.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        boundary();
        write_all_at(&self.file, bytes, at).map_err(|source| self.fail(source))
    }

    /// Makes the file `length` bytes long.
    pub(crate) fn set_length(&self, length: u64) -> Result<()> {
        self.file.set_len(length).map_err(|source| self.fail(source))
    }

    /// Waits until the bytes are on disk, then gives the file its name.
    pub(crate) fn put_in_place(mut self) -> Result<()> {
        boundary();
        self.file.sync_all().map_err(|source| self.fail(source))?;
        boundary();
        fs::rename(&self.part, &self.destination).map_err(|source| self.fail(source))?;
        self.done = true;
        boundary();
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.done {
            // If the file cannot be removed either, there is nothing left to do.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// A folder beside its destination; removed again, with all that is in it, unless it is put in place.
#[derive(Debug)]
pub(crate) struct PartFolder {
    part: PathBuf,
    destination: PathBuf,
    /// Holds the lock.
    _open: File,
    done: bool,
}

impl PartFolder {
    /// An error unless `destination` is free (or an empty folder), and not within the folder `from`.
    pub(crate) fn check(from: &Path, destination: &Path) -> Result<PathBuf> {
        let name = destination.file_name();
        let Some(name) = name else {
            return Error::refused(
                destination,
                "this is not the name of a folder",
                "name a new folder with -o",
            );
        };
        if let Ok(meta) = fs::symlink_metadata(destination) {
            let is_empty =
                meta.is_dir() && fs::read_dir(destination).is_ok_and(|mut entries| entries.next().is_none());
            if !is_empty {
                let what = if meta.is_dir() { "the folder is not empty" } else { "this is there already" };
                return Error::refused(destination, what, "name a new folder with -o, or remove this one");
            }
        }
        check_apart(from, destination)?;
        Ok(parent_of(destination).join(name))
    }

    /// The folder beside a destination that was checked.
    pub(crate) fn create(destination: PathBuf) -> Result<PartFolder> {
        let name = destination.file_name().unwrap_or_default().to_string_lossy().into_owned();
        remove_stale(&destination, &name);
        let made = fs::create_dir_all(parent_of(&destination)).and_then(|()| {
            make(&destination, &name, |part| fs::create_dir(part).and_then(|()| File::open(part)))
        });
        let (part, _open) = made.map_err(|source| Error::Write { path: destination.clone(), source })?;
        Ok(PartFolder { part, destination, _open, done: false })
    }

    /// The folder for the files until then.
    pub(crate) fn path(&self) -> &Path {
        &self.part
    }

    /// Gives the folder its name.
    pub(crate) fn put_in_place(mut self) -> Result<()> {
        boundary();
        fs::rename(&self.part, &self.destination)
            .map_err(|source| Error::Write { path: self.destination.clone(), source })?;
        self.done = true;
        Ok(())
    }
}

impl Drop for PartFolder {
    fn drop(&mut self) {
        if !self.done {
            // If the folder cannot be removed either, there is nothing left to do.
            let _ = fs::remove_dir_all(&self.part);
        }
    }
}

/// True if two paths are one file.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The beginning of the names of a file's parts. Long names are cut and get a checksum of the whole name.
fn beginning(name: &str) -> String {
    if name.len() <= SHOWN {
        return format!(".{name}.");
    }
    let end = (0..=SHOWN).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!(".{}~{:016x}.", &name[..end], checksum(name.as_bytes()))
}

/// Makes a part of `destination` by `create`, and locks it.
fn make(
    destination: &Path,
    name: &str,
    create: impl Fn(&Path) -> io::Result<File>,
) -> io::Result<(PathBuf, File)> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let (beginning, pid) = (beginning(name), std::process::id());
    loop {
        let end = match MADE.fetch_add(1, Ordering::Relaxed) {
            0 => format!("{pid}.part"),
            more => format!("{pid}-{more}.part"),
        };
        let part = destination.with_file_name(format!("{beginning}{end}"));
        let file = match create(&part) {
            // A process of the same number in another container writes it, or it could not be removed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        };
        // If the file system has no locks, `is_stale` uses the process number instead.
        let _ = file.try_lock();
        // Another process may have removed it as a leftover before it was locked.
        if part.exists() {
            return Ok((part, file));
        }
    }
}

/// Removes leftovers of killed writers of the same file or folder.
fn remove_stale(destination: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(parent_of(destination)) else { return };
    let beginning = beginning(name);
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let number = file.strip_prefix(&beginning).and_then(|rest| rest.strip_suffix(".part"));
        let pid = number.map(|number| number.split_once('-').map_or(number, |(pid, _)| pid));
        let Some(pid) = pid.filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            continue;
        };
        if is_stale(&entry.path(), pid) {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let _ = if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        }
    }
}

/// True if no process holds a part's lock; without locks, if no process of this machine has its number.
fn is_stale(part: &Path, pid: &str) -> bool {
    match File::open(part).map(|file| file.try_lock()) {
        Ok(Ok(())) => true,
        Ok(Err(TryLockError::WouldBlock)) => false,
        Ok(Err(TryLockError::Error(_))) | Err(_) => {
            Path::new("/proc/self").exists() && !Path::new("/proc").join(pid).exists()
        }
    }
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(not(unix))]
fn write_all_at(mut file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}
