//! The flags of `gapless estimate`.

use super::fit::{AttentionArg, CheckpointingArg, OptimizerArg, PrecisionArg};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gapless estimate train.py -- --batch 8
  gapless estimate train.py --device rtx-4090 --steps 2
  gapless estimate train.py --assume beam.py:88=true
  gapless estimate train.py --train-in 20GiB
  gapless estimate train.py --save run.pickle; gapless report run.pickle
  gapless estimate train.py --nproc 4 --format json
  gapless estimate config.json --batch 8 --seq 1024 --precision amp-bf16
  gapless estimate ./stable-diffusion/unet --batch 4 --image 512
  gapless estimate gpt-oss-20b --infer --batch 4 --seq 8192
  gapless estimate --jax train.py --device h100 --nproc 8

Gapless runs the script unchanged, on torch's own CUDA code and a card that is only bookkeeping: no GPU is needed, and
kernels do nothing. It goes on to the script's end; after a minute, or once steps bring nothing new, it stops and says
so. It uses `python3` beside `gapless`, or of the PATH, or the interpreter in GAPLESS_PYTHON; torch's CUDA build must be
installed there.

Of a configuration (config.json of transformers or diffusers, its folder, or a name that `gapless fit --list` prints),
the installed transformers or diffusers makes the model, without weights, and Gapless makes a batch. The answer says
which.

With --jax the script is one of JAX: XLA compiles each function that it gave to jax.jit for the card, and nothing runs
on it. Needs the package jax[cuda13].

Exit code: 0 if it fits on the card, 1 if it does not, 2 if there is no answer.")]
pub(crate) struct EstimateArgs {
    /// The Python script, or a configuration: config.json, its folder, or a built-in name
    #[arg(value_name = "SCRIPT|CONFIG")]
    pub(crate) script: PathBuf,

    /// The card: a100-80, h100, h200, b200, rtx-4090 or l40s
    #[arg(long, value_name = "NAME", default_value = "h200")]
    pub(crate) device: String,

    /// Run this many processes, each a rank on a card of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) nproc: u32,

    /// The script uses JAX: compile its functions for the card, and run all else on the CPU
    #[arg(long)]
    pub(crate) jax: bool,

    /// With --jax: keep XLA's dumps of the compiled functions in this folder, for `gapless report FOLDER`
    #[arg(long, value_name = "FOLDER", requires = "jax")]
    pub(crate) dumps: Option<PathBuf>,

    /// The output format
    #[arg(long, value_enum, default_value_t = EstimateFormat::Text)]
    pub(crate) format: EstimateFormat,

    /// Write torch's memory snapshot of the run, for report, replay, advise and the others; with --jax a CSV of the
    /// requests
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) run: ConfigurationArgs,

    #[command(flatten)]
    pub(crate) pace: PaceArgs,

    /// The script's own arguments, after `--`
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
}

/// How far a script is run, and what it reads on its way.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "The run of a script")]
pub(crate) struct PaceArgs {
    /// Stop after this many steps of the optimizer [default: at the script's end, or once steps bring nothing new]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "until_stable")]
    pub(crate) steps: Option<u32>,

    /// Go on until steps bring nothing new, however long it takes
    #[arg(long)]
    pub(crate) until_stable: bool,

    /// Stop when steps have taken this long [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) time_limit: Option<f64>,

    /// Train the script's models within SIZE, as gapless.fit_into does: do they fit, and how much longer is a step?
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["jax", "nproc"])]
    pub(crate) train_in: Option<String>,

    /// What the script reads at a line where the value is not known: train.py:42=true, loss.py:7=[3,5]
    #[arg(long, value_name = "FILE:LINE=VALUE")]
    pub(crate) assume: Vec<String>,
}

impl PaceArgs {
    /// What was given, as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(steps) = self.steps {
            words.extend(["--steps".to_owned(), steps.to_string()]);
        }
        if self.until_stable {
            words.push("--until-stable".to_owned());
        }
        if let Some(seconds) = self.time_limit {
            words.extend(["--time-limit".to_owned(), seconds.to_string()]);
        }
        if let Some(size) = &self.train_in {
            words.push(format!("--train-in={size}"));
        }
        words.extend(self.assume.iter().map(|assumed| format!("--assume={assumed}")));
        words
    }
}

/// How the model of a configuration is run: names and meaning as in `gapless fit`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "The run of a configuration")]
pub(crate) struct ConfigurationArgs {
    /// Forward, backward, optimizer [default]
    #[arg(long, conflicts_with = "infer")]
    pub(crate) train: bool,

    /// Forward passes alone, with a key-value cache where the model has one
    #[arg(long)]
    pub(crate) infer: bool,

    /// Sequences, pictures or sounds of one forward pass [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<u64>,

    /// Tokens of a sequence [default: 2048, or the model's positions where they are fewer]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) seq: Option<u64>,

    /// Pixels a side [default: the configuration's, else 224; 512 for diffusion]
    #[arg(long, value_name = "PIXELS")]
    pub(crate) image: Option<u64>,

    /// Seconds of a sound [default: 10, or what the model always takes]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,

    /// What weights are kept in and products computed in [default: bf16]
    #[arg(long, value_enum, value_name = "PRECISION")]
    pub(crate) precision: Option<PrecisionArg>,

    /// What updates the weights [default: adamw]
    #[arg(long, value_enum, value_name = "OPTIMIZER")]
    pub(crate) optimizer: Option<OptimizerArg>,

    /// What is run again in backward instead of kept: none or full [default: none]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) checkpointing: Option<CheckpointingArg>,

    /// How attention is computed [default: as the library chooses]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) attention: Option<AttentionArg>,

    /// Forward and backward passes before each step of the optimizer [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) grad_accum: Option<u64>,
}

impl ConfigurationArgs {
    /// What was given, as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        fn name<T: ValueEnum>(value: Option<T>) -> Option<String> {
            Some(value?.to_possible_value()?.get_name().to_owned())
        }
        let valued = [
            ("--batch", self.batch.map(|n| n.to_string())),
            ("--seq", self.seq.map(|n| n.to_string())),
            ("--image", self.image.map(|n| n.to_string())),
            ("--seconds", self.seconds.map(|n| n.to_string())),
            ("--precision", name(self.precision)),
            ("--optimizer", name(self.optimizer)),
            ("--checkpointing", name(self.checkpointing)),
            ("--attention", name(self.attention)),
            ("--grad-accum", self.grad_accum.map(|n| n.to_string())),
        ];
        let mut words: Vec<String> = self.infer.then(|| "--infer".to_owned()).into_iter().collect();
        for (flag, value) in valued {
            words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
        }
        words
    }
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
