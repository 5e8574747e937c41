//! `cargo xtask test-fleet`: what Gapless adds to schedulers, on schedulers that really run. Each cluster lives on this
//! machine, in target/fleet-test, for as long as its test does.

use crate::shell::{self, command};
use anyhow::{Result, bail};

/// What Slurm's daemons and commands come in, on Debian.
const SLURM: [&str; 4] = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"];

pub(crate) fn run(names: &[&str]) -> Result<()> {
    let known = ["slurm", "ray"];
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("no cluster is called {unknown:?}: there are {}", known.join(", "));
    }
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    if wanted("slurm") {
        slurm()?;
    }
    if wanted("ray") {
        crate::test_fleet_ray::run()?;
    }
    Ok(())
}

fn slurm() -> Result<()> {
    // The daemons do not know `--version`.
    if shell::output(command(
        ".",
        "sh",
        &["-c", "command -v slurmctld && command -v slurmd && command -v sbatch"],
    ))
    .is_err()
    {
        let install = ["install", "--yes", "--no-install-recommends"];
        shell::run(command(".", "apt-get", &[&install[..], &SLURM].concat()))?;
    }
    let home = shell::target().join("fleet-test/slurm").display().to_string();
    shell::run(command(".", "python3", &["fleet-test/slurm.py", &home]))
}
