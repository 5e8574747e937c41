//! `cargo xtask bench`: the figures that the project promises, each as a ratio of two things measured side by side in
//! one run.

mod build;
mod check;
mod estimate;
mod fit;
mod fleet;
mod host;
mod host_leaks;
mod page;
mod plan;
mod pool;
mod quantize;
mod ranks;
mod replay;
mod report;
mod serving;
mod weights;

use anyhow::{Result, bail};

pub(crate) fn run(names: &[&str]) -> Result<()> {
    // The host's bench has parts: `bench host large`.
    if let [first, parts @ ..] = names
        && *first == "host"
        && !parts.is_empty()
        && parts.iter().all(|part| host::PARTS.contains(part))
    {
        return host::run(parts);
    }
    if let ["fleet", parts @ ..] = names
        && !parts.is_empty()
        && parts.iter().all(|part| fleet::PARTS.contains(part))
    {
        return fleet::run(parts);
    }
    // It builds all crates again, so it runs only by name. A commit may follow, for a ratio.
    if let ["build", commit @ ..] = names
        && commit.len() < 2
    {
        return build::run(commit.first().copied());
    }
    let known = [
        "build",
        "report",
        "page",
        "plan",
        "pool",
        "check",
        "replay",
        "fit",
        "ranks",
        "estimate",
        "fleet",
        "weights",
        "host",
        "serving",
        "quantize",
        "quantize-loads",
    ];
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("no benchmark is called {unknown:?}: there are {known:?}");
    }
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    if wanted("report") {
        report::run()?;
    }
    if wanted("page") {
        page::run()?;
    }
    if wanted("pool") {
        pool::run()?;
    }
    if wanted("check") {
        check::run()?;
    }
    if wanted("replay") {
        replay::run()?;
    }
    if wanted("fit") {
        fit::run()?;
    }
    if wanted("estimate") {
        estimate::run()?;
    }
    if wanted("host") {
        host::run(&[])?;
    }
    if wanted("ranks") {
        ranks::run()?;
    }
    if wanted("fleet") {
        fleet::run(&[])?;
    }
    if wanted("weights") {
        weights::run()?;
    }
    if wanted("serving") {
        serving::run()?;
    }
    // Its peer needs torch, which is large, so it runs only by name.
    if names.contains(&"quantize") {
        quantize::run()?;
    }
    if names.contains(&"quantize-loads") {
        quantize::loads()?;
    }
    if wanted("plan") {
        plan::run()?;
    }
    Ok(())
}
