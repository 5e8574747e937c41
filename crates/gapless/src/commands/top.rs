//! `gapless top`: the cards of this machine and the processes on them, updated in the terminal, or once as text or
//! JSON.
//!
//! The model is [`crate::machine`]; [`state`] has the user's choices; [`view`] and [`detail`] are pure functions of
//! both; [`terminal`] owns the screen.

mod detail;
mod draw;
mod hosts;
mod json;
mod once;
mod state;
mod terminal;
mod view;

use crate::Answer;
use crate::cli::live::{LiveFormat, TopArgs};
use crate::failure::Failure;
use crate::machine::Machine;
use crate::machine::collect::collect;
use crate::output;
use anyhow::Result;
use std::io::IsTerminal;

/// The text if there is no process to show.
pub(crate) const NOBODY: &str =
    "no process here uses Gapless: start one with `gapless run -- python train.py`";

pub(crate) fn run(args: &TopArgs) -> Result<Answer> {
    if args.format == LiveFormat::Json {
        if !args.once {
            return Err(Failure::new("--format json needs --once", "gapless top --once --format json").into());
        }
        let text = json::text(&look(args)?)?;
        output::write_to(None, |out| Ok(out.write_all(text.as_bytes())?))?;
    } else if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        output::write_text(None, &once::text(&look(args)?))?;
    } else {
        terminal::run(args)?;
    }
    Ok(Answer::Yes)
}

fn look(args: &TopArgs) -> Result<Machine> {
    let machine = collect(args.pid)?;
    if let Some(pid) = args.pid.filter(|_| machine.processes.is_empty() && machine.hosts.is_empty()) {
        let what = format!("no process {pid} uses a card here");
        return Err(Failure::new(what, "`gapless top --once` lists those that do").into());
    }
    Ok(machine)
}
