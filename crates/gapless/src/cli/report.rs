//! The flags of `gapless report`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless report snapshot.pickle
  gapless report run.pickle.gz --format html -o report.html
  gapless report run.pickle.gz --open                      write the page and open it in the browser
  gapless report run.gtrace --watch                        follow a recording that is being written
  gapless report run.pickle.gz --format markdown >> \"$GITHUB_STEP_SUMMARY\"
  gapless report run.gtrace --format json | jq '.devices[0].peak_reserved'
  zstdcat run.pickle.zst | gapless report -
  gapless report rank*.pickle                     all ranks of a run: the worst, the odd one and why
  gapless report traces/ --rank 17                one of them alone

Several files, or a folder with the traces of a run, are the ranks of one run. Their numbers come from the
file names (rank0, worker-7, mem.3.pickle), from the recordings, or from the order of the files. A file that
cannot be read becomes a row with its error; if none can be read, the command fails.

The exit code is 0 even if the report has findings. Use `gapless check` to fail a CI job.")]
pub(crate) struct ReportArgs {
    /// The recorded run: a PyTorch snapshot (.pickle, .json), a .gtrace, an RMM log or a MiniMalloc CSV, also
    /// compressed with gzip or zstd; `-` reads standard input. Several files or a folder: the ranks of one run
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Of many ranks, only this one
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// Only this device of each file [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// The output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub(crate) format: ReportFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// How many of the largest holders to list
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,

    /// Show the bytes at peak allocated as a tree of stacks, the outermost line first, or of modules (`--tree=modules`)
    #[arg(long, value_name = "BRANCHES", num_args = 0..=1, require_equals = true, default_missing_value = "stacks")]
    #[arg(value_enum, conflicts_with_all = ["format", "advise", "top"])]
    pub(crate) tree: Option<Branches>,

    /// Also replay other settings, and show which would use less memory (takes seconds, as `gapless advise`)
    #[arg(long)]
    pub(crate) advise: bool,

    /// Write the HTML page and open it in the browser [default file: named after the trace, here]
    #[arg(long)]
    pub(crate) open: bool,

    /// Make the report again whenever the file changes, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
}

/// The branches of `--tree`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Branches {
    /// Lines of code, the outermost first
    #[value(alias = "stack")]
    Stacks,
    /// Modules as the program named them
    #[value(alias = "module")]
    Modules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    Text,
    Json,
    Html,
    /// For pull requests and chats
    Markdown,
}
