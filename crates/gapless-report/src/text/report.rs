//! The whole report as text.

use super::layout::{indent, width, wrap};
use super::paint::{BLUE, BOLD, CYAN, DIM, RED, RESET, YELLOW, clean};
use super::{device, host_run, source};
use crate::advice;
use crate::model::{NO_DEVICE, Report};
use std::fmt::Write;

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    source::render(&mut out, &report.source, report.settings.as_ref().map(|s| s.conf.as_str()));
    match &report.host_run {
        Some(run) => report.devices.iter().for_each(|d| host_run::render(&mut out, d, run)),
        None => report.devices.iter().for_each(|d| device::render(&mut out, d)),
    }
    for answer in report.advice.iter().flatten() {
        advice::section(&mut out, answer, &report.source.path, report.devices.len() > 1);
    }
    findings(&mut out, report);
    out
}

fn findings(out: &mut String, report: &Report) {
    if report.devices.is_empty() {
        let _ = writeln!(out, "\n{BOLD}No device{RESET}: {NO_DEVICE}");
        return;
    }
    if report.findings.is_empty() {
        let _ = writeln!(out, "\n{BOLD}No findings{RESET}: nothing needs a change.");
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Findings{RESET}");
    for finding in &report.findings {
        let style = match finding.severity {
            crate::Severity::Error => RED,
            crate::Severity::Warning => YELLOW,
            crate::Severity::Info => BLUE,
        };
        let on = match finding.device {
            Some(device) if report.devices.len() > 1 => format!(" (device {device})"),
            _ => String::new(),
        };
        let headline = wrap(&format!("{}{on}", clean(&finding.headline)), width() - 17);
        for (i, line) in headline.iter().enumerate() {
            let _ = match i {
                0 => writeln!(
                    out,
                    "  {style}{:<7} {}{RESET} {BOLD}{line}{RESET}",
                    finding.severity.name(),
                    finding.code
                ),
                _ => writeln!(out, "                 {BOLD}{line}{RESET}"),
            };
        }
        for evidence in &finding.evidence {
            indent(out, "    ", &clean(evidence), DIM);
        }
        if !finding.help.is_empty() {
            let mut lines = wrap(&clean(&finding.help), width() - 10).into_iter();
            let _ = writeln!(out, "    {CYAN}help:{RESET} {}", lines.next().unwrap_or_default());
            for line in lines {
                let _ = writeln!(out, "          {line}");
            }
        }
    }
    let code = &report.findings[0].code;
    let _ = writeln!(out, "\n{DIM}`gapless explain {code}` explains the finding.{RESET}");
}
