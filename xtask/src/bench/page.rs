//! The HTML report in a headless browser: the time until the first picture, and the size of the file.

use crate::shell::{self, command};
use crate::{test, tools};
use anyhow::Result;

/// The recorded runs with about a hundred thousand events and more.
const TRACES: [&str; 3] = ["llama1b_varlen_ckpt", "mixtral_moe", "llama_offload"];

pub(crate) fn run() -> Result<()> {
    shell::run(command(".", "cargo", &["build", "--release", "--locked", "--package", "gapless"]))?;
    let binary = shell::target().join("release/gapless").display().to_string();
    let folder = shell::target().join("bench");
    std::fs::create_dir_all(&folder)?;
    let mut pages = Vec::new();
    for name in TRACES {
        let trace = format!("testdata/traces/{name}.pickle.gz");
        let page = folder.join(format!("{name}.html")).display().to_string();
        shell::run(command(".", &binary, &["report", &trace, "--format", "html", "-o", &page]))?;
        println!("{name}: {:.2} MB of HTML", std::fs::metadata(&page)?.len() as f64 / 1e6);
        pages.push(page);
    }
    println!("wanted: the first picture within 1500 ms; medians of 3, software rendering");
    in_browser(&pages)
}

/// Prints the time until the first picture of each of `pages`.
pub(super) fn in_browser(pages: &[String]) -> Result<()> {
    tools::install()?;
    test::install_page_packages()?;
    let mut args = vec!["run", "bench", "--"];
    args.extend(pages.iter().map(String::as_str));
    let mut npm = command("web", "npm", &args);
    if let Some(browser) = tools::browser() {
        npm.env("CHROMIUM", browser);
    }
    shell::run(npm)
}
