//! The content of a file: opened, decompressed, its first bytes known, the rest still to be read.

use crate::container::{self, Format};
use crate::error::{Fault, Problem, ReadError};
use crate::options::ReadOptions;
use crate::{builder, event_rows, finish, hlo, host_run, json, minimalloc, pickle, pprof, rmm, window};
use gapless_formats::packing::{Packing, unpacked};
use gapless_trace::gtrace::GtraceError;
use gapless_trace::{Ahead, Events, Note, Trace};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens the file at `path` ("-" is the standard input), takes off compression and calls `then` with the content.
///
/// # Errors
/// When there is no such file, or it cannot be read or decompressed.
pub fn open_with<T>(
    path: &Path,
    options: &ReadOptions,
    then: impl FnOnce(Content<'_>) -> T,
) -> Result<T, ReadError> {
    let name = path.display().to_string();
    if path.as_os_str() == "-" {
        return read_with(&mut io::stdin(), &name, None, options, then);
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
        let Some(mut modules) = hlo::folder::Folder::of(path) else { return Err(failed(Problem::Directory)) };
        return read_with(&mut modules, &name, None, options, then);
    }
    let total = metadata.is_file().then_some(metadata.len());
    read_with(&mut file, &name, total, options, then)
}

/// The same for a stream of `total` bytes, if that is known.
pub(crate) fn read_with<T>(
    input: &mut (dyn Read + Send),
    name: &str,
    total: Option<u64>,
    options: &ReadOptions,
    then: impl FnOnce(Content<'_>) -> T,
) -> Result<T, ReadError> {
    let mut counted = Counted { input, read: 0, told: 0, total, options };
    unpack(&mut counted, name, Vec::new(), total.unwrap_or(0), options, then)
        .map_err(|problem| ReadError { name: name.to_owned(), problem: *problem })
}

/// Compressions around one another: two at most.
const LAYERS: usize = 2;

/// Takes off the next layer of compression, or calls `then` if there is none. `size` is the approximate number of
/// bytes, 0 if the source does not tell.
fn unpack<T>(
    input: &mut (dyn Read + Send),
    name: &str,
    mut around: Vec<Packing>,
    size: u64,
    options: &ReadOptions,
    then: impl FnOnce(Content<'_>) -> T,
) -> Result<T, Fault> {
    let mut head = Vec::with_capacity(container::HEAD);
    (&mut *input)
        .take(container::HEAD as u64)
        .read_to_end(&mut head)
        .map_err(|source| damaged(Problem::Io { offset: 0, source }, &around))?;
    let Some(packing) = Packing::of(&head) else {
        return Ok(then(Content { name, head, at: 0, input, around, size, options }));
    };
    if around.len() == LAYERS {
        return Err(Box::new(Problem::NotATrace {
            looks_like: "a file compressed three times over".into(),
            help: "decompress it first",
        }));
    }
    around.push(packing);
    let mut whole = io::Cursor::new(&head[..]).chain(input);
    // Snapshots compress about 16 times.
    unpacked(packing, &mut whole, |inner| unpack(inner, name, around, size.saturating_mul(16), options, then))
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

/// The bytes of a file after decompression, as a stream whose first bytes can be peeked at.
pub struct Content<'a> {
    name: &'a str,
    /// Bytes read ahead; those before `at` were handed out.
    head: Vec<u8>,
    at: usize,
    input: &'a mut (dyn Read + Send),
    around: Vec<Packing>,
    size: u64,
    options: &'a ReadOptions,
}

impl std::fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content")
            .field("name", &self.name)
            .field("around", &self.around)
            .finish_non_exhaustive()
    }
}

impl Read for Content<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at < self.head.len() {
            let n = (&self.head[self.at..]).read(out)?;
            self.at += n;
            return Ok(n);
        }
        self.input.read(out)
    }
}

impl Content<'_> {
    /// The format, by the first bytes.
    ///
    /// # Errors
    /// When there is no reader for it.
    pub fn format(&self) -> Result<Format, ReadError> {
        container::format(&self.head, self.name).map_err(|fault| self.error(*fault))
    }

    /// The first bytes, up to `count` of them; they are still read afterwards.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn peek(&mut self, count: usize) -> Result<&[u8], ReadError> {
        let missing = count.saturating_sub(self.head.len()) as u64;
        let read = (&mut *self.input).take(missing).read_to_end(&mut self.head);
        read.map_err(|source| self.error(Problem::Io { offset: 0, source }))?;
        Ok(&self.head[..count.min(self.head.len())])
    }

    /// The error of this file for a problem that a reader of its bytes found.
    pub fn error(&self, problem: impl Into<Problem>) -> ReadError {
        ReadError { name: self.name.to_owned(), problem: *damaged(problem.into(), &self.around) }
    }

    /// Reads a trace.
    ///
    /// # Errors
    /// When the bytes are not a trace, or damaged.
    pub fn trace(mut self) -> Result<Trace, ReadError> {
        let format = self.format()?;
        self.parse(format, false).map(|(trace, _)| trace).map_err(|fault| self.error(*fault))
    }

    /// The same for callers that need the history of the trace as well: a second thread follows the events of a
    /// snapshot while they are read, as far as it can.
    ///
    /// # Errors
    /// When the bytes are not a trace, or damaged.
    pub fn trace_ahead(mut self) -> Result<(Trace, Option<Ahead>), ReadError> {
        let format = self.format()?;
        // With a small file a second thread gains nothing.
        let follow = self.size == 0 || self.size >= 1 << 20;
        self.parse(format, follow).map_err(|fault| self.error(*fault))
    }

    fn parse(&mut self, format: Format, follow: bool) -> Result<(Trace, Option<Ahead>), Fault> {
        let described = |name: &str, around: &[Packing]| {
            let names: Vec<&str> =
                std::iter::once(name).chain(around.iter().map(|packing| packing.name())).collect();
            names.join(", ")
        };
        let (limits, size) = (self.options.limits, self.size);
        let around = self.around.clone();
        let described = |name: &str| described(name, &around);
        let builder = || builder::Builder::new(limits);
        let trace = match format {
            Format::Pickle => {
                let window = window::Window::new(self, limits.bytes);
                let mut builder = builder();
                let expected = builder.expect(size);
                let (read, events, ahead) = if follow {
                    followed(window, builder, expected)?
                } else {
                    builder.rows.expect_events(expected);
                    let mut read = pickle::read(window, builder)?;
                    let events = std::mem::take(&mut read.builder.rows.events);
                    (read, events.into_events(), None)
                };
                let format = described(&format!("PyTorch snapshot (pickle protocol {})", read.protocol));
                let mut made = finish::trace(read.builder, events, read.top, format, read.end)?;
                if read.trailing {
                    note_trailing(&mut made.trace, &format!("the pickle, which ended at byte {}", read.end));
                }
                return Ok((made.trace, ahead.filter(|_| made.in_order)));
            }
            Format::Json => {
                let mut read = json::read(self, builder())?;
                let format = described("PyTorch snapshot (JSON)");
                let events = std::mem::take(&mut read.builder.rows.events).into_events();
                let mut trace = finish::trace(read.builder, events, read.top, format, read.bytes)?.trace;
                if read.trailing {
                    note_trailing(&mut trace, "the JSON value");
                }
                Ok(trace)
            }
            Format::Gtrace => read_gtrace(self),
            Format::HostRun => host_run::read(self, described("Gapless recording of host memory"), limits),
            Format::RmmCsv => rmm::read(self, described("RMM log (CSV)"), limits),
            Format::Hlo => hlo::read(self, described("XLA module (HLO protocol buffer)"), limits),
            Format::Pprof => pprof::read(self, described("device memory profile of JAX (pprof)"), limits),
            Format::HloFolder => {
                hlo::folder::read(self, described("XLA modules (HLO protocol buffers of a folder)"), limits)
            }
            Format::MiniMallocCsv => minimalloc::read(self, described("MiniMalloc buffers (CSV)"), limits),
        };
        trace.map(|trace| (trace, None))
    }
}

/// Reads a pickle while a second thread follows its events, of which there are about `expected`.
fn followed(
    window: window::Window<'_>,
    mut builder: builder::Builder,
    expected: usize,
) -> Result<(pickle::Pickle, Events, Option<Ahead>), Fault> {
    let (rows, batches) = event_rows::EventRows::handed_on();
    builder.rows.events = rows;
    // If reading fails, the channel to the other thread goes with the rows, and that thread ends.
    let read = || {
        pickle::read(window, builder).map(|mut read| {
            read.builder.rows.events.close();
            read
        })
    };
    let (read, (events, ahead)) = gapless_threads::alongside("events", read, || batches.follow(expected));
    Ok((read?, events, Some(ahead)))
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
