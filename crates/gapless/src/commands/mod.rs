//! One file a verb.

mod advise;
mod check;
mod completions;
mod demo;
mod diff;
mod explain;
mod export;
mod fit;
mod man;
mod metrics;
mod oom;
mod plan;
mod replay;
pub(crate) mod report;
mod run;
mod top;

use crate::Answer;
use crate::cli::Command;
use anyhow::Result;

pub(crate) fn run(command: Command) -> Result<Answer> {
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
        Command::Run(args) => run::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Demo(args) => demo::run(&args),
    }
}
