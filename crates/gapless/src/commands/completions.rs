//! `gapless completions`: a completion script for a shell.

use crate::Answer;
use crate::cli::{self, CompletionsArgs};
use crate::output;
use anyhow::Result;

pub(crate) fn run(args: &CompletionsArgs) -> Result<Answer> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "gapless", &mut script);
    output::write_to(None, |out| Ok(out.write_all(&script)?))?;
    Ok(Answer::Yes)
}
