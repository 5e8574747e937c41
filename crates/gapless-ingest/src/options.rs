//! Settings of a reader: limits for hostile files, and a call for its progress.

use std::fmt;

/// Called with the bytes read from the file so far, and their total if that is known.
pub type Progress = Box<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// Options of [`crate::read`].
#[derive(Default)]
pub struct ReadOptions {
    pub limits: Limits,
    /// Called about once a MiB, possibly from another thread.
    pub progress: Option<Progress>,
}

impl fmt::Debug for ReadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOptions")
            .field("limits", &self.limits)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// The most that a file may ask for before it is refused. Memory also stays proportional to the bytes read: a reference
/// or an opcode costs at least a byte of the file, so no small file becomes large by sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes after decompression.
    pub bytes: u64,
    /// Events of all devices together.
    pub events: u64,
    /// Segments and blocks of all devices together.
    pub blocks: u64,
    /// One string.
    pub string: u64,
    /// Lists, dicts and tuples that are open, or of no known kind.
    pub objects: usize,
    /// Values in those lists, dicts and tuples.
    pub values: usize,
    /// Values on the stack of the pickle machine.
    pub stack: usize,
    /// Entries of the pickle machine's memo.
    pub memo: usize,
    /// Distinct text of all strings together.
    pub text: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            bytes: 1 << 38,
            events: 1 << 28,
            blocks: 1 << 26,
            string: 4 << 20,
            objects: 1 << 19,
            values: 1 << 20,
            stack: 1 << 20,
            memo: 1 << 27,
            text: 1 << 29,
        }
    }
}
