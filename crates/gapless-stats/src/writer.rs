//! Writes the statistics file of one process, repeatedly.
//!
//! The file is opened, kept and written by a thread with descriptors of its own ([`gapless_aside::own_table`]): those
//! of the process are the program's, which may close any of them, or put a file of its own in its place.

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
    /// Where the thread gets what it writes, and what came of it.
    pages: Sender<Vec<u8>>,
    results: Receiver<io::Result<()>>,
    path: PathBuf,
    process: Process,
    sequence: u64,
}

impl Writer {
    /// The statistics file of `process` in `folder`, empty so far.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(folder: &Folder, process: &Process) -> Result<Writer, StatisticsError> {
        let named = (folder.clone(), process.clone());
        Writer::begin(move || Some(named))
    }

    /// The same, where files must be read to know the folder and the process: `name` reads them with descriptors that
    /// the program does not see. `None`: there is nothing to write to.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn begin<N>(name: N) -> Result<Writer, StatisticsError>
    where
        N: FnOnce() -> Option<(Folder, Process)> + Send + 'static,
    {
        let (pages, written) = channel::<Vec<u8>>();
        let (tell, results) = channel();
        let (made, opened) = channel();
        std::thread::Builder::new().name("gapless-file".to_owned()).spawn(move || {
            // Where the kernel has no such tables, the descriptor is one of the program's.
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

    /// Writes the statistics file anew: one call, so that a reader seldom meets it half done, and always sees that it
    /// did.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, statistics: &Statistics) -> Result<(), StatisticsError> {
        self.sequence += 1;
        self.pages.send(layout::encode(statistics, self.sequence)).map_err(|_| gone())?;
        Ok(self.results.recv().map_err(|_| gone())??)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose file it is.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Takes the statistics file away. What is left where nobody calls this is removed by readers.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(folder: &Folder, process: Process) -> Result<(File, PathBuf, Process), StatisticsError> {
    let path = folder.path().join(process.file_name());
    // What is there under this name was left by this very process.
    let _ = std::fs::remove_file(&path);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((file, path, process))
}

/// The thread that writes has ended.
fn gone() -> StatisticsError {
    StatisticsError::Io(io::ErrorKind::BrokenPipe.into())
}
