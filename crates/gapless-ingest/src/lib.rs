//! Readers of files from outside: a file in, a [`Trace`] out.
//!
//! The format is found from the content, never from the name: PyTorch memory snapshots as pickle or JSON, `.gtrace`, RMM's CSV
//! log, MiniMalloc CSV, each plain or compressed with gzip or zstd.
//!
//! Every file is taken as hostile. Nothing in it is executed, memory stays proportional to the bytes read, and whatever is wrong
//! ends in a [`ReadError`] that says what, where, and what to do. Relies on `gapless-trace` for the columns; what the events
//! mean, and whether they contradict each other, is for `History::rebuild`.

mod builder;
mod container;
mod csv;
mod error;
mod features;
mod finish;
mod json;
mod minimalloc;
mod names;
mod options;
mod pickle;
mod rmm;
mod rows;
mod settings;
mod value;
mod window;

pub use error::{Problem, ReadError};
pub use options::{Limits, Progress, ReadOptions};

use container::{Format, Packing};
use error::Fault;
use gapless_trace::gtrace::GtraceError;
use gapless_trace::{Note, Trace};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads the file at `path`; "-" is the standard input.
///
/// # Errors
/// When there is no such file, or it is not a trace, or it is damaged.
pub fn open(path: &Path, options: &ReadOptions) -> Result<Trace, ReadError> {
    let name = path.display().to_string();
    if path.as_os_str() == "-" {
        return read_with_total(&mut io::stdin(), &name, None, options);
    }
    let failed = |problem| ReadError { name: name.clone(), problem };
    let mut file = File::open(path).map_err(|error| {
        failed(match error.kind() {
            io::ErrorKind::NotFound => Problem::Missing,
            _ => Problem::Open(error),
        })
    })?;
    let metadata = file.metadata().map_err(|error| failed(Problem::Open(error)))?;
    if metadata.is_dir() {
        return Err(failed(Problem::Directory));
    }
    let total = metadata.is_file().then_some(metadata.len());
    read_with_total(&mut file, &name, total, options)
}

/// Reads a trace from a stream; `name` is what errors call it.
///
/// # Errors
/// When the bytes are not a trace, or damaged.
pub fn read(mut input: impl Read + Send, name: &str, options: &ReadOptions) -> Result<Trace, ReadError> {
    read_with_total(&mut input, name, None, options)
}

fn read_with_total(
    input: &mut (dyn Read + Send),
    name: &str,
    total: Option<u64>,
    options: &ReadOptions,
) -> Result<Trace, ReadError> {
    let mut counted = Counted { input, read: 0, told: 0, total, options };
    unpack(&mut counted, Vec::new(), total.unwrap_or(0), options)
        .map_err(|problem| ReadError { name: name.to_owned(), problem: *problem })
}

/// Compressions around one another: two at most.
const LAYERS: usize = 2;

/// Takes off the next layer of compression, or parses where there is none. `size` is about how many bytes there are, 0 where
/// nobody knows.
fn unpack(
    input: &mut (dyn Read + Send),
    mut around: Vec<Packing>,
    size: u64,
    options: &ReadOptions,
) -> Result<Trace, Fault> {
    let mut head = Vec::with_capacity(container::HEAD);
    (&mut *input)
        .take(container::HEAD as u64)
        .read_to_end(&mut head)
        .map_err(|source| damaged(Problem::Io { offset: 0, source }, &around))?;
    let packing = container::packing(&head);
    let mut whole = io::Cursor::new(&head[..]).chain(input);
    let Some(packing) = packing else {
        let result =
            container::format(&head).and_then(|format| parse(format, &mut whole, &around, size, options));
        return result.map_err(|fault| damaged(*fault, &around));
    };
    if around.len() == LAYERS {
        return Err(Box::new(Problem::NotATrace {
            looks_like: "a file compressed three times over".into(),
            help: "decompress it first",
        }));
    }
    around.push(packing);
    // Snapshots compress about 16 times.
    container::unpacked(packing, &mut whole, |inner| unpack(inner, around, size.saturating_mul(16), options))
}

/// Reading fails inside compressed data because that data is damaged.
fn damaged(problem: Problem, around: &[Packing]) -> Fault {
    match problem {
        Problem::Io { offset, source } if !around.is_empty() => {
            Box::new(if source.kind() == io::ErrorKind::UnexpectedEof {
                Problem::Truncated { offset, reading: "the compressed data".into() }
            } else {
                Problem::Damaged { offset, source }
            })
        }
        other => Box::new(other),
    }
}

fn parse(
    format: Format,
    input: &mut (dyn Read + Send),
    around: &[Packing],
    size: u64,
    options: &ReadOptions,
) -> Result<Trace, Fault> {
    let described = |name: &str| {
        let packed: Vec<&str> = around
            .iter()
            .map(|packing| match packing {
                Packing::Gzip => "gzip",
                Packing::Zstd => "zstd",
            })
            .collect();
        if packed.is_empty() { name.to_owned() } else { format!("{name}, {}", packed.join(", ")) }
    };
    let builder = || builder::Builder::new(options.limits);
    match format {
        Format::Pickle => {
            let window = window::Window::new(input, options.limits.bytes);
            let mut builder = builder();
            builder.expect(size);
            let read = pickle::read(window, builder)?;
            let format = described(&format!("PyTorch snapshot (pickle protocol {})", read.protocol));
            let mut trace = finish::trace(read.builder, read.top, format, read.end)?;
            if read.trailing {
                note_trailing(&mut trace, &format!("the pickle, which ended at byte {}", read.end));
            }
            Ok(trace)
        }
        Format::Json => {
            let read = json::read(input, builder())?;
            let format = described("PyTorch snapshot (JSON)");
            let mut trace = finish::trace(read.builder, read.top, format, read.bytes)?;
            if read.trailing {
                note_trailing(&mut trace, "the JSON value");
            }
            Ok(trace)
        }
        Format::Gtrace => read_gtrace(input),
        Format::RmmCsv => rmm::read(input, described("RMM log (CSV)"), options.limits),
        Format::MiniMallocCsv => {
            minimalloc::read(input, described("MiniMalloc buffers (CSV)"), options.limits)
        }
    }
}

/// The own format, whose bytes `gapless-trace` owns.
fn read_gtrace(input: &mut (dyn Read + Send)) -> Result<Trace, Fault> {
    gapless_trace::gtrace::read_from(input).map_err(|error| {
        Box::new(match error {
            GtraceError::Io(source) => Problem::Io { offset: 0, source },
            error => Problem::Gtrace(error),
        })
    })
}

fn note_trailing(trace: &mut Trace, what: &str) {
    trace.source.notes.push(Note {
        code: "trailing-bytes",
        text: format!("there are more bytes after {what}; they were left out"),
    });
}

/// The raw input, with progress told about once a MiB.
struct Counted<'a> {
    input: &'a mut (dyn Read + Send),
    read: u64,
    told: u64,
    total: Option<u64>,
    options: &'a ReadOptions,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(out)?;
        self.read += n as u64;
        if let Some(progress) = &self.options.progress
            && (self.read - self.told >= 1 << 20 || n == 0)
        {
            self.told = self.read;
            progress(self.read, self.total);
        }
        Ok(n)
    }
}
