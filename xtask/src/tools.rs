//! What the tests need beyond cargo: a browser and node, from Debian's packages; the page's packages, from npm.

use crate::shell::{self, command};
use anyhow::{Result, bail};
use std::path::PathBuf;

/// Makes sure that a browser and node are there.
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

fn apt(packages: &[&str]) -> Result<()> {
    if !shell::has("apt-get") {
        bail!("please install: {}", packages.join(", "));
    }
    // An ordinary user needs sudo; a container's root often has none.
    let apt_get = |args: &[&str]| {
        let mut words = if shell::has("sudo") { vec!["sudo", "apt-get"] } else { vec!["apt-get"] };
        words.extend_from_slice(args);
        let mut command = command(".", words[0], &words[1..]);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        shell::run(command)
    };
    apt_get(&["update", "-q"])?;
    let mut args = vec!["install", "-q", "-y", "--no-install-recommends"];
    args.extend_from_slice(packages);
    apt_get(&args)
}
