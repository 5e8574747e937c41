//! The flags of `gapless export`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless export run.pickle --to parquet -o allocations.parquet
  gapless export run.pickle --to perfetto -o run.json      open it in ui.perfetto.dev
  gapless export run.pickle --to minimalloc | head
  gapless export run.pickle --to gtrace -o run.gtrace      smaller, and faster to open")]
pub(crate) struct ExportArgs {
    /// The run; `-` reads standard input
    pub(crate) file: PathBuf,

    /// The output format [default: from the file name of -o]
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT")]
    pub(crate) to: Option<ExportFormat>,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// The device, for formats that hold only one [default: the first]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Only these steps, from 0, half-open: 3..5, 3.., ..5 or 3 (MiniMalloc)
    #[arg(long, value_name = "A..B")]
    pub(crate) steps: Option<String>,

    /// Leave out allocations smaller than this (Perfetto) [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_size: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Allocations, a row each
    Csv,
    /// Allocations, a row each, for pandas, DuckDB, Polars
    Parquet,
    /// The timeline as Chrome trace events
    Perfetto,
    /// Lifetimes for a packer: id,lower,upper,size
    Minimalloc,
    /// Our own format
    Gtrace,
}
