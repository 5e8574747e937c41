//! Writes the result of a command to standard output, or to a file that appears complete or not at all.

use crate::failure::Failure;
use crate::terminal::shown;
use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const STDOUT: &str = "cannot write to standard output";

/// Refuses to write to an input file, also through a link or if it is standard input.
pub(crate) fn refuse_input_as_output(output: &Path, inputs: &[&Path]) -> Result<()> {
    if output.as_os_str() == "-" {
        return Ok(());
    }
    let Ok(target) = fs::metadata(output) else { return Ok(()) };
    for input in inputs {
        let from = if input.as_os_str() == "-" { Path::new("/dev/stdin") } else { input };
        if fs::metadata(from).is_ok_and(|source| source.is_file() && is_same(&source, &target)) {
            let what = if output == *input {
                format!("cannot write {}: it is the input", output.display())
            } else {
                format!(
                    "cannot write {}: it is the same file as the input {}",
                    output.display(),
                    input.display()
                )
            };
            return Err(Failure::new(what, "name another file with -o").into());
        }
    }
    Ok(())
}

/// Two of `paths` that are one file, also through links.
pub(crate) fn first_repeated(paths: &[PathBuf]) -> Option<(&Path, &Path)> {
    let mut seen: std::collections::HashMap<PathBuf, &Path> = std::collections::HashMap::new();
    paths.iter().find_map(|path| {
        let whole = fs::canonicalize(path).ok().filter(|whole| whole.is_file())?;
        seen.insert(whole, path).map(|first| (first, path.as_path()))
    })
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    false
}

/// Writes through `write` to `path`, or to standard output if that is `None` or "-".
///
/// A file is written beside its place and renamed when it is whole. So a reader never sees half of it, and a failure
/// leaves the old file.
pub(crate) fn write_to(path: Option<&Path>, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    match path {
        Some(path) if path.as_os_str() != "-" => write_file(path, write),
        _ => {
            let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
            write(&mut out).context(STDOUT)?;
            out.flush().context(STDOUT)
        }
    }
}

/// True if a file can be made at `path`. It is tried, because permissions alone do not tell.
pub(crate) fn can_create_beside(path: &Path) -> bool {
    !path.is_dir() && Beside::create(path).is_ok()
}

/// Writes styled text: styles stay only on a terminal that wants them.
pub(crate) fn write_text(path: Option<&Path>, styled: &str) -> Result<()> {
    match path {
        Some(path) if path.as_os_str() != "-" => {
            let plain = anstream::adapter::strip_str(&shown(styled)).to_string();
            write_file(path, |out| Ok(out.write_all(plain.as_bytes())?))
        }
        _ => {
            let mut out = anstream::stdout().lock();
            out.write_all(shown(styled).as_bytes()).context(STDOUT)?;
            out.flush().context(STDOUT)
        }
    }
}

fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    if path.is_dir() {
        return Err(Failure::new(
            format!("cannot write {}: it is a directory", path.display()),
            "name a file inside it with -o",
        )
        .into());
    }
    // A pipe or a device cannot be replaced by a rename, so it is written directly.
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        let file = OpenOptions::new().write(true).open(path).with_context(|| cannot_write(path))?;
        let mut out = BufWriter::new(file);
        write(&mut out).with_context(|| cannot_write(path))?;
        return out.flush().with_context(|| cannot_write(path));
    }
    let beside = Beside::create(path)?;
    let mut out = BufWriter::with_capacity(1 << 18, &beside.file);
    write(&mut out).with_context(|| cannot_write(path))?;
    out.flush().with_context(|| cannot_write(path))?;
    drop(out);
    beside.put_in_place(path)
}

/// A file next to its destination; removed again unless it is put in place.
struct Beside {
    file: File,
    path: PathBuf,
    done: bool,
}

impl Beside {
    fn create(destination: &Path) -> Result<Beside> {
        let name = destination.file_name().ok_or_else(|| {
            Failure::new(
                format!("cannot write {}: not a file name", destination.display()),
                "name a file with -o",
            )
        })?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let path = destination.with_file_name(hidden);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| cannot_write(destination))?;
        Ok(Beside { file, path, done: false })
    }

    fn put_in_place(mut self, destination: &Path) -> Result<()> {
        fs::rename(&self.path, destination).with_context(|| cannot_write(destination))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.done {
            // If the file cannot be removed either, there is nothing left to do.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
