//! The flags of `gapless run`.

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
  gapless run --set largest_page=32MiB -- python -m package.train
  gapless run --check -- python train.py
  gapless run --record run.gtrace --stacks python -- python train.py
  gapless run --host --host-limit 200GiB -- python train.py
  gapless run --host --host-record run.gtrace -- python train.py
  gapless run --host --host-leaks -- python train.py

Gapless replaces the allocator when torch is imported, in the program and in every Python process that it starts.
Environment variables such as GAPLESS_RESERVE=60GiB set the same options; a flag wins. Gapless does not reach
interpreters that ignore PYTHONPATH (python -I, -E, -S).

Exit code: that of the program, or 2 if the program could not be started.")]
pub(crate) struct RunArgs {
    /// Take this much of each device's memory when CUDA starts
    #[arg(long, value_name = "SIZE")]
    pub(crate) reserve: Option<String>,

    /// Let the allocator hold at most this much of each device's memory
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<String>,

    /// Use at most this much of each device's memory, including context and libraries
    #[arg(long, value_name = "SIZE")]
    pub(crate) budget: Option<String>,

    /// Share each device with other processes of this user: a tenant's name and share, such as a:30GiB, a:60% or
    /// a:30GiB:borrow
    #[arg(long, value_name = "NAME:SHARE")]
    pub(crate) tenant: Option<String>,

    /// Keep at most this much of weights on the card: what the program moves there by `.to("cuda")` streams from
    /// pinned host memory while it runs
    #[arg(long, value_name = "SIZE")]
    pub(crate) stream_weights: Option<String>,

    /// Print one line about memory when a process ends
    #[arg(long)]
    pub(crate) stats: bool,

    /// Fill freed memory, and verify it before it is used again; slow
    #[arg(long)]
    pub(crate) check: bool,

    /// Write every allocation and free to this .gtrace file, for report, diff, check, replay, advise and plan
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Which stacks to record for each request
    #[arg(long, value_enum, requires = "record", default_value_t = RecordStacks::Off)]
    pub(crate) stacks: RecordStacks,

    /// The most disk space for the recording; Gapless keeps the newest events, in FILE and in an older file beside it
    #[arg(long, value_name = "SIZE", requires = "record")]
    pub(crate) record_limit: Option<String>,

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
