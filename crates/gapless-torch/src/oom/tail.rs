//! The file that a failed request leaves for `gapless oom` and `gapless report`. If there is a recording, it is that,
//! complete up to the failure. Otherwise it is a separate file with all live blocks, all mapped memory, and the failed
//! request.
//!
//! A program that catches failures must not fill a disk, so a process leaves at most [`MOST`] files. If a file cannot
//! be written, the text says so.

use super::Facts;
use crate::recorder::frames::Place;
use crate::recorder::held::Picture;
use crate::recorder::{self, scribe};
use gapless_cuda::locks::{Guard, Lock, SetOnce};
use gapless_trace::gtrace::GtraceError;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The most files that a process leaves.
pub const MOST: u32 = 3;

/// The file that a failure left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// None: this is switched off.
    #[default]
    Off,
    Left(PathBuf),
    /// The recording contains the failure.
    Recording(PathBuf),
    /// None: the process has left its last file, this one.
    Enough(PathBuf),
    Failed(String),
}

/// The folder for files; `None`: no files.
static FOLDER: SetOnce<Option<PathBuf>> = SetOnce::new();

/// The number of files that exist or are being written, and the path of the last.
static LEFT: AtomicU32 = AtomicU32::new(0);
static LAST: Lock<Option<PathBuf>> = Lock::new(|| None);

/// Sets the folder for files, once; `None`: no files.
pub fn set_folder(folder: Option<PathBuf>) {
    let _ = FOLDER.set(folder);
}

/// True if a file needs a picture of the card. Called under the card's lock, so it does not wait.
pub(crate) fn is_wanted() -> bool {
    FOLDER.get().is_none_or(Option::is_some) && LEFT.load(Ordering::Relaxed) < MOST
}

fn last() -> Guard<'static, Option<PathBuf>> {
    LAST.lock()
}

/// Writes a file. No card is locked.
pub(crate) fn leave(picture: &Picture, facts: &Facts, stack: &[Place]) -> Tail {
    let folders = match FOLDER.get() {
        Some(Some(folder)) => vec![folder.clone()],
        Some(None) => return Tail::Off,
        None => vec![std::env::current_dir().unwrap_or_default(), std::env::temp_dir()],
    };
    let one_more = |left: u32| (left < MOST).then_some(left + 1);
    if LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
        return of_earlier();
    }
    let mut why = String::new();
    for folder in folders {
        match write(&folder, picture, facts, stack) {
            Ok(path) => {
                *last() = Some(path.clone());
                return Tail::Left(path);
            }
            Err(GtraceError::Io(error)) => why = format!("{error}: {}", folder.display()),
            Err(error) => why = format!("{error}: {}", folder.display()),
        }
    }
    LEFT.fetch_sub(1, Ordering::Relaxed);
    Tail::Failed(why)
}

fn write(folder: &Path, picture: &Picture, facts: &Facts, stack: &[Place]) -> Result<PathBuf, GtraceError> {
    let (path, file) = create(folder)?;
    let failed = (facts.free, facts.size, facts.stream, facts.pool);
    match scribe::write_picture(file, picture, failed, stack) {
        Ok(()) => Ok(path),
        Err(error) => {
            // Leaves no incomplete file.
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

/// Creates the next file. It never replaces one: an earlier process may have had this one's number.
fn create(folder: &Path) -> std::io::Result<(PathBuf, File)> {
    let mut number = 1;
    loop {
        let path = folder.join(format!("gapless-oom.{}.{number}.gtrace", std::process::id()));
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 1000 => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The recording, after the failure is in it.
pub(crate) fn of_recording() -> Tail {
    match recorder::catch_up() {
        Some(Ok(path)) => Tail::Recording(path),
        Some(Err(why)) => Tail::Failed(why),
        None => Tail::Off,
    }
}

/// The last file, if no more are left.
pub(crate) fn of_earlier() -> Tail {
    last().clone().map_or(Tail::Off, Tail::Enough)
}
