//! The reason why a file could not be read: the fault, its place, and the next step.

use gapless_trace::gtrace::GtraceError;
use std::io;

/// The reason why `name` could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {}", with_name(.problem, .name))]
pub struct ReadError {
    /// The file, or "-" for the standard input.
    pub name: String,
    pub problem: Problem,
}

/// The words of a problem, with the file's name in the commands that it suggests.
fn with_name(problem: &Problem, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+=:,@".contains(c);
    let words = problem.to_string();
    match problem {
        Problem::NotATrace { .. } if name != "-" && name.chars().all(plain) => {
            words.replace(" FILE`", &format!(" {name}`")).replace(" FILE --", &format!(" {name} --"))
        }
        Problem::Missing if name.contains("://") => {
            "this is an address, not a file; download it first, or pipe it: curl ADDRESS | gapless report -"
                .to_owned()
        }
        Problem::EmptyFile if name == "-" => {
            "nothing came from the standard input; did the command before the pipe fail?".to_owned()
        }
        _ => words,
    }
}

/// A problem of a file. Offsets count bytes after decompression.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("there is no such file; check the path, or give - to read from the standard input")]
    Missing,
    #[error("this is a directory; give one of the files in it")]
    Directory,
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    #[error("cannot be read: {source} (after {offset} bytes)")]
    Io { offset: u64, source: io::Error },
    #[error(
        "the compressed data is damaged: {source} (after {offset} decompressed bytes); copy or compress the file again"
    )]
    Damaged { offset: u64, source: io::Error },
    #[error("the file is empty; was the process that wrote it stopped before it was done?")]
    EmptyFile,
    #[error("this is not a trace: it looks like {looks_like}; {help}")]
    NotATrace { looks_like: String, help: &'static str },
    #[error(
        "an empty trace: no events and no segments; call torch.cuda.memory._record_memory_history() before the \
         work and torch.cuda.memory._dump_snapshot(PATH) after it"
    )]
    EmptyTrace,
    #[error(
        "the file ends at byte {offset}, in the middle of {reading}; copy it again, or save the snapshot again"
    )]
    Truncated { offset: u64, reading: String },
    #[error(
        "byte {offset}: the pickle opcode {opcode} would run code; a memory snapshot never contains it, so this file is \
         not one and is not read further. If it came from someone else, do not open it with Python either"
    )]
    Code { opcode: &'static str, offset: u64 },
    #[error("byte {offset}: {what}")]
    Malformed { offset: u64, what: String },
    #[error(
        "byte {offset}: more than {limit} {what}; a memory snapshot does not have that many, so the file is refused"
    )]
    TooMany { offset: u64, what: &'static str, limit: u64 },
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
    #[error("line {line}, column {column}: {what}")]
    Json { line: usize, column: usize, what: String },
    #[error("{0}")]
    Gtrace(GtraceError),
}

/// Boxed: a problem is large and rare, and the result of every step must be small.
pub(crate) type Fault = Box<Problem>;

impl From<gapless_formats::Error> for Fault {
    fn from(error: gapless_formats::Error) -> Fault {
        Box::new(Problem::from(error))
    }
}

impl From<gapless_formats::Error> for Problem {
    fn from(error: gapless_formats::Error) -> Problem {
        match error {
            gapless_formats::Error::Io { offset, source } => Problem::Io { offset, source },
            gapless_formats::Error::Line { line, what } => Problem::Line { line, what },
            other => Problem::Malformed { offset: 0, what: other.to_string() },
        }
    }
}

/// An error of a line, for readers of text.
pub(crate) fn wrong<T>(line: u64, what: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(Problem::Line { line, what: what.into() }))
}

pub(crate) fn malformed<T>(offset: u64, what: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(Problem::Malformed { offset, what: what.into() }))
}
