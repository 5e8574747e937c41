//! The rules: from a report's figures to findings. Each rule is a pure function of the report, has one code, and
//! names a next step that is true for this run: it never advises a setting that the run already has.
//!
//! Thresholds stand beside each rule and in its explanation (`gapless explain CODE`): a share of the peak, and a
//! minimum in bytes.

mod advised;
mod host_run;
mod loss;
mod run;
mod source;

use crate::finding::{self, Finding, Severity};
use crate::model::{DeviceReport, Report};
use crate::text::paint::percent as share;
use gapless_trace::Bytes;

/// All findings of a report, the worst first.
#[must_use]
pub fn find(report: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &report.devices {
        let context = Context { report, device };
        // Rules about a device's allocator do not apply to the host's.
        if report.host_run.is_some() {
            findings.extend(host_run::RULES.iter().filter_map(|rule| rule(&context)));
            continue;
        }
        findings.extend(rules(device).concat().iter().filter_map(|rule| rule(&context)));
    }
    finding::sort(&mut findings);
    findings
}

/// Without events a report has no peak and no figures over time, so only findings about the recording apply.
fn rules(device: &DeviceReport) -> Vec<&'static [Rule]> {
    if device.events == 0 {
        return vec![source::RULES];
    }
    vec![loss::RULES, advised::RULES, run::RULES, source::RULES]
}

type Rule = fn(&Context<'_>) -> Option<Finding>;

/// Input of a rule.
struct Context<'a> {
    report: &'a Report,
    device: &'a DeviceReport,
}

impl Context<'_> {
    fn finding(&self, code: &str, severity: Severity, bytes: u64, headline: String) -> Finding {
        Finding {
            code: code.to_owned(),
            severity,
            headline,
            evidence: Vec::new(),
            help: String::new(),
            suggestion: None,
            device: Some(self.device.device),
            bytes,
        }
    }

    fn expandable(&self) -> bool {
        self.report.settings.as_ref().is_some_and(|s| s.expandable_segments)
    }

    /// The variable that the run's release of PyTorch reads its settings from.
    fn conf_variable(&self) -> &'static str {
        gapless_replay::torch::settings_variable(&self.report.source.producer)
    }

    fn has_note(&self, code: &str) -> bool {
        let here = |device: Option<u32>| device.is_none_or(|d| d == self.device.device);
        self.report.source.notes.iter().any(|note| note.code == code && here(note.device))
    }
}

impl Finding {
    fn evidence(mut self, line: impl Into<String>) -> Finding {
        self.evidence.push(line.into());
        self
    }

    /// Adds text to copy: a setting, a command or a line of code.
    fn suggest(mut self, suggestion: impl Into<String>) -> Finding {
        self.suggestion = Some(suggestion.into());
        self
    }

    fn help(mut self, help: impl Into<String>) -> Finding {
        self.help = help.into();
        self
    }
}

fn bytes(value: u64) -> Bytes {
    Bytes(value)
}

/// `part / whole` as people read a share: "12 %".
fn percent(part: u64, whole: u64) -> String {
    share(bytes(part).share_of(bytes(whole)))
}

const MIB: u64 = 1 << 20;
