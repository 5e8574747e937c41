//! `gapless weights`: read, compress, check and quantise the weights of models.

use super::PlainFormat;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand};
use gapless_weights::quantize::experts::{Experts, Halves};
use gapless_weights::quantize::scheme::Scheme;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless weights info model/                                tensors, types, bytes, what would compress
  gapless weights pack model.safetensors -o small.safetensors
  gapless weights pack model/ -o packed/                     all shards; run again to go on after a stop
  gapless weights verify packed/                             every chunk against its checksum
  gapless weights unpack packed/ -o model-again/             byte for byte what was packed
  gapless weights unpack packed/ -o mine/ --rank 3 --world 8  the rows of rank 3, and nothing else
  gapless weights quantize model/ -o model-fp8/ --scheme fp8  as compressed-tensors writes it

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
    /// Quantise Linear weights without data; the result is what compressed-tensors writes
    Quantize(QuantizeArgs),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless weights info model/
  gapless weights info model.gguf --top 30
  gapless weights info model/ --full      every byte: exact duplicates, entropy
  gapless weights info model/ --format json")]
pub(crate) struct InfoArgs {
    /// A .safetensors, .gguf, .pt, .bin, .npz, .npy or .onnx file, or a folder with shards
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
#[command(after_help = "\
Examples:
  gapless weights pack model.safetensors -o small.safetensors
  gapless weights pack model/ -o packed/          all shards
  gapless weights pack model/ -o packed/ --limit-rate 500MB")]
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

    /// Read at most so many bytes a second, such as 500MB
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit_rate: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless weights unpack packed/ -o model/
  gapless weights unpack packed/ -o mine/ --rank 3 --world 8   the rows of rank 3
  gapless weights unpack damaged.safetensors -o rest.safetensors --keep-going")]
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
    #[arg(long, conflicts_with = "rank")]
    pub(crate) keep_going: bool,

    /// Write only this rank's rows of each tensor: ranks are 0 to world - 1
    #[arg(long, value_name = "R", requires = "world")]
    pub(crate) rank: Option<u64>,

    /// How many ranks share the rows
    #[arg(long, value_name = "N", requires = "rank", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) world: Option<u64>,

    /// Read at most so many bytes a second, such as 500MB
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit_rate: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless weights verify packed/
  gapless weights verify small.safetensors --threads 4")]
pub(crate) struct VerifyArgs {
    /// A packed file or folder
    pub(crate) input: PathBuf,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Read at most so many bytes a second, such as 500MB
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit_rate: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  gapless weights quantize model/ -o model-fp8/ --scheme fp8
  gapless weights quantize model/ -o model-w4/ --scheme w4a16 --ignore '*.gate'")]
pub(crate) struct QuantizeArgs {
    /// A .safetensors file, or a model's folder with shards and config.json
    pub(crate) input: PathBuf,

    /// The quantised file, or a new folder; it appears when it is complete
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,

    /// How weights are stored
    #[arg(long, value_parser = scheme())]
    pub(crate) scheme: Scheme,

    /// Leave a module as it is: its name, * stands for any characters; may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub(crate) ignore: Vec<String>,

    /// What to do with fused experts, which one tensor holds for all experts of a layer
    #[arg(long, value_enum, default_value_t = ExpertsArg::Auto)]
    pub(crate) experts: ExpertsArg,

    /// The format of what is printed
    #[arg(long, value_enum, default_value_t = PlainFormat::Text)]
    pub(crate) format: PlainFormat,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Read at most so many bytes a second, such as 500MB
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit_rate: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ExpertsArg {
    /// Split them if config.json names a model whose layout is known
    Auto,
    /// Leave them as they are
    Leave,
    /// Split them: gate_up_proj has all of gate, then all of up
    Halves,
    /// Split them: gate_up_proj has gate and up in turns
    Pairs,
}

impl From<ExpertsArg> for Experts {
    fn from(asked: ExpertsArg) -> Experts {
        match asked {
            ExpertsArg::Auto => Experts::Auto,
            ExpertsArg::Leave => Experts::Leave,
            ExpertsArg::Halves => Experts::Split(Halves::Halves),
            ExpertsArg::Pairs => Experts::Split(Halves::Pairs),
        }
    }
}

/// The schemes by their names, each with a line of help.
fn scheme() -> impl TypedValueParser<Value = Scheme> {
    let names = Scheme::ALL.map(|scheme| PossibleValue::new(scheme.name()).help(scheme.about()));
    PossibleValuesParser::new(names).map(|name| {
        Scheme::ALL
            .into_iter()
            .find(|scheme| scheme.name().eq_ignore_ascii_case(&name))
            .expect("one of the names")
    })
}
