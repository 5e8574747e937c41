//! `gapless weights`: read, compress and check the weights of models.

use super::PlainFormat;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless weights info model/                                tensors, types, bytes, what would compress
  gapless weights pack model.safetensors -o small.safetensors
  gapless weights pack model/ -o packed/                     all shards; run again to go on after a stop
  gapless weights verify packed/                             every chunk against its checksum
  gapless weights unpack packed/ -o model-again/             byte for byte what was packed

Exit code: 0 success, 2 an error or damage.")]
pub(crate) struct WeightsArgs {
    #[command(subcommand)]
    pub(crate) command: WeightsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WeightsCommand {
    /// Show tensors, types, bytes, duplicates, and how much would compress
    Info(InfoArgs),
    /// Compress without a loss; the result is a safetensors file
    Pack(PackArgs),
    /// Restore the file that was packed, byte for byte
    Unpack(UnpackArgs),
    /// Check every chunk of a packed file or folder; writes nothing
    Verify(VerifyArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct InfoArgs {
    /// A .safetensors, .gguf, .pt, .bin, .npz or .onnx file, or a folder with shards
    pub(crate) input: PathBuf,

    /// The output format
    #[arg(long, value_enum, default_value_t = PlainFormat::Text)]
    pub(crate) format: PlainFormat,

    /// How many of the largest tensors to list
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,

    /// Read every byte instead of a sample: exact duplicates and entropy
    #[arg(long)]
    pub(crate) full: bool,

    /// The output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PackArgs {
    /// A .safetensors file, or a folder with shards
    pub(crate) input: PathBuf,

    /// The packed file or folder; shards that are done already are left alone
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Of a folder: go on with the other shards after an error
    #[arg(long)]
    pub(crate) keep_going: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UnpackArgs {
    /// A packed file or folder
    pub(crate) input: PathBuf,

    /// The restored file or folder
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Write zeros for damaged parts, list them, and go on
    #[arg(long)]
    pub(crate) keep_going: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct VerifyArgs {
    /// A packed file or folder
    pub(crate) input: PathBuf,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}
