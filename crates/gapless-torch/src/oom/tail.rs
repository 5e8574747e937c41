//! What a failed request leaves behind for `gapless oom` and `gapless report`: the recording, complete up to the failure, where there is one; else a
//! file of its own with everything that is live and mapped, and the request that failed.
//!
//! A program that catches failures must not fill a disk: a process leaves [`MOST`] files. Where none can be written the text says so, and that is all.

use super::Facts;
use crate::recorder::frames::Place;
use crate::recorder::held::Picture;
use crate::recorder::{self, scribe};
use gapless_trace::gtrace::GtraceError;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

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
static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();

/// How many there are, and the last.
static LEFT: Mutex<(u32, Option<PathBuf>)> = Mutex::new((0, None));

/// Says where files go, once; `None`: none are left.
pub fn set_folder(folder: Option<PathBuf>) {
    let _ = FOLDER.set(folder);
}

/// Whether a picture of the card is wanted for a file.
pub(crate) fn is_wanted() -> bool {
    FOLDER.get().is_none_or(Option::is_some) && left().0 < MOST
}

fn left() -> MutexGuard<'static, (u32, Option<PathBuf>)> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a file. No card is locked.
pub(crate) fn leave(picture: &Picture, facts: &Facts, stack: &[Place]) -> Tail {
    let mut left = left();
    if left.0 >= MOST {
        return left.1.clone().map_or(Tail::Off, Tail::Enough);
    }
    let folders = match FOLDER.get() {
        Some(Some(folder)) => vec![folder.clone()],
        Some(None) => return Tail::Off,
        None => vec![std::env::current_dir().unwrap_or_default(), std::env::temp_dir()],
    };
    let mut why = String::new();
    for folder in folders {
        let path = folder.join(format!("gapless-oom.{}.{}.gtrace", std::process::id(), left.0 + 1));
        match write(&path, picture, facts, stack) {
            Ok(()) => {
                *left = (left.0 + 1, Some(path.clone()));
                return Tail::Left(path);
            }
            Err(GtraceError::Io(error)) => why = format!("{error}: {}", path.display()),
            Err(error) => why = format!("{error}: {}", path.display()),
        }
    }
    Tail::Failed(why)
}

fn write(path: &Path, picture: &Picture, facts: &Facts, stack: &[Place]) -> Result<(), GtraceError> {
    // Never over a file that is there.
    let file = std::fs::File::create_new(path)?;
    let failed = (facts.free, facts.size, facts.stream, facts.pool);
    scribe::write_picture(file, picture, failed, stack).inspect_err(|_| {
        // Nothing half-written.
        let _ = std::fs::remove_file(path);
    })
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
    left().1.clone().map_or(Tail::Off, Tail::Enough)
}
