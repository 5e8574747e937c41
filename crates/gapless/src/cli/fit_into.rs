//! The flags of `gapless fit-into`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless fit-into step.json --budget 20GiB         what to keep, what to make again
  gapless fit-into step.json --frontier 8           time and peak for eight budgets

In the program that trains:
  fitted = gapless.fit_into(model, \"20GiB\")         records a step, plans it, and follows the plan
  fitted.save(\"step.json\")                         the recorded step, for this command

Exit code: 0 a plan, 1 no plan within the budget was found, 2 an error.")]
pub(crate) struct FitIntoArgs {
    /// A recorded step (JSON, from fitted.save())
    pub(crate) file: PathBuf,

    /// The most bytes allocated at once [default: what the step takes with everything kept]
    #[arg(long, value_name = "SIZE")]
    pub(crate) budget: Option<String>,

    /// Also plan for this many budgets, from everything kept down to the least
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) frontier: usize,

    /// How long to search for each plan: 500ms, 3s
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub(crate) time_limit: String,

    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    #[arg(long, value_enum, default_value_t = FitIntoFormat::Text)]
    pub(crate) format: FitIntoFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FitIntoFormat {
    Text,
    Json,
}
