//! The folder of one user's statistics files. Only this user may access it, and the crate checks that on every use.
//!
//! The folder is `GAPLESS_RUN_DIR` if that is set. Otherwise it is the first that can be used of `/dev/shm/gapless-UID`
//! (in memory), `$XDG_RUNTIME_DIR/gapless` and a folder in the temporary folder. The crate refuses a folder that
//! belongs to another user, that others may enter, or that is a link: the files contain command lines, and files from
//! another user's folder cannot be trusted.

use crate::process;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The variable that names the folder.
pub const VARIABLE: &str = "GAPLESS_RUN_DIR";

/// A folder that was checked and belongs to this user alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// Reason why a folder is not used.
#[derive(Debug)]
pub enum FolderError {
    Io(PathBuf, io::Error),
    /// A file or a link.
    NotAFolder(PathBuf),
    /// It belongs to the user with this number.
    Foreign(PathBuf, u32),
    /// Other users may look into it or write to it.
    Open(PathBuf, u32),
    /// There is no /proc, which shows the user of this process.
    NoProc,
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolderError::Io(path, error) => write!(f, "{}: {error}", path.display()),
            FolderError::NotAFolder(path) => {
                write!(f, "{} is not a folder (Gapless does not follow links)", path.display())
            }
            FolderError::Foreign(path, owner) => write!(f, "{} belongs to user {owner}", path.display()),
            FolderError::Open(path, mode) => {
                write!(f, "{} is open to others (mode {mode:03o}, not 700)", path.display())
            }
            FolderError::NoProc => f.write_str("there is no /proc"),
        }
    }
}

impl std::error::Error for FolderError {}

/// Folders in which statistics files may be, in the order in which a writer tries them.
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let Some(user) = process::user() else { return Vec::new() };
    let own = format!("gapless-{user}");
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|named| !named.is_empty());
    let mut all = vec![Path::new("/dev/shm").join(&own)];
    all.extend(runtime.map(|folder| Path::new(&folder).join("gapless")));
    all.push(std::env::temp_dir().join(own));
    all
}

impl Folder {
    /// The first of the candidates that is there or can be made.
    ///
    /// # Errors
    /// If none can be used, the error of the first.
    pub fn make(candidates: &[PathBuf]) -> Result<Folder, FolderError> {
        let mut first = None;
        for path in candidates {
            match Folder::make_one(path) {
                Ok(folder) => return Ok(folder),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(FolderError::NoProc))
    }

    fn make_one(path: &Path) -> Result<Folder, FolderError> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(FolderError::Io(path.to_owned(), error)),
        }
        let gone = || FolderError::Io(path.to_owned(), io::ErrorKind::NotFound.into());
        Folder::open(path)?.ok_or_else(gone)
    }

    /// Opens a folder for reading; `None` if there is none, because then no process has written.
    ///
    /// # Errors
    /// If it does not belong to this user alone.
    pub fn open(path: &Path) -> Result<Option<Folder>, FolderError> {
        let meta = match fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(FolderError::Io(path.to_owned(), error)),
        };
        if !meta.is_dir() {
            return Err(FolderError::NotAFolder(path.to_owned()));
        }
        let user = process::user().ok_or(FolderError::NoProc)?;
        if meta.uid() != user {
            return Err(FolderError::Foreign(path.to_owned(), meta.uid()));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(FolderError::Open(path.to_owned(), meta.mode() & 0o777));
        }
        Ok(Some(Folder(path.to_owned())))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}
