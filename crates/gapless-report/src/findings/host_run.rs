//! Findings about a recording of host memory: GAP7xx.

use super::{Context, Rule, bytes};
use crate::finding::{Finding, Severity};

pub(super) const RULES: &[Rule] = &[growing];

/// GAP701: lines keep more and more memory, as fast at the end as before.
fn growing(c: &Context<'_>) -> Option<Finding> {
    let run = c.report.host_run.as_ref()?;
    let worst = run.growing.first()?;
    let total: u64 = run.growing.iter().map(|line| line.kept.bytes).sum();
    let rate: f64 = run.growing.iter().filter_map(|line| line.rate).sum();
    let headline = format!("host memory grows by about {} a {}", bytes(rate as u64), run.rate_unit);
    let mut finding = c.finding("GAP701", Severity::Warning, total, headline);
    for line in run.growing.iter().take(4) {
        finding = finding.evidence(format!(
            "{} ± {} kept, in {} samples, by {}",
            bytes(line.kept.bytes),
            bytes(line.kept.error),
            line.kept.samples,
            line.label
        ));
    }
    Some(finding.help(format!(
        "what {} allocates is not freed: look for a list, a dict or a cache without a limit that holds it, or for a \
         missing free",
        worst.label
    )))
}
