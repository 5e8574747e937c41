//! The flags of `gapless plan`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless plan buffers.csv                          the lowest peak, with a proof if possible
  gapless plan buffers.csv --capacity 1MiB          does it fit? if not, which buffers conflict
  gapless plan run.pickle --steps 3 --format svg -o step.svg
  gapless plan new.csv --old old-plan.csv --format csv -o new-plan.csv
  gapless plan model.onnx --dim batch=8             activations of an ONNX model, in node order
  gapless plan buffers.csv --spaces spaces.toml     which buffer in which memory

buffers.csv is in MiniMalloc's format. Its columns are id,lower,upper,size and, if needed, alignment, gaps (2-4 5-6),
offset (fixed), hint, shares (the id whose place it may take), accesses (a count, or times as @3 7 9) and spaces (names).
JSON is a list of objects with the same names. In a trace, every allocation is a buffer of its requested size, and its
lifetime is counted in events.

Ctrl-C ends the search and prints the best plan so far. Exit code: 0 a plan, 1 it does not fit, 2 an error.")]
pub(crate) struct PlanArgs {
    /// Buffers as MiniMalloc CSV or JSON, an ONNX model, or a trace; `-` reads CSV from standard input
    pub(crate) file: PathBuf,

    /// Find a plan within this many bytes [default: as low as possible]
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,

    /// How long to search: 500ms, 10s, 2min
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) time_limit: String,

    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Search with this many seeds in parallel
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// Align every buffer to at least this many bytes
    #[arg(long, value_name = "SIZE")]
    pub(crate) align: Option<String>,

    /// Split memory into heaps of at most this size; no buffer spans two heaps
    #[arg(long, value_name = "SIZE")]
    pub(crate) chunk: Option<String>,

    /// Only these steps of a trace, from 0, half-open: 3..5, 3.., ..5 or 3
    #[arg(long, visible_alias = "step", value_name = "A..B")]
    pub(crate) steps: Option<String>,

    /// The device of a trace [default: the first]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Use several memories, and minimise the traffic: a TOML file with [[space]] tables of name, capacity and cost
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capacity", "old"])]
    pub(crate) spaces: Option<PathBuf>,

    /// Verify that the plan stays valid when buffers shrink (dynamic shapes)
    #[arg(long)]
    pub(crate) monotone: bool,

    /// A named dimension of an ONNX model, as batch=8; may be given more than once
    #[arg(long = "dim", value_name = "NAME=VALUE")]
    pub(crate) dims: Vec<String>,

    /// An earlier plan as CSV; move as few buffers as possible
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capacity", "chunk"])]
    pub(crate) old: Option<PathBuf>,

    /// Turn off a trick of the search, to measure its effect; may be given more than once
    #[arg(long, value_name = "TRICK")]
    pub(crate) without: Vec<String>,

    #[arg(long, value_enum, default_value_t = PlanFormat::Text)]
    pub(crate) format: PlanFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanFormat {
    Text,
    Json,
    /// The buffers with an offset column
    Csv,
    /// The packing as a picture
    Svg,
    /// The packing in the report's timeline
    Html,
}
