//! Checks that the files of a folder belong together: all shards of one save and no others, of a command that ended.
//!
//! A save of several files gives each of them, and the index, the metadata key `gapless_save`: a text that no other
//! save has, and behind a `/` the number of files. Other programs' files do not have it. `pack` and `unpack` do not
//! change the metadata, so they mark the folders that they write to as unfinished until they end.

use crate::boundary::boundary;
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The key of a save's identity.
pub const SAVE: &str = "gapless_save";
/// The file that marks a folder while a command writes to it.
const UNFINISHED: &str = ".gapless-unfinished";

/// An error unless all files, each with its `gapless_save`, are all files of one save.
pub fn check_saves(files: &[(&Path, Option<&str>)], index: Option<(&Path, &str)>) -> Result<()> {
    let help = "save the model again, or copy all files of one save to a folder of their own";
    let mut all = index.into_iter().chain(files.iter().filter_map(|(path, save)| Some((*path, (*save)?))));
    let Some((first, save)) = all.next() else { return Ok(()) };
    if let Some((path, _)) = files.iter().find(|(_, other)| *other != Some(save)) {
        let what = format!(
            "this file and {} are of different saves: one of them was interrupted, or files of two were mixed",
            first.file_name().unwrap_or_default().display()
        );
        return Error::refused(path, what, help);
    }
    let count = save.rsplit_once('/').and_then(|(_, count)| count.parse::<usize>().ok());
    match count.filter(|count| *count != files.len()) {
        None => Ok(()),
        Some(count) => {
            let what = format!(
                "this file is one of {count} of a save, and there are {}: the save was interrupted, or files are missing",
                files.len()
            );
            Error::refused(first, what, help)
        }
    }
}

/// Folders that a command writes to. No command takes them as models until it has ended.
#[derive(Debug)]
pub struct Unfinished(Vec<PathBuf>);

impl Unfinished {
    /// Marks the folders, which must exist.
    pub fn begin(folders: BTreeSet<PathBuf>) -> Result<Unfinished> {
        for folder in &folders {
            boundary();
            let path = folder.join(UNFINISHED);
            let text =
                "gapless weights writes to this folder, or was killed while it did: run the command again\n";
            fs::write(&path, text).map_err(|source| Error::Write { path, source })?;
        }
        Ok(Unfinished(folders.into_iter().collect()))
    }

    /// Removes the marks, once all files are written.
    pub fn end(self) -> Result<()> {
        for folder in self.0 {
            boundary();
            let path = folder.join(UNFINISHED);
            fs::remove_file(&path).map_err(|source| Error::Write { path, source })?;
        }
        Ok(())
    }
}

/// An error if a command that wrote to a folder has not ended.
pub fn check_finished(folder: &Path) -> Result<()> {
    if !folder.join(UNFINISHED).exists() {
        return Ok(());
    }
    let what = "a command writes to this folder, or did not end: its files may be of two models";
    let help = "run the `gapless weights` command again that wrote to it";
    Error::refused(folder, what, help)
}

/// True if a file is the mark of an unfinished folder: it is no part of a model.
pub(crate) fn is_mark(name: &str) -> bool {
    name == UNFINISHED
}

/// An error if `output` lies in the folder `input`, or is it, also through links, because the next run would take the
/// result for a part of the model. `output` need not exist.
pub fn check_apart(input: &Path, output: &Path) -> Result<()> {
    let there = output.ancestors().find_map(|folder| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        fs::canonicalize(folder).ok()
    });
    let (Ok(from), Some(there)) = (fs::canonicalize(input), there) else { return Ok(()) };
    if there.starts_with(&from) {
        let is_same = there == from && output.exists();
        let what = if is_same { "this is the input" } else { "this is within the input" };
        return Error::refused(output, what, "name another folder with -o");
    }
    Ok(())
}
