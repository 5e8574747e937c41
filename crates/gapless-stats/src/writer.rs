//! Writes the statistics file of one process, repeatedly.
//!
//! A thread with a descriptor table of its own ([`gapless_aside::own_table`]) opens, keeps and writes the file. The
//! descriptors of the process belong to the program, which may close or replace any of them.

use crate::error::StatisticsError;
use crate::folder::Folder;
use crate::layout;
use crate::process::Process;
use crate::statistics::Statistics;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

#[derive(Debug)]
pub struct Writer {
    /// Channels to the thread: the pages that it writes, and the results.
    pages: Sender<Vec<u8>>,
    results: Receiver<io::Result<()>>,
    path: PathBuf,
    process: Process,
    sequence: u64,
}

impl Writer {
    /// Makes the statistics file of `process` in `folder`, which is empty so far.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(folder: &Folder, process: &Process) -> Result<Writer, StatisticsError> {
        let named = (folder.clone(), process.clone());
        Writer::begin(move || Some(named))
    }

    /// The same, for callers that must read files to know the folder and the process: `name` reads them in the writer's
    /// thread, whose descriptors the program does not see. If it returns `None`, there is nowhere to write.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn begin<N>(name: N) -> Result<Writer, StatisticsError>
    where
        N: FnOnce() -> Option<(Folder, Process)> + Send + 'static,
    {
        let (pages, written) = channel::<Vec<u8>>();
        let (tell, results) = channel();
        let (made, opened) = channel();
        std::thread::Builder::new().name("gapless-file".to_owned()).spawn(move || {
            // If the kernel has no such tables, the descriptor is one of the program's.
            let _ = gapless_aside::own_table();
            let named = name().ok_or_else(|| StatisticsError::Io(io::ErrorKind::NotFound.into()));
            let file = match named.and_then(|(folder, process)| open(&folder, process)) {
                Ok((file, path, process)) => {
                    let _ = made.send(Ok((path, process)));
                    file
                }
                Err(error) => {
                    let _ = made.send(Err(error));
                    return;
                }
            };
            for page in written {
                if tell.send(file.write_all_at(&page, 0)).is_err() {
                    return;
                }
            }
        })?;
        let (path, process) = opened.recv().unwrap_or_else(|_| Err(gone()))?;
        Ok(Writer { pages, results, path, process, sequence: 0 })
    }

    /// Writes the statistics file anew, in one call, so that a reader rarely sees half of it, and the checksum shows
    /// that.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, statistics: &Statistics) -> Result<(), StatisticsError> {
        self.sequence += 1;
        self.pages.send(layout::encode(statistics, self.sequence)).map_err(|_| gone())?;
        Ok(self.results.recv().map_err(|_| gone())??)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process whose file it is.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Removes the statistics file. If no caller does that, readers remove it later.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(folder: &Folder, process: Process) -> Result<(File, PathBuf, Process), StatisticsError> {
    let path = folder.path().join(process.file_name());
    // A file of this name can only be an old one of this very process.
    let _ = std::fs::remove_file(&path);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((file, path, process))
}

/// The error after the writer's thread has ended.
fn gone() -> StatisticsError {
    StatisticsError::Io(io::ErrorKind::BrokenPipe.into())
}
