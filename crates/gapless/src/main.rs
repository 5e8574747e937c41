//! The binary: one file a verb, glue over the libraries.
//!
//! Data goes to standard output, all else to standard error. Exit codes: 0 fine, 1 the answer is no, 2 the tool failed.

mod cli;
mod commands;
mod failure;
mod load;
mod machine;
mod near;
mod opener;
mod options;
mod output;
mod progress;
mod ranks;
mod shortcut;
mod sizes;
mod small_pages;
mod sweep;
mod terminal;

use cli::Misread;
use std::io::Write;
use std::process::ExitCode;

/// With the system's allocator, page faults are a fifth of the time of a report, which frees and takes tens of
/// megabytes several times over.
#[global_allocator]
static ALLOCATOR: gapless_host::Gapless = gapless_host::Gapless;

/// The outcome of a command.
pub(crate) enum Answer {
    Yes,
    No,
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(failure::on_panic));
    let given = shortcut::expand(std::env::args_os().collect());
    let args = match cli::parse(&given) {
        Ok(args) => args,
        Err(Misread::Told(error)) => return usage(&error),
        Err(Misread::Failure(failure)) => {
            failure::print(&failure.into());
            return ExitCode::from(2);
        }
    };
    args.color.write_global();
    match commands::run(args.command) {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        // A reader that closes the pipe, such as `head`, has seen enough.
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            failure::print(&error);
            ExitCode::from(2)
        }
    }
}

/// Help and versions go to standard output and are an answer, so failing to write them is a failure. Mistakes go to
/// standard error.
fn usage(message: &clap::Error) -> ExitCode {
    let styled = message.render().ansi().to_string();
    if message.use_stderr() {
        failure::tell(&styled);
        return ExitCode::from(2);
    }
    let styled = if terminal::is_ascii() { gapless_report::text::ascii(&styled) } else { styled };
    let mut out = anstream::stdout();
    match out.write_all(styled.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            failure::print(&anyhow::Error::new(error).context("cannot write to standard output"));
            ExitCode::from(2)
        }
        _ => ExitCode::SUCCESS,
    }
}
