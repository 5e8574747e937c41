//! The command line: every flag, its help, and the examples that teach.

pub(crate) mod fit;
pub(crate) mod live;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Memory for AI workloads, without gaps.
#[derive(Debug, Parser)]
#[command(
    name = "gapless",
    version,
    about = "Memory for AI workloads, without gaps",
    long_about = "Memory for AI workloads, without gaps.\n\nGapless reads what a run left behind and shows where every byte went, what was lost to \
                  fragmentation, and what to do next.",
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

const EXAMPLES: &str = "\
Examples:
  gapless demo                                   the main job, on a trace that is built in
  gapless report snapshot.pickle                 where did the memory go?
  gapless report snapshot.pickle --format html -o report.html
  gapless diff before.pickle after.pickle        what grew, by how much, who holds it
  gapless check snapshot.pickle --max-peak-reserved 20GiB
  gapless advise snapshot.pickle                 what to set, each line replayed over this very run
  gapless replay snapshot.pickle --min-capacity  what would other allocators have held?
  gapless oom snapshot.pickle                    why did the last request fail?
  gapless plan buffers.csv --capacity 1MiB       where should each buffer go?
  gapless fit llama-3-8b --batch 4 --gpu a100-80 will it fit, and how do I make it fit?
  gapless run -- python train.py                 the program, on an allocator without gaps
  gapless top                                    who holds the cards' memory right now?
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
    /// Hold a run against budgets: a gate for CI
    Check(CheckArgs),
    /// Replay a run on other allocators and settings
    Replay(ReplayArgs),
    /// Find the settings that would have held less memory, or survived on a smaller card
    Advise(AdviseArgs),
    /// Say why the last failed request of a run failed, and what would have served it
    Oom(OomArgs),
    /// Write a run in another format
    Export(ExportArgs),
    /// Find an offset for each buffer, so that the peak is as low as it can be
    Plan(PlanArgs),
    /// Say what a model will take on a device before it runs, and find a configuration that fits
    Fit(Box<fit::FitArgs>),
    /// Run a PyTorch program on Gapless' own allocator, without a change to it
    Run(RunArgs),
    /// Watch the processes on this machine's cards, live
    Top(live::TopArgs),
    /// Serve what `top` shows to Prometheus
    Metrics(live::MetricsArgs),
    /// Explain a finding code
    Explain(ExplainArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Run the report on a trace that is built in
    Demo(DemoArgs),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless report snapshot.pickle
  gapless report run.pickle.gz --format html -o report.html
  gapless report run.gtrace --format json | jq '.devices[0].peak_reserved'
  zstdcat run.pickle.zst | gapless report -

The exit code is 0 whatever the report finds; `gapless check` is the gate.")]
pub(crate) struct ReportArgs {
    /// What the run left behind: a PyTorch snapshot (.pickle, .json), a .gtrace, an RMM log, a MiniMalloc CSV; gzip or
    /// zstd around it is fine; `-` reads standard input
    pub(crate) file: PathBuf,

    /// How to show it
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub(crate) format: ReportFormat,

    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// How many of the largest holders to list
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,

    /// Replay other settings too, and say which would have held less (takes seconds, as `gapless advise` does)
    #[arg(long)]
    pub(crate) advise: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    Text,
    Json,
    Html,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless diff main.pickle.gz branch.pickle.gz
  gapless diff a.gtrace b.gtrace --format json -o diff.json

Runs are aligned by their steps; stacks are matched by function and file, so that a shifted line does not hide a match.")]
pub(crate) struct DiffArgs {
    /// The run to compare with
    pub(crate) before: PathBuf,
    /// The run in question
    pub(crate) after: PathBuf,

    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(crate) format: DiffFormat,

    /// Where to write it [default: standard output]
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
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless check run.pickle --max-peak-reserved 20GiB --max-fragmentation 15%
  gapless check run.pickle --baseline main.json --tolerance 2%
  gapless check run.pickle --format github        annotations in a workflow's log

gapless.toml, read from the current folder or its parents:
  [check]
  peak_reserved = \"20GiB\"
  peak_allocated = \"18GiB\"
  fragmentation = \"15%\"
  growth_per_step = \"1MiB\"
  baseline = \"memory-baseline.json\"     # a saved `gapless report --format json`, or a trace
  tolerance = \"2%\"

Exit code: 0 within all budgets, 1 over one, 2 the check could not be made.")]
pub(crate) struct CheckArgs {
    /// The run in question; `-` reads standard input
    pub(crate) file: PathBuf,

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

    /// A saved JSON report, or a trace, whose peaks must not be exceeded
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,

    /// By how much the baseline may be exceeded [default: 0%]
    #[arg(long, value_name = "SHARE")]
    pub(crate) tolerance: Option<String>,

    /// The file with the budgets [default: gapless.toml here or in a parent folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[arg(long, value_enum, default_value_t = CheckFormat::Text)]
    pub(crate) format: CheckFormat,

    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    Text,
    Json,
    Github,
    Junit,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless replay run.pickle                                  as it was, expandable, and the floor
  gapless replay run.pickle --with torch --with torch:max_split_size_mb:128 --min-capacity
  gapless replay run.pickle --with torch@2.4 --with torch@2.12 --capacity 24GiB
  gapless replay run.pickle --format html -o replay.html     all curves in one picture

A SPEC names an allocator:
  torch              PyTorch's with the settings and the version of the trace
  torch:default      the same with nothing set
  torch:SETTINGS     as in PYTORCH_ALLOC_CONF: torch:expandable_segments:True
  torch@2.4          another release, 2.4 to 2.12; settings may follow
  gapless            our own allocator: the very code that runs live
  bfc                TensorFlow's: preallocate:0.75, fraction:0.75, gc:true, fragmentation:0.01
  rmm-pool           RMM's pool: initial:10GiB, maximum:30GiB
  rmm-arena          RMM's arenas: size:10GiB
  buddy              powers of two: segment:32MiB
  exact              every request straight to the device
  plan               the whole run packed with its future known: the floor
Settings follow the name: bfc:gc:true, rmm-pool:initial:10GiB,maximum:30GiB.

Exit code: 0 replayed (whatever came of it), 2 the question is wrong.")]
pub(crate) struct ReplayArgs {
    /// The run; `-` reads standard input
    pub(crate) file: PathBuf,

    /// An allocator and its settings; may be given more than once [default: torch, torch:expandable_segments:True
    /// (torch:default where the run had that), plan]
    #[arg(long = "with", value_name = "SPEC")]
    pub(crate) with: Vec<String>,

    /// The size of the card [default: without end]
    #[arg(long, value_name = "BYTES")]
    pub(crate) capacity: Option<String>,

    /// Find the smallest card on which each survives
    #[arg(long)]
    pub(crate) min_capacity: bool,

    /// Only this device; may be given more than once [default: the first]
    #[arg(long = "device", value_name = "N")]
    pub(crate) devices: Vec<u32>,

    /// How to show it
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub(crate) format: ReportFormat,

    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless advise run.pickle                        what would have held less?
  gapless advise run.pickle --capacity 24GiB       what survives on a card of 24 GiB?
  gapless advise run.pickle --format json | jq -r '.suggestions[0].line'

Every suggestion was replayed over this run; nothing is suggested that is set already.
Ctrl-C ends the sweep; what was found until then is told.

Exit code: 0 advice given or none needed, 1 nothing survives on the card, 2 the question is wrong.")]
pub(crate) struct AdviseArgs {
    /// The run; `-` reads standard input
    pub(crate) file: PathBuf,

    /// The size of the card that it must get along with [default: without end]
    #[arg(long, value_name = "BYTES")]
    pub(crate) capacity: Option<String>,

    /// Only this device [default: the first]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// How many settings to replay side by side [default: one a core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(crate) format: DiffFormat,

    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless oom snapshot.pickle
  gapless oom snapshot.pickle --capacity 22.5GiB      where it was capped, and the cap is known

How to have a snapshot when it happens:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000)
  torch._C._cuda_attach_out_of_memory_observer(
      lambda *_: torch.cuda.memory._dump_snapshot(\"oom.pickle\"))

Exit code: 0 examined, 2 there is no failure in the trace, or it cannot be read.")]
pub(crate) struct OomArgs {
    /// A run with a request that failed; `-` reads standard input
    pub(crate) file: PathBuf,

    /// What the process could have, where that is known [default: from the trace]
    #[arg(long, value_name = "BYTES")]
    pub(crate) capacity: Option<String>,

    /// Only this device [default: the one where it failed]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// How many settings to replay side by side [default: one a core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(crate) format: DiffFormat,

    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless export run.pickle --to parquet -o allocations.parquet
  gapless export run.pickle --to perfetto -o run.json      open it in ui.perfetto.dev
  gapless export run.pickle --to minimalloc | head
  gapless export run.pickle --to gtrace -o run.gtrace      smaller, and quicker to open")]
pub(crate) struct ExportArgs {
    /// The run; `-` reads standard input
    pub(crate) file: PathBuf,

    /// The format to write [default: from the name given with -o]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: Option<ExportFormat>,

    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Only this device, for formats that hold one [default: the first]
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
  gapless plan buffers.csv                          as low as possible, with a proof where there is one
  gapless plan buffers.csv --capacity 1MiB          does it fit? if not, which buffers conflict
  gapless plan run.pickle --steps 3 --format svg -o step.svg
  gapless plan new.csv --old old-plan.csv --format csv -o new-plan.csv
  gapless plan model.onnx --dim batch=8             activations of an ONNX model, in node order
  gapless plan buffers.csv --spaces spaces.toml     which buffer in which memory

buffers.csv is MiniMalloc's format: id,lower,upper,size, and where needed alignment, gaps (2-4 5-6), offset (fixed), hint, shares (the
id whose place it may take), accesses (a count, or times as @3 7 9) and spaces (names). The same as JSON: a list of objects. From a trace, every
allocation is a buffer of the size asked for; its lifetime is counted in events.

Ctrl-C ends the search; the best plan so far is kept. Exit code: 0 a plan, 1 it does not fit, 2 the question is wrong.")]
pub(crate) struct PlanArgs {
    /// Buffers as MiniMalloc CSV or JSON, an ONNX model, or a trace; `-` reads CSV from standard input
    pub(crate) file: PathBuf,

    /// Find a plan within this many bytes [default: as low as possible]
    #[arg(long, value_name = "BYTES")]
    pub(crate) capacity: Option<String>,

    /// How long to search: 500ms, 10s, 2min
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(crate) time_limit: String,

    /// All chance comes from this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Search with this many seeds side by side
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// Align every buffer to at least this many bytes
    #[arg(long, value_name = "BYTES")]
    pub(crate) align: Option<String>,

    /// Memory comes in heaps of at most this size: no buffer lies across two
    #[arg(long, value_name = "BYTES")]
    pub(crate) chunk: Option<String>,

    /// Only these steps of a trace, from 0, half-open: 3..5, 3.., ..5 or 3
    #[arg(long, visible_alias = "step", value_name = "A..B")]
    pub(crate) steps: Option<String>,

    /// The device of a trace [default: the first]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,

    /// Several memories: a TOML file with [[space]] tables of name, capacity and cost; the traffic is made as low as possible
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capacity", "old"])]
    pub(crate) spaces: Option<PathBuf>,

    /// Ask for a plan that stays valid when buffers shrink (dynamic shapes). Offsets do not depend on sizes, so every plan
    /// does; with this flag that is checked
    #[arg(long)]
    pub(crate) monotone: bool,

    /// A named dimension of an ONNX model, as batch=8; may be given more than once
    #[arg(long = "dim", value_name = "NAME=VALUE")]
    pub(crate) dims: Vec<String>,

    /// An earlier plan as CSV: move as little as possible
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capacity", "chunk"])]
    pub(crate) old: Option<PathBuf>,

    /// Turn a trick of the search off, to see what it buys; may be given more than once
    #[arg(long, value_name = "TRICK")]
    pub(crate) without: Vec<String>,

    #[arg(long, value_enum, default_value_t = PlanFormat::Text)]
    pub(crate) format: PlanFormat,

    /// Where to write it [default: standard output]
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
  gapless run --record run.gtrace --stacks python -- python train.py; gapless report run.gtrace

The allocator takes its place when torch is imported, in the program and in every Python process that it starts. Options can also
be set as variables, GAPLESS_RESERVE=60GiB; a flag wins. Interpreters that ignore PYTHONPATH (python -I, -E, -S) are not reached.

Exit code: the program's own; 2 it could not be started.")]
pub(crate) struct RunArgs {
    /// Take this much of each device's memory when CUDA starts
    #[arg(long, value_name = "BYTES")]
    pub(crate) reserve: Option<String>,

    /// Hold at most this much of each device's memory
    #[arg(long, value_name = "BYTES")]
    pub(crate) limit: Option<String>,

    /// Hold at most this much of each device's memory, context and libraries included
    #[arg(long, value_name = "BYTES")]
    pub(crate) budget: Option<String>,

    /// Share each device with other processes of this user: a tenant's name and share, such as a:30GiB, a:60% or a:30GiB:borrow
    #[arg(long, value_name = "NAME:SHARE")]
    pub(crate) tenant: Option<String>,

    /// Print one line about memory when a process ends
    #[arg(long)]
    pub(crate) stats: bool,

    /// Fill freed memory, and look whether somebody wrote to it before it is used again: slow
    #[arg(long)]
    pub(crate) check: bool,

    /// Write every allocation and free to this file (.gtrace), which report, diff, check, replay, advise and plan open
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// What the recording keeps of who asked: the Python lines, or nothing
    #[arg(long, value_enum, requires = "record", default_value_t = RecordStacks::Off)]
    pub(crate) stacks: RecordStacks,

    /// What the recording may take on disk: the newest is kept, in FILE and in the older file beside it
    #[arg(long, value_name = "BYTES", requires = "record")]
    pub(crate) record_limit: Option<String>,

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
pub(crate) struct DemoArgs {
    /// Where to write the HTML report
    #[arg(short, long, value_name = "FILE", default_value = "gapless-demo.html")]
    pub(crate) output: PathBuf,
}
