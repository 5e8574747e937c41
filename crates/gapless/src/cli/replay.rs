//! The flags of `gapless replay`, and the list of allocators in its help.

use clap::{Args as ClapArgs, ValueEnum};
use gapless_replay::models::MODELS;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(after_help = replay_examples())]
pub(crate) struct ReplayArgs {
    /// The run; `-` reads standard input
    pub(crate) file: PathBuf,

    /// An allocator and its settings; may be given more than once [default: torch, torch:expandable_segments:True
    /// (or torch:default if the run used it), plan]
    #[arg(long = "with", value_name = "SPEC")]
    pub(crate) with: Vec<String>,

    /// The memory of the card [default: unlimited]
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,

    /// Find the smallest card on which each allocator can serve the run
    #[arg(long)]
    pub(crate) min_capacity: bool,

    /// Only this device; may be given more than once [default: the first]
    #[arg(long = "device", value_name = "N")]
    pub(crate) devices: Vec<u32>,

    /// The output format
    #[arg(long, value_enum, default_value_t = ReplayFormat::Text)]
    pub(crate) format: ReplayFormat,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplayFormat {
    Text,
    Json,
    Html,
}

fn replay_examples() -> String {
    let models: Vec<String> = MODELS
        .iter()
        .map(|model| {
            let keys: Vec<String> = model.keys.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            let settings =
                if keys.is_empty() { String::new() } else { format!("\n{:21}{}", "", keys.join(",")) };
            format!("  {:<18} {}{settings}", model.name, model.what)
        })
        .collect();
    format!(
        "\
Examples:
  gapless replay run.pickle                     as recorded, expandable segments, the floor
  gapless replay run.pickle --with torch --with gapless --min-capacity
  gapless replay run.pickle --with torch:max_split_size_mb:128
  gapless replay run.pickle --with torch@2.4 --with torch@2.15 --capacity 24GiB
  gapless replay run.pickle --format html -o replay.html     all curves in one picture

A SPEC names an allocator; below its name are the settings that it has:
  torch              PyTorch's, with the settings and the release of the trace
  torch:default      the same without any setting
  torch:SETTINGS     as in PYTORCH_ALLOC_CONF: torch:expandable_segments:True
  torch@2.4          another release, 2.4 to 2.15; settings may follow
  gapless            the Gapless allocator, as in `gapless run`
{}
  plan               the floor: the whole run packed, with every lifetime known
Settings follow the name: bfc:gc:true, rmm-pool:initial:10GiB,maximum:30GiB.

Exit code: 0 replayed (also if memory ran out in the replay), 2 an error.",
        models.join("\n")
    )
}
