//! What a failed request leaves behind for `gapless oom` and `gapless report`: the recording, complete up to the
//! failure, where there is one; else a file of its own with everything that is live and mapped, and the request that
//! failed.
//!
//! A program that catches failures must not fill a disk: a process leaves [`MOST`] files. Where none can be written the
//! text says so, and that is all.

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

/// Files that a process leaves.
pub const MOST: u32 = 3;

/// What was left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// Nothing: it is switched off.
    #[default]
    Off,
    Left(PathBuf),
    /// The recording has it.
    Recording(PathBuf),
    /// Nothing more: this was the last one.
    Enough(PathBuf),
    Failed(String),
}

/// Where files go; `None`: nowhere.
static FOLDER: SetOnce<Option<PathBuf>> = SetOnce::new();

/// How many there are, or are being written; and the last.
static LEFT: AtomicU32 = AtomicU32::new(0);
static LAST: Lock<Option<PathBuf>> = Lock::new(|| None);

/// Says where files go, once; `None`: none are left.
pub fn set_folder(folder: Option<PathBuf>) {
    let _ = FOLDER.set(folder);
}

/// Whether a picture of the card is wanted for a file. Asked under the card's lock, so nothing is waited for.
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
            // Nothing half-written.
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

/// The next file, never one that is there: another process may have had this one's number.
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

/// The recording, once the failure is in it.
pub(crate) fn of_recording() -> Tail {
    match recorder::catch_up() {
        Some(Ok(path)) => Tail::Recording(path),
        Some(Err(why)) => Tail::Failed(why),
        None => Tail::Off,
    }
}

/// The last one, where no more are left.
pub(crate) fn of_earlier() -> Tail {
    last().clone().map_or(Tail::Off, Tail::Enough)
}
