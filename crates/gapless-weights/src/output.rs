//! A file that appears whole or not at all: written beside its place, renamed when it is complete and on disk.

use crate::error::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

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
        let fail = |source| Error::Write { path: destination.to_owned(), source };
        let Some(name) = destination.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            return Error::refused(destination, "this is not a file name", "name a file with -o");
        };
        if destination.is_dir() {
            return Error::refused(destination, "this is a directory", "name a file with -o");
        }
        remove_stale(destination, &name);
        let part = destination.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&part).map_err(fail)?;
        Ok(Output { file, part, destination: destination.to_owned(), done: false })
    }

    fn fail(&self, source: io::Error) -> Error {
        Error::Write { path: self.destination.clone(), source }
    }

    /// Writes all of `bytes` at `at`.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        write_all_at(&self.file, bytes, at).map_err(|source| self.fail(source))
    }

    /// Makes the file `length` bytes long.
    pub(crate) fn set_length(&self, length: u64) -> Result<()> {
        self.file.set_len(length).map_err(|source| self.fail(source))
    }

    /// Waits until the bytes are on disk, then gives the file its name.
    pub(crate) fn put_in_place(mut self) -> Result<()> {
        self.file.sync_all().map_err(|source| self.fail(source))?;
        fs::rename(&self.part, &self.destination).map_err(|source| self.fail(source))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.done {
            // Nothing better can be done about a file that cannot be removed either.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Removes what killed writers of the same file left behind. A process that still runs keeps its part.
fn remove_stale(destination: &Path, name: &str) {
    let folder = match destination.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let pid = file.strip_prefix(&format!(".{name}.")).and_then(|rest| rest.strip_suffix(".part"));
        let Some(pid) = pid.filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            continue;
        };
        let is_linux = Path::new("/proc/self").exists();
        if is_linux && !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_file(entry.path());
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
