//! The flags of `gapless keep`.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless keep model.safetensors --name llama
  gapless keep weights/ --name llama --device 1

In another process of the same user: gapless.attach(\"llama\", model). It maps the memory to read, without a copy. Gapless
prints the name, or a handle where none was given, when the weights are on the GPU. SIGTERM or Ctrl-C ends it; processes
that have attached keep the memory. It uses `python3` beside `gapless`, or of the PATH, or the interpreter in
GAPLESS_PYTHON, with the Python package of Gapless; torch is not needed there.

Exit code: 0 if it was ended, 2 if the weights cannot be kept.")]
pub(crate) struct KeepArgs {
    /// Safetensors files of one model, or a folder with them
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// What others attach by: 1 to 64 letters, digits, "_", "-" or "."
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// The number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..64))]
    pub(crate) device: u32,
}
