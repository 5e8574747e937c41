//! Tools that the tests need beyond cargo: a browser, node and Prometheus, from Debian's packages; the page's
//! packages, from npm; Python's tools, from pip.

use crate::shell::{self, command};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The interpreter of an environment with Python's tools, as `python/requirements-dev.txt` names them. It is made if
/// there is none, and updated if the list has changed.
pub(crate) fn python() -> Result<String> {
    let folder = shell::target().join("python-tools");
    let list = shell::root().join("python/requirements-dev.txt");
    environment(&folder, &["--requirement", &list.display().to_string()], &std::fs::read_to_string(&list)?)
}

/// The interpreter of an environment in `folder` into which pip installed `packages`. `what` identifies
/// the list of packages.
pub(crate) fn environment(folder: &Path, packages: &[&str], what: &str) -> Result<String> {
    let python = folder.join("bin/python").display().to_string();
    // Written last, so that the leftover of a broken download does not count as an environment.
    let whole = folder.join("whole");
    let has = std::fs::read_to_string(&whole).unwrap_or_default();
    if has != what {
        if has.is_empty() {
            let name = folder.display().to_string();
            shell::run(command(".", "python3", &["-m", "venv", "--clear", &name]))?;
        }
        let mut install =
            vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"];
        install.extend(packages);
        shell::run(command(".", &python, &install))?;
        std::fs::write(whole, what)?;
    }
    Ok(python)
}

/// Installs `packages` into an environment that exists already. If that fails, the environment stays as it was.
pub(crate) fn add(folder: &Path, packages: &[&str]) -> Result<()> {
    let (what, whole) = (packages.join(" "), folder.join("added"));
    if std::fs::read_to_string(&whole).unwrap_or_default() == what {
        return Ok(());
    }
    let python = folder.join("bin/python").display().to_string();
    let mut install =
        vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"];
    install.extend(packages);
    shell::run(command(".", &python, &install))?;
    Ok(std::fs::write(whole, what)?)
}

/// Installs a browser and node if they are missing.
pub(crate) fn install() -> Result<()> {
    let mut missing = Vec::new();
    if browser().is_none() {
        missing.push("chromium");
    }
    if !shell::has("node") {
        missing.push("nodejs");
    }
    if !shell::has("npm") {
        missing.push("npm");
    }
    if !missing.is_empty() {
        apt(&missing)?;
    }
    if browser().is_none() {
        bail!("no chromium was found: install it, or name one in CHROMIUM");
    }
    Ok(())
}

/// The path of the browser that drives the page: CHROMIUM, or the first that is installed.
pub(crate) fn browser() -> Option<String> {
    if let Ok(named) = std::env::var("CHROMIUM") {
        return Some(named);
    }
    let known = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    known
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
        .map(|path| path.display().to_string())
}

/// The folder with `prometheus` and `promtool`: PROMETHEUS, or Debian's package unpacked below cargo's target folder,
/// without an installation. `None` if that fails, which prints a loud message but is not a failure. The test then
/// looks on the PATH, and prints that it was skipped if there is none.
pub(crate) fn prometheus() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PROMETHEUS") {
        return Some(named.into());
    }
    let folder = shell::target().join("prometheus");
    let programs = folder.join("usr/bin");
    let is_there = || ["prometheus", "promtool"].iter().all(|name| programs.join(name).is_file());
    if !is_there()
        && !shell::has("prometheus")
        && let Err(error) = unpack("prometheus", &folder)
    {
        eprintln!("\n********  NO PROMETHEUS: its package cannot be had ({error:#})  ********\n");
    }
    is_there().then_some(programs)
}

/// Downloads a Debian package and unpacks it into `folder`, which needs no rights.
pub(crate) fn unpack(package: &str, folder: &Path) -> Result<()> {
    if !shell::has("apt-get") || !shell::has("dpkg-deb") {
        bail!("there is no apt-get");
    }
    let fresh = folder.with_extension("part");
    let _ = std::fs::remove_dir_all(&fresh);
    std::fs::create_dir_all(&fresh)?;
    let download = || {
        let mut get = command(".", "apt-get", &["download", "-q", package]);
        get.current_dir(&fresh);
        shell::run(get)
    };
    // The list of packages may be missing or old.
    download().or_else(|_| apt_get(&["update", "-q"]).and_then(|()| download()))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let mut files = std::fs::read_dir(&fresh)?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.find(is_package).context("apt-get left no package")?;
    let (file, place) = (file.display().to_string(), fresh.display().to_string());
    shell::run(command(".", "dpkg-deb", &["-x", &file, &place]))?;
    std::fs::remove_file(&file)?;
    // The rename makes the folder appear whole or not at all.
    let _ = std::fs::remove_dir_all(folder);
    std::fs::rename(&fresh, folder)?;
    Ok(())
}

fn apt_get(args: &[&str]) -> Result<()> {
    // An ordinary user needs sudo; a container's root often has none.
    let mut words = if shell::has("sudo") { vec!["sudo", "apt-get"] } else { vec!["apt-get"] };
    words.extend_from_slice(args);
    let mut command = command(".", words[0], &words[1..]);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    shell::run(command)
}

fn apt(packages: &[&str]) -> Result<()> {
    if !shell::has("apt-get") {
        bail!("please install: {}", packages.join(", "));
    }
    apt_get(&["update", "-q"])?;
    let mut args = vec!["install", "-q", "-y", "--no-install-recommends"];
    args.extend_from_slice(packages);
    apt_get(&args)
}
