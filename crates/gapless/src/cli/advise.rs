//! The flags of `gapless advise`.

use crate::cli::PlainFormat;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless advise run.pickle                        which settings use less memory?
  gapless advise run.pickle --capacity 24GiB       which settings work on a card of 24 GiB?
  gapless advise run.pickle --format json | jq -r '.suggestions[0].line'
  gapless advise traces/ --capacity 80GiB          one setting for all ranks: how many does it keep from failing?

Gapless replays every suggestion over this run, and suggests nothing that is already set.
Ctrl-C ends the sweep and prints what was found so far.

Exit code: 0 advice or none needed, 1 no setting works on the card, 2 an error.")]
pub(crate) struct AdviseArgs {
    /// The run; `-` reads standard input. Several files or a folder: the ranks of one run
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Of many ranks, only this one
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// The memory of the card that the run must fit on [default: unlimited]
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,

    /// Only this device [default: the first; of many ranks, all]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// How many settings to replay in parallel [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    #[arg(long, value_enum, default_value_t = PlainFormat::Text)]
    pub(crate) format: PlainFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
