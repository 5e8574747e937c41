//! Memory that sleeps, is shared and grows, on a card: the programs of `torch-bench/live`. Without a card it prints
//! that nothing is measured.

use crate::shell::{self, command};
use anyhow::{Context, Result};
use std::process::{Command, Stdio};

const PROGRAMS: [&str; 3] =
    ["torch-bench/live/serving.py", "torch-bench/live/serving_share.py", "torch-bench/live/rollouts.py"];

pub(crate) fn run() -> Result<()> {
    if !has_card() {
        println!("serving: NOT MEASURED: nvidia-smi lists no card here. Run it where a card and torch are.");
        return Ok(());
    }
    let args = ["build", "--release", "--locked", "--package", "gapless-torch"];
    shell::run(command(".", "cargo", &args))?;
    let library = shell::target().join("release/libgapless_torch.so");
    for program in PROGRAMS {
        let mut python = command(".", "python3", &[program]);
        python.env("GAPLESS_LIBRARY", &library).env("PYTHONPATH", "python");
        shell::run(python)
            .with_context(|| format!("{program}: a figure is not what is wanted, or it failed"))?;
    }
    Ok(())
}

/// True if the driver lists a card.
fn has_card() -> bool {
    let listed = Command::new("nvidia-smi").arg("-L").stderr(Stdio::null()).output();
    listed.is_ok_and(|listed| listed.status.success() && listed.stdout.starts_with(b"GPU "))
}
