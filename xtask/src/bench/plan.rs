//! The packer on every kind of instance that it promises figures for, beside the planners that others ship.

use crate::shell::{self, command};
use anyhow::Result;

/// The parts of the bench, in order; the million takes a minute.
const PARTS: [&str; 10] = [
    "challenging",
    "cliff",
    "minimise",
    "tensors",
    "guillotine",
    "heavy",
    "million",
    "training",
    "replan",
    "baselines",
];

pub(crate) fn run() -> Result<()> {
    let mut args =
        vec!["run", "--release", "--locked", "--package", "gapless-plan", "--example", "bench", "--"];
    args.extend(PARTS);
    shell::run(command(".", "cargo", &args))
}
