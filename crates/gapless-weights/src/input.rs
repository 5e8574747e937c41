//! A file that is read by ranges, never mapped: a file that gets shorter is an error, not a signal.

use crate::error::{Error, Result};
use crate::pace::Pace;
use crate::patience::Patience;
use gapless_formats::safetensors::{self, Header};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// An open file, with its size and time when it was opened.
#[derive(Debug)]
pub struct Input {
    pub path: PathBuf,
    file: File,
    pub size: u64,
    changed: Option<SystemTime>,
    /// The limit on the speed of reading; `None`: unlimited.
    pub pace: Option<Arc<Pace>>,
    read: AtomicU64,
}

impl Input {
    pub fn open(path: &Path) -> Result<Input> {
        let fail = |source| Error::Read { path: path.to_owned(), source };
        let refuse = || {
            let help = "give a file or a folder with .safetensors files";
            Error::refused(path, "this is not a regular file", help)
        };
        // Checked before opening, because opening a pipe without a writer would block for ever.
        if !std::fs::metadata(path).map_err(fail)?.is_file() {
            return refuse();
        }
        let file = File::open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if !meta.is_file() {
            return refuse();
        }
        Ok(Input {
            path: path.to_owned(),
            size: meta.len(),
            changed: meta.modified().ok(),
            file,
            pace: None,
            read: AtomicU64::new(0),
        })
    }

    /// Reads exactly `out.len()` bytes from `at`. Failures that may pass are tried again for a while.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        if let Some(pace) = &self.pace {
            pace.wait(out.len() as u64, || false);
        }
        self.read_patiently(at, out, Patience::default())
    }

    /// As `read`, without the pace, and with the caller's patience.
    pub fn read_patiently(&self, at: u64, out: &mut [u8], patience: Patience) -> Result<()> {
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        let size = || self.file.metadata().map(|meta| meta.len());
        let mut read = |part: &mut [u8], at: u64| read_at(&self.file, part, at);
        patience
            .fill(at, out, &mut read, &size)
            .map_err(|source| Error::Read { path: self.path.clone(), source })
    }

    /// The bytes of a range.
    pub fn bytes(&self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// An error if the file is no longer the one that was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|source| Error::Read { path: self.path.clone(), source })?;
        if now.len() != self.size || now.modified().ok() != self.changed {
            return Error::refused(
                &self.path,
                "the file changed while it was read, so the result is refused",
                "wait until the file is written, then run the command again",
            );
        }
        Ok(())
    }

    /// Bytes that were read so far, without the header.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The time of the file's last change.
    pub fn modified(&self) -> Option<SystemTime> {
        self.changed
    }

    /// The header, as of a safetensors file.
    pub fn header(&self) -> Result<Header> {
        safetensors::read(&self.file).map_err(|problem| Error::Format { path: self.path.clone(), problem })
    }

    /// The file itself, for readers of other formats.
    pub fn file(&self) -> &File {
        &self.file
    }
}

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, at)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, out: &mut [u8], at: u64) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(at))?;
    file.read(out)
}
