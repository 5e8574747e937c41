//! The flags of `gapless estimate`.

use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless estimate train.py -- --batch 8
  gapless estimate train.py --device rtx-4090 --steps 2
  gapless estimate train.py --save run.pickle; gapless report run.pickle
  gapless estimate train.py --nproc 4 --format json

Gapless runs the script unchanged, on torch's own CUDA code and a card that is only bookkeeping: no GPU is needed, and
kernels do nothing. It stops after a number of optimizer steps. It uses `python3` of the PATH, or the interpreter in
GAPLESS_PYTHON; torch's CUDA build must be installed there.

Exit code: 0 if the script fits on the card, 1 if it does not, 2 if there is no answer.")]
pub(crate) struct EstimateArgs {
    /// The Python script
    #[arg(value_name = "SCRIPT")]
    pub(crate) script: PathBuf,

    /// The card: a100-80, h100, h200, b200, rtx-4090 or l40s
    #[arg(long, value_name = "NAME", default_value = "h200")]
    pub(crate) device: String,

    /// Stop after this many steps of the optimizer
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,

    /// Run this many processes, each a rank on a card of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) nproc: u32,

    /// The output format
    #[arg(long, value_enum, default_value_t = EstimateFormat::Text)]
    pub(crate) format: EstimateFormat,

    /// Write torch's memory snapshot of the run, for report, replay, advise and the others
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,

    /// The script's own arguments, after `--`
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EstimateFormat {
    Text,
    Json,
    Html,
}

impl EstimateFormat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Html => "html",
        }
    }
}
