//! The report as Markdown: peaks first, then their holders, then findings; the rest is folded.

use super::table::{Side, Table, code, details, escape};
use crate::finding::{Finding, Severity};
use crate::model::{DeviceReport, Report};
use crate::text::{bytes, count, percent, shorten};
use std::fmt::Write;

use Side::{Left, Right};

/// Labels longer than this make a table unreadable.
const LABEL: usize = 72;

/// The report as Markdown.
#[must_use]
pub fn report(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "### Memory of {}\n", code(&report.source.path));
    let mut facts = vec![escape(&report.source.format)];
    facts.extend([&report.source.producer].into_iter().filter(|p| !p.is_empty()).map(|p| escape(p)));
    facts.extend(report.settings.as_ref().filter(|s| !s.conf.is_empty()).map(|s| code(&s.conf)));
    let _ = writeln!(out, "{}\n", facts.join(" · "));
    out.push_str(&peaks(report));
    let _ = write!(out, "\n{}", findings(report));
    for d in &report.devices {
        let _ = write!(out, "\n{}", kinds(d, report.devices.len() > 1));
        let _ = write!(out, "\n{}", holders(d, report.devices.len() > 1));
    }
    if !report.source.notes.is_empty() {
        let notes: String = report.source.notes.iter().map(|n| format!("* {}\n", escape(&n.text))).collect();
        let _ = write!(out, "\n{}", details("Notes on the recording", &notes));
    }
    out
}

fn peaks(report: &Report) -> String {
    let columns = [
        ("device", Left),
        ("peak reserved", Right),
        ("peak allocated", Right),
        ("fragmentation", Right),
        ("growth a step", Right),
        ("events", Right),
        ("steps", Right),
    ];
    let mut table = Table::new(&columns);
    for d in &report.devices {
        let growth = d.growth.as_ref().map_or("unknown".to_owned(), |growth| {
            let sign = if growth.bytes_per_step < 0.0 { "-" } else { "" };
            format!("{sign}{}", bytes(growth.bytes_per_step.abs() as u64))
        });
        table.row(&[
            d.device.to_string(),
            d.peak_reserved.map_or("unknown".to_owned(), bytes),
            bytes(d.peak_allocated),
            d.fragmentation.map_or("unknown".to_owned(), percent),
            growth,
            count(d.events),
            count(d.steps.count),
        ]);
    }
    table.finish()
}

/// The findings, the worst first, each folded over its evidence.
pub(crate) fn findings(report: &Report) -> String {
    if report.devices.is_empty() {
        return format!("No device: {}\n", crate::model::NO_DEVICE);
    }
    if report.findings.is_empty() {
        return "No findings: nothing needs a change.\n".to_owned();
    }
    let many = report.devices.len() > 1;
    let on = |f: &Finding| f.device.filter(|_| many).map_or_else(String::new, |d| format!(" (device {d})"));
    report.findings.iter().map(|f| finding(f, &on(f))).collect()
}

/// One finding, folded over its evidence; `on` names its device or rank.
pub(crate) fn finding(finding: &Finding, on: &str) -> String {
    let mark = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "info",
    };
    let mut body: String = finding.evidence.iter().map(|line| format!("* {}\n", escape(line))).collect();
    if !finding.help.is_empty() {
        let _ = write!(body, "\n**Help:** {}\n", escape(&finding.help));
    }
    details(&format!("{mark} {}: {}{on}", finding.code, finding.headline), &body)
}

fn kinds(d: &DeviceReport, many: bool) -> String {
    let rows: Vec<(&str, u64)> = d.kinds.at_peak.rows().into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    let total: u64 = rows.iter().map(|(_, bytes)| bytes).sum();
    if total == 0 {
        return String::new();
    }
    let mut table = Table::new(&[("kind (inferred)", Left), ("bytes", Right), ("share", Right)]);
    for (name, value) in rows {
        table.row(&[name.to_owned(), bytes(value), percent(value as f64 / total as f64)]);
    }
    details(&format!("What the bytes are at peak allocated{}", of_device(d, many)), &table.finish())
}

/// The holders of memory at peak allocated, folded.
pub(crate) fn holders(d: &DeviceReport, many: bool) -> String {
    if d.holders.is_empty() {
        return String::new();
    }
    let columns = [("bytes", Right), ("share", Right), ("blocks", Right), ("kind", Left), ("where", Left)];
    let mut table = Table::new(&columns);
    for h in &d.holders {
        let label = code(&shorten(&h.label, LABEL));
        table.row(&[bytes(h.bytes), percent(h.share), count(h.count), escape(&h.kind), label]);
    }
    details(&format!("What holds the peak{}", of_device(d, many)), &table.finish())
}

fn of_device(d: &DeviceReport, many: bool) -> String {
    if many { format!(", device {}", d.device) } else { String::new() }
}
