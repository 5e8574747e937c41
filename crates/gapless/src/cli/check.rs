//! The flags of `gapless check`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
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
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_peak_reserved: Option<String>,

    /// The most memory that may be allocated at once
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_peak_allocated: Option<String>,

    /// The highest 1 - peak allocated / peak reserved, as 0.15 or 15%
    #[arg(long, value_name = "SHARE")]
    pub(crate) max_fragmentation: Option<String>,

    /// The most that live bytes may grow from step to step
    #[arg(long, value_name = "SIZE")]
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
