//! The flags of `gapless oom`.

use crate::cli::PlainFormat;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless oom snapshot.pickle
  gapless oom snapshot.pickle --capacity 22.5GiB      if the process had a known memory cap

  gapless oom train.log                               the text of an out-of-memory error of JAX (XLA)

How to write a snapshot when memory runs out:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000)
  torch._C._cuda_attach_out_of_memory_observer(
      lambda *_: torch.cuda.memory._dump_snapshot(\"oom.pickle\"))

Exit code: 0 explained, 2 no request failed in the trace, or an error.")]
pub(crate) struct OomArgs {
    /// A run with a failed request, or a log with an error of XLA; `-` reads standard input
    pub(crate) file: PathBuf,

    /// The most memory that the process could use [default: inferred from the trace]
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,

    /// Only this device [default: the one where it failed]
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
