//! A finding: something that Gapless noticed, with a code, evidence and a next step. It is a value; renderers decide
//! how it looks.

use serde::{Deserialize, Serialize};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Costs memory or time.
    Warning,
    /// The run failed, or will.
    Error,
}

impl Severity {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Something the tool noticed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable, documented: `gapless explain CODE`.
    pub code: String,
    pub severity: Severity,
    /// One line, with the number that matters.
    pub headline: String,
    /// The figures behind it, a line each.
    pub evidence: Vec<String>,
    /// The next step, true for this run.
    pub help: String,
    /// The command or setting of that step, ready to be copied, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
    /// The device it is about; `None`: the trace as a whole.
    pub device: Option<u32>,
    /// The bytes at stake, for ordering; 0 where that is not the point.
    pub bytes: u64,
}

/// Sorts findings as a person wants to read them: the worst first, then by bytes at stake, then by code.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        (b.severity, b.bytes)
            .cmp(&(a.severity, a.bytes))
            .then_with(|| a.code.cmp(&b.code))
            .then(a.device.cmp(&b.device))
    });
}
