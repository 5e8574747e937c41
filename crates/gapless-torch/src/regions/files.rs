//! Files for the bytes of a sleeping region.
//!
//! Normally this is one file without a name: no other process finds it, and it is gone when this one ends. Programs
//! that count backups by their files can ask for named files ([`show_in`]). These are removed when the region wakes.

use gapless_cuda::locks::Lock;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The most named files of a store: ranges beyond share the last one.
const MOST_NAMED: usize = 64;

static SHOWN_IN: Lock<Option<PathBuf>> = Lock::new(|| None);

/// Gives files names in this folder from now on; `None`: no names.
pub(super) fn show_in(folder: Option<PathBuf>) {
    *SHOWN_IN.lock() = folder;
}

/// Invariant: parts are in order of `from`, and the first begins at 0. A part has the bytes up to the next one.
#[derive(Debug)]
pub(super) struct Files {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    from: u64,
    file: File,
    path: Option<PathBuf>,
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Files {
    /// Empty files for ranges that begin at these places of a store, in order.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub(super) fn new(ranges: impl Iterator<Item = u64>) -> Result<Files, String> {
        let named = SHOWN_IN.lock().clone();
        let folder = named.clone().or_else(|| std::env::var_os("GAPLESS_SLEEP_DIR").map(PathBuf::from));
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        let most = if named.is_some() { MOST_NAMED } else { 1 };
        let mut parts = Vec::new();
        for from in std::iter::once(0).chain(ranges.filter(|at| *at > 0)).take(most) {
            let (file, path) = make(&folder)?;
            if named.is_none() {
                let _ = std::fs::remove_file(&path);
            }
            parts.push(Part { from, file, path: named.is_some().then_some(path) });
        }
        Ok(Files { parts })
    }

    /// Calls `work` with each file that has a part of `[at, at + size)`, the place in it, and the range of the bytes.
    fn each(
        &self,
        at: u64,
        size: usize,
        mut work: impl FnMut(&File, u64, std::ops::Range<usize>) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut done = 0;
        while done < size {
            let here = at + done as u64;
            let part = self.parts.partition_point(|part| part.from <= here) - 1;
            let end = self.parts.get(part + 1).map_or(u64::MAX, |next| next.from);
            let bytes = (size - done).min(usize::try_from(end - here).unwrap_or(usize::MAX));
            work(&self.parts[part].file, here - self.parts[part].from, done..done + bytes)?;
            done += bytes;
        }
        Ok(())
    }

    /// Writes bytes from `at` on.
    ///
    /// # Errors
    /// If the disk has no room.
    pub(super) fn write(&self, bytes: &[u8], at: u64) -> Result<(), String> {
        self.each(at, bytes.len(), |file, place, part| file.write_all_at(&bytes[part], place)).map_err(|error| {
            format!(
                "the file that the region would be kept in cannot be written ({error}): set GAPLESS_SLEEP_DIR to a folder with room"
            )
        })
    }

    /// Reads bytes from `at` on.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn read(&self, into: &mut [u8], at: u64) -> Result<(), String> {
        self.each(at, into.len(), |file, place, part| file.read_exact_at(&mut into[part], place))
            .map_err(|error| format!("the file that a sleeping region is kept in cannot be read ({error})"))
    }
}

fn make(folder: &Path) -> Result<(File, PathBuf), String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("gapless-sleep-{}-{number}", std::process::id()));
    let open = std::fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
    match open {
        Ok(file) => Ok((file, path)),
        Err(error) => Err(format!(
            "no file can be made in {} ({error}): set GAPLESS_SLEEP_DIR to a folder with room",
            folder.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_one_file_and_from_many() {
        let bytes: Vec<u8> = (0..1000_u32).map(|at| (at % 251) as u8).collect();
        let folder = std::env::temp_dir().join(format!("gapless-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for named in [None, Some(folder.clone())] {
            show_in(named.clone());
            let files = Files::new([0, 100, 640].into_iter()).expect("files");
            files.write(&bytes[..500], 0).expect("written");
            files.write(&bytes[500..], 500).expect("written");
            let mut back = vec![0; 700];
            files.read(&mut back, 90).expect("read");
            assert_eq!(back, bytes[90..790]);
            let there = std::fs::read_dir(&folder).expect("a folder").count();
            assert_eq!(there, if named.is_some() { 3 } else { 0 });
        }
        show_in(None);
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0, "removed with the store");
        std::fs::remove_dir(&folder).expect("empty");
    }
}
