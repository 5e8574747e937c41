//! `--html`: the step's memory over time in the report's own page.

use crate::cli::fit::FitArgs;
use crate::commands::report::write_page;
use crate::failure::Failure;
use crate::{load, output};
use anyhow::Result;
use gapless_fit::ask::{Estimate, Question};
use std::path::Path;

pub(super) fn write(args: &FitArgs, q: &Question, estimate: Option<&Estimate>) -> Result<()> {
    let Some(simulated) = estimate.and_then(|e| e.simulated.as_ref()) else {
        return Err(Failure::new(
            "--html draws a step that was simulated, and this one is known from closed forms only",
            "leave out the degrees and offloading",
        )
        .into());
    };
    let name = format!("{}: {}", q.model.name, q.headline());
    let trace = gapless_fit::timeline::trace(&simulated.steps);
    let analysis = load::analyse(&trace, Path::new(&name))?;
    let report = analysis.report(&name, 10);
    output::write_to(args.html.as_deref(), |out| write_page(out, &analysis, &report))?;
    if let Some(path) = args.html.as_ref().filter(|path| path.as_os_str() != "-") {
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
