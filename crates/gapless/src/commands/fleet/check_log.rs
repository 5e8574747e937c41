//! `gapless fleet check-log`: checks the log of a placement.

use super::{arrivals, lists, opened};
use crate::cli::fleet::CheckLogArgs;
use crate::{Answer, output};
use anyhow::Result;
use gapless_fleet::check::{Options, check};
use gapless_fleet::log;
use gapless_trace::numbers::{plural, verb};

pub(super) fn run(args: &CheckLogArgs) -> Result<Answer> {
    let (nodes, pods) = lists(&args.workload)?;
    let rows = opened(&args.log, |input| log::read(input))?;
    let moves = match &args.moves {
        Some(path) => opened(path, |input| log::read_moves(input))?,
        None => Vec::new(),
    };
    let expected = match args.seed {
        Some(seed) => Some(arrivals(&args.workload, &nodes, &pods, seed)?),
        None => None,
    };
    let options = Options { expected: expected.as_ref(), departures: args.workload.times, moves: &moves };
    match check(&nodes, &pods, &rows, options) {
        Ok(checked) => {
            let total: u64 = nodes.iter().map(|node| u64::from(node.gpus)).sum();
            let unproven = match checked.unproven {
                0 => String::new(),
                n => format!("; {} of gangs {} not proven", plural(n, "failure"), verb(n, "is", "are")),
            };
            let text = format!(
                "the log is right: {}, {} placed, {} failed, {} moved, {:.3} of {total} GPUs allocated{unproven}\n",
                plural(checked.arrivals, "arrival"),
                checked.placed,
                checked.failed,
                checked.moved,
                checked.allocated_milli as f64 / 1000.0
            );
            output::write_text(None, &text)?;
            Ok(Answer::Yes)
        }
        Err(wrong) => {
            let text = format!("{}: line {}: {}\n", args.log.display(), wrong.line, wrong.what);
            output::write_text(None, &text)?;
            Ok(Answer::No)
        }
    }
}
