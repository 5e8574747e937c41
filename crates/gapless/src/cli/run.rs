//! The flags of `gapless run`.

use crate::options::help;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless run -- python train.py
  gapless run --reserve 60GiB --stats -- torchrun --nproc-per-node 8 train.py
  gapless run --tenant a:60%:borrow -- python train.py
  gapless run --stream-weights 8GiB -- python infer.py
  gapless run --train-in 20GiB -- python train.py
  gapless run --set largest_page=32MiB -- python -m package.train
  gapless run --check -- python train.py
  gapless run --record run.gtrace --record-stacks python -- python train.py
  gapless run --host --host-limit 200GiB -- python train.py
  gapless run --host --host-record run.gtrace -- python train.py
  gapless run --host --host-leaks -- python train.py

Gapless replaces the allocator when torch is imported, in the program and in every Python process that it starts.
Environment variables such as GAPLESS_RESERVE=60GiB set the same options; a flag wins. Gapless does not reach
interpreters that ignore PYTHONPATH (python -I, -E, -S).

Exit code: that of the program, or 2 if the program could not be started.")]
pub(crate) struct RunArgs {
    #[arg(long, value_name = "SIZE", help = help("reserve"))]
    pub(crate) reserve: Option<String>,

    #[arg(long, value_name = "SIZE", help = help("limit"))]
    pub(crate) limit: Option<String>,

    #[arg(long, value_name = "SIZE", help = help("process_limit"))]
    pub(crate) process_limit: Option<String>,

    #[arg(long, value_name = "NAME:SHARE", help = help("tenant"))]
    pub(crate) tenant: Option<String>,

    #[arg(long, value_name = "SIZE", help = help("stream_weights"))]
    pub(crate) stream_weights: Option<String>,

    #[arg(long, value_name = "SIZE", help = help("train_in"))]
    pub(crate) train_in: Option<String>,

    #[arg(long, help = help("stats"))]
    pub(crate) stats: bool,

    #[arg(long, help = help("check"))]
    pub(crate) check: bool,

    #[arg(long, value_name = "FILE", help = help("record"))]
    pub(crate) record: Option<PathBuf>,

    #[arg(long, value_enum, requires = "record", default_value_t = RecordStacks::Off, help = help("record_stacks"))]
    pub(crate) record_stacks: RecordStacks,

    #[arg(long, value_name = "SIZE", requires = "record", help = help("record_limit"))]
    pub(crate) record_limit: Option<String>,

    /// The old name of --process-limit
    #[arg(long, value_name = "SIZE", hide = true, conflicts_with = "process_limit")]
    pub(crate) budget: Option<String>,

    /// The old name of --record-stacks
    #[arg(long, value_enum, requires = "record", hide = true, conflicts_with = "record_stacks")]
    pub(crate) stacks: Option<RecordStacks>,

    /// Also serve the host's memory: every malloc of the program and of the programs that it starts
    #[arg(long)]
    pub(crate) host: bool,

    /// Let the program and those that it starts hold at most this much of the host's memory together; auto: 90 % of
    /// the cgroup's limit
    #[arg(long, value_name = "SIZE", requires = "host")]
    pub(crate) host_limit: Option<String>,

    /// Let --host-limit count the GPU memory of Gapless too: one budget for both
    #[arg(long, requires = "host_limit")]
    pub(crate) host_limit_gpu: bool,

    /// Find writes beside and after blocks, double and wrong frees of the host's memory; slow
    #[arg(long, requires = "host")]
    pub(crate) host_check: bool,

    /// Write a sample of the host's allocations to this file, with native and Python stacks, for report, diff and
    /// check; programs that the program starts and forked workers write FILE with their process number in the name
    #[arg(long, value_name = "FILE", requires = "host", conflicts_with = "host_check")]
    pub(crate) host_record: Option<PathBuf>,

    /// When the program ends, print what it and the programs that it started never freed, by stack; from a sample of
    /// the allocations, as --host-record takes it
    #[arg(long, requires = "host", conflicts_with = "host_check")]
    pub(crate) host_leaks: bool,

    /// Any other option of gapless.enable(); may be given more than once
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordStacks {
    Python,
    Off,
}
