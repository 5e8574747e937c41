//! The command line: every flag, its help, and the examples.

pub(crate) mod estimate;
pub(crate) mod fit;
pub(crate) mod fleet;
pub(crate) mod keep;
pub(crate) mod live;
pub(crate) mod replay;
pub(crate) mod weights;

mod layout;

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
    max_term_width = 100,
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
    layout::tidy(Args::command())
}

/// What was asked for, from all words of the command line.
pub(crate) fn parse(words: &[OsString]) -> Result<Args, clap::Error> {
    Args::from_arg_matches(&command().try_get_matches_from(words)?)
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
    Report(ReportArgs),
    /// Compare two runs, step by step
    Diff(DiffArgs),
    /// Check a run against memory budgets, for CI
    Check(CheckArgs),
    /// Replay a run on other allocators and settings
    Replay(replay::ReplayArgs),
    /// Find settings that use less memory, or that work on a smaller card
    Advise(AdviseArgs),
    /// Explain why a request ran out of memory, and what would have prevented it
    Oom(OomArgs),
    /// Write a run in another format
    Export(ExportArgs),
    /// Find an offset for each buffer, with the lowest possible peak
    Plan(PlanArgs),
    /// Predict how much memory a model needs, and find a configuration that fits
    Fit(Box<fit::FitArgs>),
    /// Read, compress and check the weights of a model
    Weights(weights::WeightsArgs),
    /// Estimate the memory of a PyTorch script without a GPU
    Estimate(estimate::EstimateArgs),
    /// Run a PyTorch program, unchanged, on the Gapless allocator
    Run(RunArgs),
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

#[derive(Debug, ClapArgs)]
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

    /// Show the bytes at peak allocated as a tree of stacks, the outermost line first
    #[arg(long, conflicts_with_all = ["format", "advise", "top"])]
    pub(crate) tree: bool,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    Text,
    Json,
    Html,
    /// For pull requests and chats
    Markdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlainFormat {
    Text,
    Json,
}

#[derive(Debug, ClapArgs)]
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

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless check run.pickle --max-peak-reserved 20GiB --max-fragmentation 15%
  gapless check run.pickle --baseline main.json --tolerance 2%
  gapless check run.pickle --write-baseline main.json   keep this run's figures for later checks
  gapless check run.pickle --format github        annotations in the log of a workflow
  gapless check run.pickle --format markdown >> \"$GITHUB_STEP_SUMMARY\"
  gapless check run.pickle --format sarif -o memory.sarif     for code scanning
  gapless check run.pickle --format gitlab -o gl-code-quality-report.json
  gapless check traces/ --max-peak-reserved 70GiB --max-spread 5%     every rank, and how far they lie apart

gapless.toml, read from the current folder or its parents:
  [check]
  peak_reserved = \"20GiB\"
  peak_allocated = \"18GiB\"
  fragmentation = \"15%\"
  growth_per_step = \"1MiB\"
  spread = \"5%\"                        # of many ranks
  baseline = \"memory-baseline.json\"     # from --write-baseline, or a trace
  tolerance = \"2%\"

Exit code: 0 within all budgets, 1 over a budget, 2 an error.")]
pub(crate) struct CheckArgs {
    /// The run to check; `-` reads standard input. Several files or a folder: the ranks of one run, each of which must
    /// keep to every budget
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Of many ranks, only this one
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// Only this device of each file [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// The most device memory that the process may hold
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_peak_reserved: Option<String>,

    /// The most memory that may be allocated at once
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_peak_allocated: Option<String>,

    /// The highest 1 - peak allocated / peak reserved, as 0.15 or 15%
    #[arg(long, value_name = "SHARE")]
    pub(crate) max_fragmentation: Option<String>,

    /// The most that live bytes may grow from step to step
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_growth_per_step: Option<String>,

    /// Of many ranks: the highest value of highest peak / mean peak - 1 among replicas, as 0.05 or 5%
    #[arg(long, value_name = "SHARE")]
    pub(crate) max_spread: Option<String>,

    /// A saved JSON report, of one rank or of many, or a trace, whose peaks must not be exceeded; of many ranks also a
    /// folder of traces
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,

    /// Write the figures of this run to this file, for --baseline, also if the run is over a limit
    #[arg(long, value_name = "FILE")]
    pub(crate) write_baseline: Option<PathBuf>,

    /// By how much the baseline may be exceeded [default: 0%]
    #[arg(long, value_name = "SHARE")]
    pub(crate) tolerance: Option<String>,

    /// The file with the budgets [default: gapless.toml here or in a parent folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[arg(long, value_enum, default_value_t = CheckFormat::Text)]
    pub(crate) format: CheckFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    Text,
    Json,
    /// Annotations in the log of a GitHub workflow
    Github,
    /// Test cases for CI systems that read JUnit XML
    Junit,
    /// A summary for a pull request
    Markdown,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// GitLab's code quality report
    Gitlab,
}

#[derive(Debug, ClapArgs)]
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
    #[arg(long, value_name = "BYTES")]
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

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless oom snapshot.pickle
  gapless oom snapshot.pickle --capacity 22.5GiB      if the process had a known memory cap

How to write a snapshot when memory runs out:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000)
  torch._C._cuda_attach_out_of_memory_observer(
      lambda *_: torch.cuda.memory._dump_snapshot(\"oom.pickle\"))

Exit code: 0 explained, 2 no request failed in the trace, or an error.")]
pub(crate) struct OomArgs {
    /// A run with a failed request; `-` reads standard input
    pub(crate) file: PathBuf,

    /// The most memory that the process could use [default: inferred from the trace]
    #[arg(long, value_name = "BYTES")]
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

#[derive(Debug, ClapArgs)]
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
    #[arg(long, value_enum, value_name = "FORMAT")]
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
    #[arg(long, value_name = "BYTES")]
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

#[derive(Debug, ClapArgs)]
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
    #[arg(long, value_name = "BYTES")]
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
    #[arg(long, value_name = "BYTES")]
    pub(crate) align: Option<String>,

    /// Split memory into heaps of at most this size; no buffer spans two heaps
    #[arg(long, value_name = "BYTES")]
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

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless run -- python train.py
  gapless run --reserve 60GiB --stats -- torchrun --nproc-per-node 8 train.py
  gapless run --tenant a:60%:borrow -- python train.py
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
    #[arg(long, value_name = "BYTES")]
    pub(crate) reserve: Option<String>,

    /// Let the allocator hold at most this much of each device's memory
    #[arg(long, value_name = "BYTES")]
    pub(crate) limit: Option<String>,

    /// Use at most this much of each device's memory, including context and libraries
    #[arg(long, value_name = "BYTES")]
    pub(crate) budget: Option<String>,

    /// Share each device with other processes of this user: a tenant's name and share, such as a:30GiB, a:60% or
    /// a:30GiB:borrow
    #[arg(long, value_name = "NAME:SHARE")]
    pub(crate) tenant: Option<String>,

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
    #[arg(long, value_name = "BYTES", requires = "record")]
    pub(crate) record_limit: Option<String>,

    /// Also serve the host's memory: every malloc of the program and of the programs that it starts
    #[arg(long)]
    pub(crate) host: bool,

    /// Let the program and those that it starts hold at most this much of the host's memory together; auto: 90 % of
    /// the cgroup's limit
    #[arg(long, value_name = "BYTES", requires = "host")]
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
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordStacks {
    Python,
    Off,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless explain GAP101       what a finding means, and what to do
  gapless explain              all codes")]
pub(crate) struct ExplainArgs {
    /// A finding's code, such as GAP101; without one, all codes are listed
    pub(crate) code: Option<String>,
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
