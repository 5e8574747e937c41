//! Errors of reading and writing weights: the problem, the file, and the next step.

use crate::stream::StreamError;
use gapless_formats::fault::Problem;
use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

/// A problem with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{}: {problem}", path.display())]
    Format { path: PathBuf, problem: Box<Problem> },
    #[error("{}: {}", path.display(), unread(.source))]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: tensor \"{tensor}\": {damage}", path.display())]
    Damaged { path: PathBuf, tensor: String, damage: StreamError },
    #[error("{}: {what}", path.display())]
    Refused { path: PathBuf, what: String, help: &'static str },
}

fn unread(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => format!("cannot be read: {source}"),
    }
}

impl Error {
    pub(crate) fn refused<T>(path: &Path, what: impl Into<String>, help: &'static str) -> Result<T> {
        Err(Error::Refused { path: path.to_owned(), what: what.into(), help })
    }

    /// The next step.
    pub fn help(&self) -> &'static str {
        match self {
            Error::Format { problem, .. } if matches!(**problem, Problem::Truncated { .. }) => {
                "if another program is still writing the file, wait until it is complete"
            }
            // The message of an unsupported format has its own advice.
            Error::Format { problem, .. } if matches!(**problem, Problem::Unsupported { .. }) => {
                "name another file"
            }
            Error::Format { .. } => "copy or download the file again",
            Error::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "check the path: it must be a file or a folder of this machine; models of a hub are downloaded first"
            }
            Error::Read { .. } => "check the path, the permissions and the disk",
            Error::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free space on the disk, or name another place with -o; nothing was left there"
            }
            Error::Write { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "make the folder first, or name another place with -o"
            }
            Error::Write { .. } => "check the folder's permissions, or name another place with -o",
            Error::Damaged { .. } => "copy the file again; --keep-going gives all tensors that are whole",
            Error::Refused { help, .. } => help,
        }
    }
}
