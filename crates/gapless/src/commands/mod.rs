//! One file a verb.

mod advise;
mod check;
mod completions;
mod demo;
mod diff;
mod estimate;
mod explain;
mod export;
mod fit;
mod fit_into;
mod fleet;
mod keep;
mod man;
mod metrics;
mod oom;
mod plan;
mod replay;
pub(crate) mod report;
mod run;
mod top;
mod weights;

use crate::cli::Command;
use crate::cli::weights::WeightsCommand;
use crate::{Answer, output};
use anyhow::Result;
use std::path::{Path, PathBuf};

pub(crate) fn run(command: Command) -> Result<Answer> {
    let (inputs, outputs) = files(&command);
    for path in &outputs {
        output::refuse_input_as_output(path, &inputs)?;
    }
    // A new baseline may replace the old one, but no other input.
    if let Command::Check(args) = &command
        && let Some(path) = &args.write_baseline
    {
        let read: Vec<&Path> = args.files.iter().chain(args.config.as_ref()).map(PathBuf::as_path).collect();
        output::refuse_input_as_output(path, &read)?;
    }
    if outputs.iter().all(|path| path.as_os_str() == "-") {
        crate::terminal::use_terminal_width();
    }
    match command {
        Command::Report(args) => report::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Oom(args) => oom::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Fit(args) => fit::run(&args),
        Command::FitInto(args) => fit_into::run(&args),
        Command::Estimate(args) => estimate::run(&args),
        Command::Weights(args) => weights::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Demo(args) => demo::run(&args),
    }
}

/// The files that a command reads, and those that it writes.
fn files(command: &Command) -> (Vec<&Path>, Vec<&Path>) {
    fn list<'a>(all: &[Option<&'a Path>]) -> Vec<&'a Path> {
        all.iter().copied().flatten().collect()
    }
    fn paths(all: &[PathBuf]) -> Vec<&Path> {
        all.iter().map(PathBuf::as_path).collect()
    }
    match command {
        Command::Report(a) => (paths(&a.files), list(&[a.output.as_deref()])),
        Command::Diff(a) => (vec![&a.before, &a.after], list(&[a.output.as_deref()])),
        Command::Check(a) => {
            let mut inputs = paths(&a.files);
            inputs.extend(list(&[a.baseline.as_deref(), a.config.as_deref()]));
            (inputs, list(&[a.output.as_deref()]))
        }
        Command::Replay(a) => (vec![&a.file], list(&[a.output.as_deref()])),
        Command::Advise(a) => (paths(&a.files), list(&[a.output.as_deref()])),
        Command::Oom(a) => (vec![&a.file], list(&[a.output.as_deref()])),
        Command::Export(a) => (vec![&a.file], list(&[a.output.as_deref()])),
        Command::Plan(a) => {
            (list(&[Some(&a.file), a.spaces.as_deref(), a.old.as_deref()]), list(&[a.output.as_deref()]))
        }
        Command::Fit(a) => {
            (list(&[a.model.as_deref().map(Path::new)]), list(&[a.output.as_deref(), a.html.as_deref()]))
        }
        Command::FitInto(a) => (vec![&a.file], list(&[a.output.as_deref()])),
        Command::Estimate(a) => (vec![&a.script], list(&[a.save.as_deref()])),
        Command::Keep(a) => (paths(&a.files), Vec::new()),
        Command::Fleet(a) => fleet::files(a),
        Command::Weights(a) => match &a.command {
            WeightsCommand::Info(a) => (vec![&a.input], list(&[a.output.as_deref()])),
            WeightsCommand::Pack(a) => (vec![&a.input], vec![&a.output]),
            WeightsCommand::Unpack(a) => (vec![&a.input], vec![&a.output]),
            WeightsCommand::Verify(a) => (vec![&a.input], Vec::new()),
            WeightsCommand::Quantize(a) => (vec![&a.input], vec![&a.output]),
        },
        Command::Run(_)
        | Command::Top(_)
        | Command::Metrics(_)
        | Command::Explain(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Demo(_) => (Vec::new(), Vec::new()),
    }
}
