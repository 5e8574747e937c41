//! `cargo xtask test-fleet`: Gapless's parts of schedulers, on real schedulers. Each cluster runs on this machine, in
//! target/fleet-test, during its test.

use crate::shell::{self, command};
use anyhow::{Result, bail};

/// Debian's packages of Slurm's daemons and commands.
const SLURM: [&str; 4] = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"];

/// The clusters by name.
type Cluster = fn(&[&str]) -> Result<()>;
const CLUSTERS: [(&str, Cluster); 4] =
    [("slurm", slurm), ("ray", ray), ("kubernetes", kubernetes), ("container", container)];
/// It needs programs that the user has built, so it runs only by name.
const BY_NAME: &str = "container";

/// Runs the clusters that are named, all of them for `all` or if none is named. Options go to the test of the cluster.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let first_option = words.iter().position(|word| word.starts_with('-')).unwrap_or(words.len());
    let (names, options) = words.split_at(first_option);
    let known = CLUSTERS.map(|(name, _)| name);
    if let Some(unknown) = names.iter().find(|name| **name != "all" && !known.contains(name)) {
        bail!("no cluster is called {unknown:?}: use {} or all", known.join(", "));
    }
    if !options.is_empty() && names.len() != 1 {
        bail!("options are for one cluster: name it first, as in `test-fleet kubernetes --kills 10`");
    }
    for (name, cluster) in CLUSTERS {
        let is_among_all = (names.is_empty() || names.contains(&"all")) && name != BY_NAME;
        if is_among_all || names.contains(&name) {
            cluster(options)?;
        }
    }
    Ok(())
}

fn ray(options: &[&str]) -> Result<()> {
    if !options.is_empty() {
        bail!("invalid option {:?}: `test-fleet ray` has none", options[0]);
    }
    crate::test_fleet_ray::run()
}

fn home(name: &str) -> String {
    shell::target().join("fleet-test").join(name).display().to_string()
}

fn slurm(options: &[&str]) -> Result<()> {
    // The daemons have no `--version`, so the shell looks for them.
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
    shell::run(command(".", "python3", &[&["fleet-test/slurm.py", &home("slurm")], options].concat()))
}

/// Builds Kubernetes the first time, from Debian's source package, which takes some minutes of CPU time.
fn kubernetes(options: &[&str]) -> Result<()> {
    shell::run(command(
        ".",
        "cargo",
        &["build", "--release", "--quiet", "--locked", "--package", "gapless"],
    ))?;
    let gapless = shell::target().join("release/gapless").display().to_string();
    let test = ["fleet-test/kubernetes.py", &home("kubernetes"), "--gapless", &gapless];
    shell::run(command(".", "python3", &[&test[..], options].concat()))
}

/// A kubelet and a container runtime, whose programs `--programs` names.
fn container(options: &[&str]) -> Result<()> {
    if !options.contains(&"--programs") {
        bail!(
            "name a folder of programs with --programs: fleet-test/container.py says which, and how to build them"
        );
    }
    let build = ["build", "--quiet", "--locked", "--package", "gapless", "--features", "tls"];
    shell::run(command(".", "cargo", &build))?;
    let gapless = shell::target().join("debug/gapless").display().to_string();
    let standin = home("standin");
    std::fs::create_dir_all(&standin)?;
    let library = format!("{standin}/libnvidia-ml.so.1");
    let soname = "-Wl,-soname,libnvidia-ml.so.1";
    let compile = ["-std=c11", "-O2", "-shared", "-fPIC", soname, "-o", &library, "nvml.c"];
    shell::run(command("torch-bench/standin", "gcc", &compile))?;
    let (home, test) = (home("container"), "fleet-test/container.py");
    let words = [test, &home, "--gapless", &gapless, "--standin", &standin];
    shell::run(command(".", "python3", &[&words[..], options].concat()))
}
