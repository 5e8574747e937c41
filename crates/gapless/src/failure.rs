//! Failures as people see them: what is wrong, where, and what to do next.

use std::fmt;
use std::io;

/// A failure that knows the next step.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) help: String,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, help: impl Into<String>) -> Failure {
        Failure { what: what.into(), help: help.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

/// Prints `error` with its causes and, where one is known, the next step.
pub(crate) fn print(error: &anyhow::Error) {
    use std::io::Write;
    let mut err = anstream::stderr().lock();
    // Standard error is the last resort: where it is closed too there is nobody to tell.
    let _ = writeln!(err, "\x1b[1;31merror\x1b[0m: {error}");
    for cause in error.chain().skip(1) {
        let _ = writeln!(err, "  caused by: {cause}");
    }
    if let Some(help) = error.chain().find_map(|cause| cause.downcast_ref::<Failure>()).map(|f| &f.help) {
        let _ = writeln!(err, "\x1b[1;36mhelp\x1b[0m: {help}");
    }
}

pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
