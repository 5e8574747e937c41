//! A verdict for people, programs, GitHub's log and JUnit readers.

use super::{Row, Unit, Verdict};
use crate::text::{BOLD, DIM, RED, RESET, bytes, clean, percent};
use std::fmt::Write;

/// For a terminal.
#[must_use]
pub fn text(verdict: &Verdict) -> String {
    let mut out = String::new();
    let width = verdict.rows.iter().map(|row| title(row).chars().count()).max().unwrap_or(0);
    for row in &verdict.rows {
        let (mark, style) = if row.passed { ("ok  ", DIM) } else { ("over", RED) };
        let name = title(row);
        let _ = writeln!(
            out,
            "{style}{mark}{RESET}  {name:<width$}  {BOLD}{:>9}{RESET}  limit {:>9}  {DIM}{}{}{RESET}",
            value(row.unit, row.value),
            value(row.unit, row.limit),
            row.against,
            excess(row)
        );
    }
    for holder in &verdict.holders {
        let _ = writeln!(out, "      {DIM}at the peak: {}{RESET}", clean(holder));
    }
    out
}

/// For programs: schema `gapless.check/1`.
///
/// # Errors
/// Never for a verdict; serde's signature.
pub fn json(verdict: &Verdict) -> serde_json::Result<String> {
    serde_json::to_string_pretty(verdict).map(|text| text + "\n")
}

/// Workflow commands: an annotation for each figure over its limit, a notice when all is well.
#[must_use]
pub fn github(verdict: &Verdict) -> String {
    let mut out = String::new();
    for row in verdict.rows.iter().filter(|row| !row.passed) {
        let mut message = sentence(row);
        for holder in &verdict.holders {
            let _ = write!(message, "\nat the peak: {holder}");
        }
        let _ = writeln!(
            out,
            "::error file={},title={}::{}",
            property(&verdict.path),
            property(&format!("gapless: {} over its limit", row.figure)),
            data(&message)
        );
    }
    if verdict.passed {
        let all: Vec<String> = verdict.rows.iter().map(sentence).collect();
        let _ = writeln!(out, "::notice title=gapless::{}", data(&all.join("\n")));
    }
    out
}

/// JUnit XML: a test case for each figure.
#[must_use]
pub fn junit(verdict: &Verdict) -> String {
    let failures = verdict.rows.iter().filter(|row| !row.passed).count();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let counts = format!("tests=\"{}\" failures=\"{failures}\" errors=\"0\"", verdict.rows.len());
    let _ = writeln!(out, "<testsuites name=\"gapless\" {counts}>");
    let _ = writeln!(out, "  <testsuite name=\"{}\" {counts}>", xml(&verdict.path));
    for row in &verdict.rows {
        let name = format!("{} ({})", title(row), row.against);
        let _ = write!(out, "    <testcase classname=\"gapless.check\" name=\"{}\"", xml(&name));
        if row.passed {
            let _ = writeln!(out, "/>");
        } else {
            let _ = writeln!(out, ">\n      <failure message=\"{}\">", xml(&sentence(row)));
            for holder in &verdict.holders {
                let _ = writeln!(out, "at the peak: {}", xml(holder));
            }
            let _ = writeln!(out, "      </failure>\n    </testcase>");
        }
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

fn title(row: &Row) -> String {
    format!("device {} {}", row.device, row.figure)
}

fn sentence(row: &Row) -> String {
    format!(
        "{}: {} against a limit of {} ({}){}",
        title(row),
        value(row.unit, row.value),
        value(row.unit, row.limit),
        row.against,
        excess(row)
    )
}

fn excess(row: &Row) -> String {
    match row.unit {
        Unit::Bytes if !row.passed => format!(", {} too much", bytes((row.value - row.limit).ceil() as u64)),
        _ => String::new(),
    }
}

fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Bytes => bytes(value as u64),
        Unit::Share => percent(value),
    }
}

/// Escapes for the data of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes for a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Escapes for XML; characters that XML 1.0 cannot hold become U+FFFD.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict() -> Verdict {
        let row = |figure, value: f64, limit: f64| Row {
            figure,
            device: 0,
            unit: Unit::Bytes,
            value,
            limit,
            passed: value <= limit,
            against: "budget".to_owned(),
        };
        Verdict {
            schema: super::super::SCHEMA,
            path: "a,b:c.pickle".to_owned(),
            passed: false,
            rows: vec![row("peak reserved", 3e9, 2e9), row("peak allocated", 1e9, 2e9)],
            holders: vec!["1.00 GiB by <lambda> \"f\" & 100%".to_owned()],
        }
    }

    #[test]
    fn workflow_commands_are_escaped() {
        let text = github(&verdict());
        assert_eq!(text.lines().count(), 1, "one annotation for the one figure over its limit: {text}");
        assert!(
            text.starts_with("::error file=a%2Cb%3Ac.pickle,title=gapless%3A peak reserved over its limit::")
        );
        assert!(text.contains("100%25") && text.contains("%0Aat the peak"));
    }

    #[test]
    fn junit_has_a_case_for_each_figure_and_is_escaped() {
        let text = junit(&verdict());
        assert_eq!(text.matches("<testcase").count(), 2);
        assert_eq!(text.matches("<failure").count(), 1);
        assert!(text.contains("&lt;lambda&gt; &quot;f&quot; &amp; 100%"));
    }
}
