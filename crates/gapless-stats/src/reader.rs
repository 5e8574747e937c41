//! Reads the statistics files of a folder, and removes those of dead processes.

use crate::error::StatisticsError;
use crate::folder::{Folder, FolderError};
use crate::layout;
use crate::process;
use crate::statistics::Statistics;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A statistics file that is being written is read again this many times, with this pause: a write takes microseconds.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);
/// The reader cannot check that a writer in another namespace lives. So a statistics file from there is shown while it
/// is fresh, and removed when it is old.
const FRESH: u64 = 10_000_000;
const OLD: Duration = Duration::from_secs(86_400);
/// At most this many files of one folder are read.
const MOST: usize = 4096;

/// The result of a reading.
#[derive(Debug, Default)]
pub struct Readings {
    /// By pid.
    pub files: Vec<Statistics>,
    /// Folders that are not used, and the reason.
    pub refused: Vec<FolderError>,
    /// Statistics files that cannot be read, and the reason.
    pub unreadable: Vec<(PathBuf, StatisticsError)>,
}

/// All statistics files in the folders of this user.
#[must_use]
pub fn read_all(candidates: &[PathBuf]) -> Readings {
    let mut readings = Readings::default();
    for path in candidates {
        match Folder::open(path) {
            Ok(Some(folder)) => read_folder(&folder, &mut readings),
            Ok(None) => {}
            Err(error) => readings.refused.push(error),
        }
    }
    readings.files.sort_by_key(|statistics| (statistics.process.pid, statistics.process.start));
    readings
}

fn read_folder(folder: &Folder, readings: &mut Readings) {
    let entries = match fs::read_dir(folder.path()) {
        Ok(entries) => entries,
        Err(error) => {
            readings.refused.push(FolderError::Io(folder.path().to_owned(), error));
            return;
        }
    };
    let here = process::namespace();
    for entry in entries.filter_map(Result::ok).take(MOST) {
        let name = entry.file_name();
        let Some((pid, start, namespace)) = name.to_str().and_then(process::parse_name) else { continue };
        let path = entry.path();
        let is_near = here == Some(namespace);
        if is_left_over(&path, (pid, start), is_near) {
            let _ = fs::remove_file(&path);
            continue;
        }
        match read(&path) {
            Ok(statistics) => {
                let writer = &statistics.process;
                if (writer.pid, writer.start, writer.namespace) != (pid, start, namespace) {
                    readings.unreadable.push((
                        path,
                        StatisticsError::Wrong("it is not the statistics file that its name says"),
                    ));
                } else if is_near || process::now().saturating_sub(statistics.time) < FRESH {
                    readings.files.push(statistics);
                }
            }
            // Its writer is about to write it, or has just ended.
            Err(StatisticsError::Torn) => {}
            Err(StatisticsError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => readings.unreadable.push((path, error)),
        }
    }
}

/// Removes the statistics files that killed processes left in a folder. Readers do it too, but if there is no reader
/// the next writer has to.
pub fn sweep(folder: &Folder) {
    let here = process::namespace();
    for entry in fs::read_dir(folder.path()).into_iter().flatten().filter_map(Result::ok).take(MOST) {
        let name = entry.file_name();
        let Some((pid, start, namespace)) = name.to_str().and_then(process::parse_name) else { continue };
        if is_left_over(&entry.path(), (pid, start), here == Some(namespace)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_left_over(path: &Path, (pid, start): (u32, u64), is_near: bool) -> bool {
    if is_near { process::start_of(pid) != Some(start) } else { is_old(path) }
}

fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|meta| meta.modified());
    modified.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > OLD))
}

/// Reads a statistics file.
///
/// # Errors
/// If it cannot be read, or is not a statistics file.
pub fn read(path: &Path) -> Result<Statistics, StatisticsError> {
    let meta = fs::symlink_metadata(path)?;
    // A read of a pipe would block.
    if !meta.is_file() {
        return Err(StatisticsError::NotStatistics);
    }
    let mut bytes = Vec::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        bytes.clear();
        File::open(path)?.take(layout::LARGEST as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > layout::LARGEST {
            return Err(StatisticsError::TooLarge(meta.len()));
        }
        match layout::decode(&bytes) {
            Err(StatisticsError::Torn) => {}
            other => return other,
        }
    }
    Err(StatisticsError::Torn)
}
