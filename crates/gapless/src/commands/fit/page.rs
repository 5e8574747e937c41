//! `--format html` and `--html`: the answer and, if a step was simulated, its memory over time.

use crate::commands::report::write_page;
use crate::{load, output};
use anyhow::Result;
use gapless_fit::ask::{Answer, Question};
use gapless_report::{Analysis, Report};
use gapless_trace::Trace;
use std::path::Path;

pub(super) fn write(to: Option<&Path>, q: &Question, answer: &Answer) -> Result<()> {
    let name = format!("{}: {}", q.model.name, q.headline());
    let simulated = answer.estimate.as_ref().and_then(|e| e.simulated.as_ref());
    // Closed forms and weights that stream have no step to show, so the page then has the answer alone.
    let trace = simulated.map_or_else(no_step, |simulated| gapless_fit::timeline::trace(&simulated.steps));
    let analysis = load::analyse(&trace, Path::new(&name))?;
    let report = titled(&analysis, &name, q, answer);
    output::write_to(to, |out| write_page(out, &analysis, &report))
}

fn titled(analysis: &Analysis<'_>, name: &str, q: &Question, answer: &Answer) -> Report {
    let headline = Some(gapless_report::fit::headline(q, answer));
    Report { headline, ..analysis.report(name, 10) }
}

fn no_step() -> Trace {
    let mut trace = Trace::default();
    "an answer without a step over time".clone_into(&mut trace.source.format);
    "gapless fit".clone_into(&mut trace.source.producer);
    trace
}
