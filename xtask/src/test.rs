//! `cargo xtask test`: everything that must hold and needs no torch, in the order in which it fails fastest.

use crate::parts::Parts;
use crate::shell::{self, command};
use crate::skips::Skips;
use crate::tools;
use anyhow::{Result, bail};

/// The trace that the page is tested with: the one with stacks.
const PAGE_TRACE: &str = "testdata/traces/gpt2_train_stacks.pickle.gz";

/// The parts by name.
type Part = fn(&mut Skips) -> Result<()>;
const PARTS: [(&str, Part); 4] = [("lint", lint), ("rust", rust), ("python", python), ("web", web)];

pub(crate) fn run(wanted: &[&str]) -> Result<()> {
    let mut parts = Parts::default();
    add(&mut parts, wanted)?;
    parts.close()
}

/// Runs the parts that are wanted, all where none is named.
pub(crate) fn add(parts: &mut Parts, wanted: &[&str]) -> Result<()> {
    let known = PARTS.map(|(name, _)| name);
    if let Some(unknown) = wanted.iter().find(|part| !known.contains(part)) {
        bail!("no part of the tests is called {unknown:?}: there are {known:?}");
    }
    for (name, part) in PARTS {
        if wanted.is_empty() || wanted.contains(&name) {
            parts.run(name, part);
        }
    }
    Ok(())
}

fn lint(skips: &mut Skips) -> Result<()> {
    shell::run(command(".", "cargo", &["fmt", "--all", "--check"]))?;
    let python = tools::python()?;
    shell::run(command(".", &python, &["-m", "ruff", "check", "python", "xtask"]))?;
    shell::run(command(".", &python, &["-m", "ruff", "format", "--check", "python", "xtask"]))?;
    shell::run(command(".", &python, &["-m", "mypy"]))?;
    shell::run(command(
        ".",
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
    ))?;
    if shell::has("cargo-deny") {
        shell::run(command(".", "cargo", &["deny", "--offline", "check", "bans", "licenses", "sources"]))?;
    } else {
        skips.add("cargo-deny", "it is not installed; xtask/tests/licences.rs holds deny.toml's lists");
    }
    Ok(())
}

fn rust(skips: &mut Skips) -> Result<()> {
    // A crate that fails keeps no other from running: a run tells all that is wrong.
    let mut tests = command(".", "cargo", &["test", "--workspace", "--locked", "--no-fail-fast"]);
    if let Some(folder) = tools::prometheus() {
        tests.env("PROMETHEUS", folder);
    }
    let mut failed = shell::watch(tests, skips).err();
    // The pool's locks under a scheduler that tries many interleavings, and the pool with its fixes taken out
    // one by one: other builds of it.
    for (feature, test) in [("shuttle", "interleavings"), ("mutants", "mutants")] {
        let pool = ["test", "--locked", "--package", "gapless-pool", "--features", feature, "--test", test];
        failed = failed.or(shell::watch(command(".", "cargo", &pool), skips).err());
    }
    failed.map_or(Ok(()), Err)
}

/// The tests of the Python package that need no torch: `cargo xtask test-torch` runs the others.
fn python(skips: &mut Skips) -> Result<()> {
    let python = tools::python()?;
    let built = shell::built()?;
    let words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "--without-torch", "python/tests"];
    let mut tests = command(".", &python, &words);
    tests
        .env("STANDIN_GAPLESS", built.join("gapless"))
        .env_remove("STANDIN_LIB")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    shell::watch(tests, skips)
}

/// The page in a real browser, on a report that the real binary wrote.
fn web(skips: &mut Skips) -> Result<()> {
    browser(&["test"], skips)
}

/// Takes the pictures in docs/images again.
pub(crate) fn pictures() -> Result<()> {
    browser(&["run", "pictures"], &mut Skips::of("pictures"))
}

/// Runs npm with `args` on a fresh report of [`PAGE_TRACE`].
fn browser(args: &[&str], skips: &mut Skips) -> Result<()> {
    tools::install()?;
    install_page_packages()?;
    let built = shell::built()?;
    let binary = built.join("gapless").display().to_string();
    let folder = shell::target().join("page-test");
    std::fs::create_dir_all(&folder)?;
    let (html, json) = (folder.join("report.html"), folder.join("report.json"));
    for (format, path) in [("html", &html), ("json", &json)] {
        let path = path.display().to_string();
        shell::run(command(".", &binary, &["report", PAGE_TRACE, "--format", format, "-o", &path]))?;
    }
    let ranks = folder.join("ranks.html");
    let make_ranks = built.join("examples/ranks_page").display().to_string();
    shell::run(command(".", &make_ranks, &[&ranks.display().to_string(), "64"]))?;
    let mut npm = command("web", "npm", args);
    npm.env("REPORT_HTML", &html).env("REPORT_JSON", &json).env("RANKS_HTML", &ranks);
    if let Some(browser) = tools::browser() {
        npm.env("CHROMIUM", browser);
    }
    shell::watch(npm, skips)
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
