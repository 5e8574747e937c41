//! Writes the statistics file of one process, repeatedly.

use crate::error::StatisticsError;
use crate::folder::Folder;
use crate::layout;
use crate::process::Process;
use crate::statistics::Statistics;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    sequence: u64,
}

impl Writer {
    /// The statistics file of `process` in `folder`, empty so far.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(folder: &Folder, process: &Process) -> Result<Writer, StatisticsError> {
        let path = folder.path().join(process.file_name());
        // What is there under this name was left by this very process.
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Writer { file, path, sequence: 0 })
    }

    /// Writes the statistics file anew: one call, so that a reader seldom meets it half done, and always sees that it
    /// did.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, statistics: &Statistics) -> Result<(), StatisticsError> {
        self.sequence += 1;
        self.file.write_all_at(&layout::encode(statistics, self.sequence), 0)?;
        Ok(())
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the statistics file away. What is left where nobody calls this is removed by readers.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
