//! `cargo xtask test`: the tests for a newcomer. It needs a C compiler and Python, and downloads no torch and no
//! browser. `cargo xtask ci` runs the parts of [`MORE`] too.

use crate::parts::Parts;
use crate::shell::{self, command};
use crate::skips::Skips;
use crate::test_rust;
use crate::tools;
use anyhow::{Result, bail};

/// The trace that the page is tested with: the one with stacks.
const PAGE_TRACE: &str = "testdata/traces/gpt2_train_stacks.pickle.gz";

/// A part: its name, its description, and its function.
struct Part {
    name: &'static str,
    what: &'static str,
    run: fn(&mut Skips) -> Result<()>,
}

const PARTS: [Part; 2] = [
    Part {
        name: "quick",
        what: "the Rust crates, the command and the docs' examples, without the long tests",
        run: test_rust::quick,
    },
    Part { name: "python", what: "what of the Python package needs no torch", run: python },
];
const MORE: [Part; 4] = [
    Part { name: "lint", what: "rustfmt, clippy, ruff, mypy", run: lint },
    Part { name: "rust", what: "all Rust tests", run: test_rust::all },
    Part {
        name: "builds",
        what: "the pool's locks, mistakes that are found, and the fleet over TLS",
        run: builds,
    },
    Part { name: "web", what: "the HTML pages in Debian's chromium", run: web },
];
/// Parts of `cargo xtask ci` in other files, beside [`PARTS`] and [`MORE`].
const REST: &str = "torch (stock torch wheels), dist (the release's files)";

/// Runs the parts that are named, or those of a newcomer.
pub(crate) fn run(wanted: &[&str]) -> Result<()> {
    let known: Vec<&str> = PARTS.iter().chain(&MORE).map(|part| part.name).collect();
    if let Some(unknown) = wanted.iter().find(|part| !known.contains(part)) {
        bail!("no part of the tests is called {unknown:?}: there are {known:?}");
    }
    if wanted.is_empty() {
        eprintln!("cargo xtask test runs:");
        PARTS.iter().for_each(describe);
        let more: Vec<String> = MORE.iter().map(|part| format!("{} ({})", part.name, part.what)).collect();
        eprintln!("cargo xtask ci also runs {}, {REST}", more.join(", "));
    }
    let is_wanted = |part: &&Part| match wanted {
        [] => PARTS.iter().any(|first| first.name == part.name),
        _ => wanted.contains(&part.name),
    };
    let mut parts = Parts::default();
    PARTS.iter().chain(&MORE).filter(is_wanted).for_each(|part| parts.run(part.name, part.run));
    parts.close()
}

/// All parts, for CI.
pub(crate) fn add(parts: &mut Parts) {
    // `rust` has all of `quick`. What fails fastest comes first.
    let [_, python] = &PARTS;
    let [lint, rust, builds, web] = &MORE;
    let all = [lint, rust, python, builds, web];
    eprintln!("cargo xtask ci runs:");
    all.into_iter().for_each(describe);
    eprintln!("  and {REST}");
    all.into_iter().for_each(|part| parts.run(part.name, part.run));
}

fn describe(part: &Part) {
    eprintln!("  {:<8} {}", part.name, part.what);
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

/// Builds with other features: the pool's locks under a scheduler that tries many interleavings, the pool and the
/// ledger with known mistakes switched on one by one, and the fleet's server and client over TLS.
fn builds(skips: &mut Skips) -> Result<()> {
    let all = [
        ("gapless-pool", "shuttle", "interleavings"),
        ("gapless-checker", "mutants", "mutants"),
        ("gapless-ledger", "mutants", "mistakes"),
        ("gapless-kube", "tls", "tls"),
    ];
    let mut failed = None;
    for (package, feature, test) in all {
        let words = ["test", "--locked", "--package", package, "--features", feature, "--test", test];
        failed = failed.or(shell::watch(command(".", "cargo", &words), skips).err());
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
    npm.env("REPORT_HTML", &html).env("REPORT_JSON", &json).env("RANKS_HTML", &ranks).env("GAPLESS", &binary);
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
