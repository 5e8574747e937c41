//! A finding: something that Gapless noticed, with a code, evidence and a next step. It is a value; renderers
//! decide its format.

use serde::{Deserialize, Serialize};

/// The weight of a finding.
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
    /// The command or setting of that step, ready to be copied, if the step is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
    /// The device it is about; `None`: the trace as a whole.
    pub device: Option<u32>,
    /// The most bytes that can be won back, for ordering; 0 if the finding is not about bytes.
    pub bytes: u64,
}

/// Sorts findings: errors first, then by bytes that can be won back, by severity, by code and by device. Bytes come
/// before severity because the largest gain should be read first.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        let key = |one: &Finding| (one.severity == Severity::Error, one.bytes, one.severity);
        key(b).cmp(&key(a)).then_with(|| a.code.cmp(&b.code)).then(a.device.cmp(&b.device))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wins_back_most_comes_first_whatever_its_severity() {
        let of = |code: &str, severity, bytes| Finding {
            code: code.to_owned(),
            severity,
            headline: String::new(),
            evidence: Vec::new(),
            help: String::new(),
            suggestion: None,
            device: None,
            bytes,
        };
        let mut all = vec![
            of("GAP101", Severity::Warning, 1_643),
            of("GAP303", Severity::Info, 0),
            of("GAP302", Severity::Warning, 0),
            of("GAP401", Severity::Info, 6_656),
            of("GAP301", Severity::Error, 7),
        ];
        sort(&mut all);
        let codes: Vec<&str> = all.iter().map(|one| one.code.as_str()).collect();
        assert_eq!(codes, ["GAP301", "GAP401", "GAP101", "GAP302", "GAP303"]);
    }
}
