//! Writes the result of a command to standard output, or to a file that appears complete or not at all.

use crate::failure::Failure;
use anyhow::{Context, Result};
use gapless_report::text;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
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

/// Lets texts be as wide as the terminal that shows them, or as COLUMNS says; without either they keep to 80 columns.
pub(crate) fn use_terminal_width() {
    if let Some(columns) = columns(io::stdout().is_terminal()) {
        text::set_width(columns);
    }
}

/// The columns of a line, if known: from COLUMNS, or of the terminal if there is one.
pub(crate) fn columns(is_terminal: bool) -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let measured = || is_terminal.then(|| ratatui::crossterm::terminal::size().ok()).flatten();
    said.filter(|&columns| columns > 0).or_else(|| measured().map(|(columns, _)| usize::from(columns)))
}

/// True if texts must be ASCII: the locale has no UTF-8, or the terminal says that it is a dumb one. An unset locale
/// does not count, because most containers set none.
pub(crate) fn is_ascii() -> bool {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = value("LC_ALL").or_else(|| value("LC_CTYPE")).or_else(|| value("LANG"));
    let is_narrow = |locale: String| {
        let name = locale.split('@').next().unwrap_or_default();
        // macOS names the character set alone.
        let charset = name.split_once('.').map_or(name, |(_, charset)| charset);
        charset.to_ascii_lowercase().replace('-', "") != "utf8"
    };
    locale.is_some_and(is_narrow) || value("TERM").is_some_and(|term| term == "dumb")
}

/// A styled text for output: within the width of a line, and in ASCII if the terminal needs that.
pub(crate) fn shown(styled: &str) -> String {
    let plain = if is_ascii() { text::ascii(styled) } else { styled.to_owned() };
    text::fit(&plain, text::width())
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
