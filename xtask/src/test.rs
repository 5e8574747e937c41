//! `cargo xtask test`: everything that must hold, in the order in which it fails fastest.

use crate::shell::{self, command};
use crate::tools;
use anyhow::{Result, bail};

/// The trace that the page is tested with: the one with stacks.
const PAGE_TRACE: &str = "testdata/traces/gpt2_train_stacks.pickle.gz";

pub(crate) fn run(parts: &[&str]) -> Result<()> {
    let known = ["lint", "rust", "web"];
    if let Some(unknown) = parts.iter().find(|part| !known.contains(part)) {
        bail!("no part of the tests is called {unknown:?}: there are {known:?}");
    }
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    if wanted("web") {
        tools::install()?;
    }
    if wanted("lint") {
        lint()?;
    }
    if wanted("rust") {
        let mut tests = command(".", "cargo", &["test", "--workspace", "--locked"]);
        if let Some(folder) = tools::prometheus() {
            tests.env("PROMETHEUS", folder);
        }
        shell::run(tests)?;
        // The pool's locks under a scheduler that tries many interleavings, and the pool with its fixes taken out
        // one by one: other builds of it.
        for (feature, test) in [("shuttle", "interleavings"), ("mutants", "mutants")] {
            let pool =
                ["test", "--locked", "--package", "gapless-pool", "--features", feature, "--test", test];
            shell::run(command(".", "cargo", &pool))?;
        }
    }
    if wanted("web") {
        web()?;
    }
    Ok(())
}

fn lint() -> Result<()> {
    shell::run(command(".", "cargo", &["fmt", "--all", "--check"]))?;
    shell::run(command(
        ".",
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
    ))?;
    if shell::has("cargo-deny") {
        shell::run(command(".", "cargo", &["deny", "--offline", "check", "bans", "licenses", "sources"]))?;
    } else {
        eprintln!("cargo-deny is not installed: licences and bans (deny.toml) were not checked");
    }
    Ok(())
}

/// The page in a real browser, on a report that the real binary wrote.
fn web() -> Result<()> {
    browser(&["test"])
}

/// Takes the pictures in docs/images again.
pub(crate) fn pictures() -> Result<()> {
    tools::install()?;
    browser(&["run", "pictures"])
}

/// Runs npm with `args` on a fresh report of [`PAGE_TRACE`].
fn browser(args: &[&str]) -> Result<()> {
    install_page_packages()?;
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless"]))?;
    let binary = shell::target().join("release/gapless").display().to_string();
    let folder = shell::target().join("page-test");
    std::fs::create_dir_all(&folder)?;
    let (html, json) = (folder.join("report.html"), folder.join("report.json"));
    for (format, path) in [("html", &html), ("json", &json)] {
        let path = path.display().to_string();
        shell::run(command(".", &binary, &["report", PAGE_TRACE, "--format", format, "-o", &path]))?;
    }
    let mut npm = command("web", "npm", args);
    npm.env("REPORT_HTML", &html).env("REPORT_JSON", &json);
    if let Some(browser) = tools::browser() {
        npm.env("CHROMIUM", browser);
    }
    shell::run(npm)
}

/// Rebuilds the committed bundle of the page.
pub(crate) fn build_page() -> Result<()> {
    install_page_packages()?;
    shell::run(command("web", "npm", &["run", "build"]))
}

pub(crate) fn install_page_packages() -> Result<()> {
    if shell::root().join("web/node_modules/.package-lock.json").exists() {
        return Ok(());
    }
    shell::run(command("web", "npm", &["ci", "--no-audit", "--no-fund"]))
}
