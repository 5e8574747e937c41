//! GAP108: other settings, replayed over this very run, hold less. It needs advice in the report.

use super::{Context, MIB, Rule, bytes, share};
use crate::finding::{Finding, Severity};

pub(super) const RULES: &[Rule] = &[other_settings];

/// Advice has suggestions; a warning from 10 % and 256 MiB on, as fragmentation is.
fn other_settings(c: &Context<'_>) -> Option<Finding> {
    let answer = c.report.advice.iter().flatten().find(|a| a.device == c.device.device)?;
    let first = answer.suggestions.first()?;
    let (before, after) = (&answer.baseline, &first.setting);
    let severity = if first.saving >= 256 * MIB && first.saving_share >= 0.10 {
        Severity::Warning
    } else {
        Severity::Info
    };
    let headline = format!(
        "another setting would have held {} ({}) less",
        bytes(first.saving),
        share(first.saving_share)
    );
    let mut finding = c
        .finding("GAP108", severity, first.saving, headline)
        .evidence(format!(
            "peak reserved {} -> {}, smallest card {} -> {}, in a replay of this run",
            bytes(before.peak_reserved),
            bytes(after.peak_reserved),
            bytes(before.min_capacity),
            bytes(after.min_capacity)
        ))
        .evidence(format!(
            "device calls {} -> {}, retries {} -> {}",
            before.device_allocs + before.device_frees,
            after.device_allocs + after.device_frees,
            before.retries,
            after.retries
        ));
    for other in answer.suggestions.iter().skip(1) {
        finding = finding.evidence(format!("{} less with {}", bytes(other.saving), other.line));
    }
    Some(finding.suggest(first.line.clone()).help(first.line.clone()))
}
