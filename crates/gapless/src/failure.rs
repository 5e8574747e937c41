//! Failures as people see them: the value at fault, its place, and the next step.

use crate::terminal;
use gapless_report::text;
use std::fmt::{self, Write};
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

/// Prints `error` with its causes and, if one is known, the next step.
pub(crate) fn print(error: &anyhow::Error) {
    let mut text = format!("\x1b[1;31merror\x1b[0m: {}\n", plain(error));
    let mut told = plain(error);
    for cause in error.chain().skip(1).map(plain) {
        // Some errors quote their cause, which is then not printed again.
        if !told.ends_with(&cause) {
            let _ = writeln!(text, "  caused by: {cause}");
            told = cause;
        }
    }
    if let Some(help) = error.chain().find_map(|cause| cause.downcast_ref::<Failure>()).map(|f| &f.help) {
        let _ = writeln!(text, "\x1b[1;36mhelp\x1b[0m: {}", plain(help));
    }
    tell(&text);
}

/// Reports a panic of any thread. The command then ends with exit code 101.
pub(crate) fn on_panic(info: &std::panic::PanicHookInfo<'_>) {
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("no message");
    let thread = std::thread::current();
    let of = thread.name().filter(|name| *name != "main").map_or(String::new(), |name| format!(" ({name})"));
    let help =
        "this is a bug in gapless: please report it with this message, the command and, if you can, the file";
    print(&Failure::new(format!("gapless panicked{place}{of}: {message}"), help).into());
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|set| set != "0") {
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
    }
}

/// Tells something that does not stop the command.
pub(crate) fn note(what: &str) {
    tell(&format!("\x1b[1;33mnote\x1b[0m: {}\n", plain(what)));
}

/// Writes to standard error. On a terminal lines are wrapped; in a log each message is one line, which grep finds.
pub(crate) fn tell(styled: &str) {
    use std::io::{IsTerminal, Write};
    let plain = if terminal::is_ascii() { text::ascii(styled) } else { styled.to_owned() };
    let shown = match terminal::columns(std::io::stderr().is_terminal()) {
        Some(columns) => text::fit(&plain, columns.max(40)),
        None => plain,
    };
    // If standard error is closed, there is no other place to report that.
    let _ = anstream::stderr().lock().write_all(shown.as_bytes());
}

/// Messages quote names and contents of files, whose control characters must not reach a terminal.
fn plain(message: impl fmt::Display) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    message.to_string().chars().map(shown).collect()
}

pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(
            plain("a\x1b]0;title\x07\u{9b}31m\rb\nc"),
            "a\u{fffd}]0;title\u{fffd}\u{fffd}31m\u{fffd}b\nc"
        );
    }
}
