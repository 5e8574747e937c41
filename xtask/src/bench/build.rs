//! The cost of a user's first build: CPU seconds of a clean `cargo build --release` by crate, and of `pip
//! wheel .` after it, and the sizes of their results. `cargo xtask bench build COMMIT` builds that commit in
//! the same run for a ratio.

use crate::shell::{self, command};
use crate::tools;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates that are printed one by one.
const SHOWN: usize = 25;

pub(crate) fn run(before: Option<&str>) -> Result<()> {
    let folder = shell::target().join("bench-build");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    let now = clone(&folder, "now", "HEAD")?;
    let built = release(&now, &folder.join("target"))?;
    built.print("cargo build --release", "wanted: at most 360 s of CPU");
    let program = folder.join("target/release/gapless");
    println!("{:>8.1} MB  the program", megabytes(&program)?);
    let wheels = folder.join("wheels");
    let wheel = wheel(&now, &folder.join("target"), &wheels)?;
    println!("\n{:>8.1} s of CPU  pip wheel . after it (wanted: at most 120 s)", wheel.total);
    for entry in std::fs::read_dir(&wheels)? {
        println!("{:>8.1} MB  the wheel (wanted: at most 14 MB)", megabytes(&entry?.path())?);
    }
    if let Some(commit) = before {
        let source = clone(&folder, "before", commit)?;
        let was = release(&source, &folder.join("target-before"))?;
        was.print(&format!("the same at {commit}"), "");
        println!("\nnow / {commit}: {:.2}", built.total / was.total);
    }
    Ok(())
}

/// A clean copy of a commit: changes in the working tree do not count.
fn clone(folder: &Path, name: &str, commit: &str) -> Result<PathBuf> {
    let place = folder.join(name);
    let path = place.display().to_string();
    shell::run(command(".", "git", &["clone", "--quiet", ".", &path]))?;
    shell::run(command(".", "git", &["-C", &path, "checkout", "--quiet", commit]))?;
    Ok(place)
}

/// CPU seconds of one build.
struct Cost {
    total: f64,
    wall: f64,
    crates: BTreeMap<String, f64>,
}

impl Cost {
    fn print(&self, what: &str, wanted: &str) {
        println!("\n{what}: {:.0} s of CPU, {:.0} s on the clock   {wanted}", self.total, self.wall);
        let mut crates: Vec<(&String, &f64)> = self.crates.iter().collect();
        crates.sort_by(|a, b| b.1.total_cmp(a.1));
        for (name, seconds) in crates.iter().take(SHOWN) {
            println!("{seconds:>8.1} s  {name}");
        }
        let shown: f64 = crates.iter().take(SHOWN).map(|(_, seconds)| **seconds).sum();
        let all: f64 = self.crates.values().sum();
        println!("{:>8.1} s  {} more crates", all - shown, crates.len().saturating_sub(SHOWN));
        println!("{:>8.1} s  build scripts and cargo", self.total - all);
    }
}

fn release(source: &Path, target: &Path) -> Result<Cost> {
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked"]).current_dir(source).env("CARGO_TARGET_DIR", target);
    measured(build, target)
}

fn wheel(source: &Path, target: &Path, out: &Path) -> Result<Cost> {
    let mut pip = Command::new(tools::python()?);
    pip.args(["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir"]).arg(out);
    pip.arg(".").current_dir(source).env("CARGO_TARGET_DIR", target);
    let bin = PathBuf::from(tools::python()?).parent().context("a folder")?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    pip.env("PATH", std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)))?);
    measured(pip, target)
}

/// Runs a build with rustc timed by xtask/bench/rustc_cpu.sh.
fn measured(mut build: Command, target: &Path) -> Result<Cost> {
    let log = target.with_extension("cpu");
    let _ = std::fs::remove_dir_all(&log);
    std::fs::create_dir_all(&log)?;
    build.env("RUSTC_WRAPPER", shell::root().join("xtask/bench/rustc_cpu.sh")).env("CPU_LOG", &log);
    let (began, before) = (std::time::Instant::now(), children()?);
    shell::run(build)?;
    let total = children()? - before;
    let mut crates = BTreeMap::new();
    for entry in std::fs::read_dir(&log)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.rsplit_once('-').map_or(name.as_str(), |(name, _)| name).to_owned();
        *crates.entry(name).or_default() += seconds(&std::fs::read_to_string(path)?);
    }
    Ok(Cost { total, wall: began.elapsed().as_secs_f64(), crates })
}

/// The sum of the times that a shell's `times` prints: `1m2.5s` four times.
fn seconds(times: &str) -> f64 {
    let one = |word: &str| {
        let (minutes, rest) = word.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + rest.strip_suffix('s')?.parse::<f64>().ok()?)
    };
    times.split_whitespace().filter_map(one).sum()
}

/// CPU seconds of all children that have ended, in ticks of 10 ms.
fn children() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let rest = stat.rsplit_once(')').context("/proc/self/stat has a name")?.1;
    let field = |index: usize| rest.split_whitespace().nth(index).and_then(|word| word.parse::<f64>().ok());
    // cutime and cstime are the 16th and 17th fields of the file, the 14th and 15th behind the name.
    let (user, system) = (field(13).context("cutime")?, field(14).context("cstime")?);
    Ok((user + system) / 100.0)
}

fn megabytes(path: &Path) -> Result<f64> {
    Ok(std::fs::metadata(path)?.len() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn times_of_a_shell_add_up() {
        assert!((seconds("0m0.5s 0m0.25s\n1m2s 0m0.25s\n") - 63.0).abs() < 1e-9);
    }
}
