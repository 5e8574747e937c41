//! `gapless demo`: a report on a built-in trace of three GPT-2 training steps on an H200, with stacks.

use crate::cli::DemoArgs;
use crate::commands::report::write_page;
use crate::failure::Failure;
use crate::{Answer, load, output};
use anyhow::{Context, Result};
use gapless_report::text;
use std::path::Path;

const NAME: &str = "demo: GPT-2 124M, batch 8 x 1024, AdamW, 3 steps on an H200";
const TRACE: &[u8] = include_bytes!("../../assets/demo.pickle.gz");

pub(crate) fn run(args: &DemoArgs) -> Result<Answer> {
    let ending = args.output.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    if ending.is_some_and(|ending| !matches!(ending.as_str(), "html" | "htm")) {
        let what = format!("{}: the demo writes an HTML page", args.output.display());
        return Err(
            Failure::new(what, "use a name that ends in .html; `gapless report` has other formats").into()
        );
    }
    let trace = gapless_ingest::read(TRACE, NAME, &gapless_ingest::ReadOptions::default())?;
    let analysis = load::analyse(&trace, Path::new(NAME))?;
    let report = analysis.report(NAME, 10);
    output::write_to(Some(&args.output), |out| write_page(out, &analysis, &report))?;
    output::write_text(None, &text::render(&report))?;
    let path = std::path::absolute(&args.output).context("cannot name the report's folder")?;
    let written = format!("\nThe HTML report, to open in a browser:\n  {}\n", path.display());
    output::write_text(None, &written)?;
    Ok(Answer::Yes)
}
