//! The command line: every flag, its help, and the examples. A verb with more than one or two has a file of its own.

pub(crate) mod advise;
pub(crate) mod check;
pub(crate) mod diff;
pub(crate) mod estimate;
pub(crate) mod export;
pub(crate) mod fit;
pub(crate) mod fit_into;
pub(crate) mod fleet;
pub(crate) mod keep;
pub(crate) mod live;
pub(crate) mod oom;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod weights;

mod formats;
mod layout;
mod mistakes;

use crate::failure::Failure;
use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Memory for AI workloads, without gaps.
#[derive(Debug, Parser)]
#[command(
    name = "gapless",
    version,
    about = "Memory for AI workloads, without gaps",
    long_about = "Memory for AI workloads, without gaps.\n\nGapless shows where the GPU memory of a run went, what was lost to fragmentation, and what \
                  to do next.",
    after_help = EXAMPLES,
    propagate_version = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
}

/// The command line, with the texts below the options laid out for a terminal.
pub(crate) fn command() -> clap::Command {
    use std::io::IsTerminal;
    let columns = crate::terminal::columns(std::io::stdout().is_terminal()).unwrap_or(80);
    any_case(layout::tidy(Args::command().term_width(columns.clamp(40, 100))))
}

/// Words that a flag takes may be written in capitals.
fn any_case(command: clap::Command) -> clap::Command {
    let has_words =
        |arg: &clap::Arg| arg.get_action().takes_values() && !arg.get_possible_values().is_empty();
    command
        .mut_args(|arg| if has_words(&arg) { arg.ignore_case(true) } else { arg })
        .mut_subcommands(any_case)
}

/// Why the words of a command line are not understood.
pub(crate) enum Misread {
    /// Help, a version, or a mistake that clap tells well.
    Told(clap::Error),
    /// A mistake that has better words.
    Failure(Failure),
}

/// What was asked for, from all words of the command line.
pub(crate) fn parse(words: &[OsString]) -> Result<Args, Misread> {
    let told = |error: clap::Error| match mistakes::words_for(words, &error) {
        Some(failure) => Misread::Failure(failure),
        None => Misread::Told(error),
    };
    let matches = command().try_get_matches_from(words).map_err(told)?;
    let matches = match formats::asked(&command(), &matches) {
        formats::Asked::Nothing => matches,
        formats::Asked::Format(names, format) => {
            formats::with_default(command(), &names, format).try_get_matches_from(words).map_err(told)?
        }
        formats::Asked::Contradiction(what) => {
            crate::failure::note(&what);
            matches
        }
        formats::Asked::Unknown(failure) => return Err(Misread::Failure(failure)),
    };
    Args::from_arg_matches(&matches).map_err(Misread::Told)
}

const EXAMPLES: &str = "\
Examples:
  gapless demo                                   report on a built-in trace
  gapless snapshot.pickle                        where did the memory go? (short for gapless report)
  gapless report snapshot.pickle --open          the same as a page in the browser
  gapless report rank*.pickle                    all ranks of a run: which one is odd, and why?
  gapless diff before.pickle after.pickle        what grew, by how much, who holds it
  gapless check snapshot.pickle --max-peak-reserved 20GiB
  gapless advise snapshot.pickle                 which settings use less memory?
  gapless replay snapshot.pickle --min-capacity  what would other allocators have held?
  gapless oom snapshot.pickle                    why did the last request fail?
  gapless plan buffers.csv --capacity 1MiB       where should each buffer go?
  gapless fit llama-3-8b --batch 4 --gpu a100-80  will it fit, and if not, what does?
  gapless weights pack model/ -o packed/         weights a third smaller, without a loss
  gapless run -- python train.py                 run a program on the Gapless allocator
  gapless fleet sim --nodes nodes.csv --pods pods.csv --policy all
  gapless top                                    who holds GPU memory right now?
  gapless explain GAP101                         what a finding means

How to record a snapshot in PyTorch:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000)
  ...                                            # some steps
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    pub(crate) fn write_global(self) {
        match self {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show where the memory of a run went
    Report(report::ReportArgs),
    /// Compare two runs, step by step
    Diff(diff::DiffArgs),
    /// Check a run against memory budgets, for CI
    Check(check::CheckArgs),
    /// Replay a run on other allocators and settings
    Replay(replay::ReplayArgs),
    /// Find settings that use less memory, or that work on a smaller card
    Advise(advise::AdviseArgs),
    /// Explain why a request ran out of memory, and what would have prevented it
    Oom(oom::OomArgs),
    /// Write a run in another format
    Export(export::ExportArgs),
    /// Find an offset for each buffer, with the lowest possible peak
    Plan(plan::PlanArgs),
    /// Predict how much memory a model needs, and find a configuration that fits
    Fit(Box<fit::FitArgs>),
    /// Plan a recorded training step for a budget: what to keep, what to make again
    FitInto(fit_into::FitIntoArgs),
    /// Read, compress and check the weights of a model
    Weights(weights::WeightsArgs),
    /// Estimate the memory of a PyTorch script without a GPU
    Estimate(estimate::EstimateArgs),
    /// Run a PyTorch program, unchanged, on the Gapless allocator
    Run(run::RunArgs),
    /// Hold weights on a GPU for other processes
    Keep(keep::KeepArgs),
    /// Show who holds GPU memory on this machine, updated continuously
    Top(live::TopArgs),
    /// Serve the figures of `top` to Prometheus
    Metrics(live::MetricsArgs),
    /// Place jobs on the GPUs of a cluster
    Fleet(fleet::FleetArgs),
    /// Explain a finding code
    Explain(ExplainArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a manual page
    Man(ManArgs),
    /// Report on a built-in trace
    Demo(DemoArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlainFormat {
    Text,
    Json,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless explain GAP101       what a finding means, and what to do
  gapless explain stranded     the same, by a word of its name
  gapless explain              all codes")]
pub(crate) struct ExplainArgs {
    /// A finding's code, such as GAP101, or words of its name; without one, all findings are listed
    #[arg(value_name = "CODE|WORDS")]
    pub(crate) words: Vec<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless completions bash > ~/.local/share/bash-completion/completions/gapless
  gapless completions zsh > ~/.zfunc/_gapless
  gapless completions fish > ~/.config/fish/completions/gapless.fish")]
pub(crate) struct CompletionsArgs {
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless man report | man -l -
  gapless man --all ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The command whose page is printed; without it, the page of gapless itself
    pub(crate) command: Option<String>,
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) all: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless demo                 the report as text, and as a page
  gapless demo -o page.html")]
pub(crate) struct DemoArgs {
    /// Where to write the HTML report
    #[arg(short, long, value_name = "FILE", default_value = "gapless-demo.html")]
    pub(crate) output: PathBuf,
}
