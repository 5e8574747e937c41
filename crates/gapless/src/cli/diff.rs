//! The flags of `gapless diff`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless diff main.pickle.gz branch.pickle.gz
  gapless diff a.gtrace b.gtrace --format json -o diff.json
  gapless diff a.gtrace b.gtrace --format html -o diff.html       both runs over each other
  gapless diff before/ after/                     two runs of many ranks: rank by rank, and what grew
  gapless diff before/ after/ --rank 3            one rank of both

Gapless aligns the runs by their steps. It matches stacks by function and file, so a shifted line does not
hide a match.")]
pub(crate) struct DiffArgs {
    /// The run before the change: a file, or a folder with the files of its ranks
    pub(crate) before: PathBuf,
    /// The run after the change: a file, or a folder with the files of its ranks
    pub(crate) after: PathBuf,

    /// Of many ranks, only this one
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// Only this device of each file [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(crate) format: DiffFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// How many rows to list of what grew and what shrank
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFormat {
    Text,
    Json,
    /// Both runs over each other, and a flame graph of differences
    Html,
    /// For pull requests and chats
    Markdown,
}
