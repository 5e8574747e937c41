//! The report for a terminal: what an engineer wants to know first, in one screen and a half.
//!
//! Styles are written as ANSI sequences; whoever prints decides whether they stay.

mod device;
pub(crate) mod table;
mod tree;

pub use tree::render as render_tree;

use crate::findings::share;
use crate::model::{Report, SourceInfo};
use gapless_trace::{Bytes, Micros};
use std::fmt::Write;

pub(crate) const BOLD: &str = "\x1b[1m";
pub(crate) const DIM: &str = "\x1b[2m";
pub(crate) const RED: &str = "\x1b[1;31m";
pub(crate) const GREEN: &str = "\x1b[1;32m";
pub(crate) const YELLOW: &str = "\x1b[1;33m";
pub(crate) const BLUE: &str = "\x1b[1;34m";
pub(crate) const CYAN: &str = "\x1b[36m";
pub(crate) const RESET: &str = "\x1b[0m";

/// The width that text is wrapped to.
pub(crate) const WIDTH: usize = 100;

/// The report as text.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    source(&mut out, &report.source, report.settings.as_ref().map(|s| s.conf.as_str()));
    for d in &report.devices {
        device::render(&mut out, d);
    }
    for answer in report.advice.iter().flatten() {
        crate::advice::section(&mut out, answer, &report.source.path, report.devices.len() > 1);
    }
    findings(&mut out, report);
    out
}

/// The head of every text: which file, what it is, with which settings the run was made, and what had to be repaired.
pub(crate) fn source(out: &mut String, source: &SourceInfo, conf: Option<&str>) {
    let _ = writeln!(out, "{BOLD}{}{RESET}", clean(&source.path));
    let mut facts = vec![source.format.clone()];
    if !source.producer.is_empty() {
        facts.push(source.producer.clone());
    }
    if let Some(conf) = conf.filter(|c| !c.is_empty()) {
        facts.push(clean(conf));
    }
    let _ = writeln!(out, "{DIM}{}{RESET}", facts.join(" · "));
    for note in &source.notes {
        for line in wrap(&format!("note: {}", note.text), WIDTH) {
            let _ = writeln!(out, "{DIM}{}{RESET}", clean(&line));
        }
    }
}

fn findings(out: &mut String, report: &Report) {
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
            Some(device) if report.devices.len() > 1 => format!(" {DIM}(device {device}){RESET}"),
            _ => String::new(),
        };
        let mut lines = wrap(&clean(&finding.headline), WIDTH - 17).into_iter();
        let _ = writeln!(
            out,
            "  {style}{:<7} {}{RESET} {BOLD}{}{RESET}{on}",
            finding.severity.name(),
            finding.code,
            lines.next().unwrap_or_default()
        );
        for line in lines {
            let _ = writeln!(out, "                 {BOLD}{line}{RESET}");
        }
        for evidence in &finding.evidence {
            indent(out, "    ", &clean(evidence), DIM);
        }
        if !finding.help.is_empty() {
            let mut lines = wrap(&clean(&finding.help), WIDTH - 10).into_iter();
            let _ = writeln!(out, "    {CYAN}help:{RESET} {}", lines.next().unwrap_or_default());
            for line in lines {
                let _ = writeln!(out, "          {line}");
            }
        }
    }
    let code = &report.findings[0].code;
    let _ = writeln!(out, "\n{DIM}`gapless explain {code}` explains the finding.{RESET}");
}

pub(crate) fn indent(out: &mut String, margin: &str, text: &str, style: &str) {
    for line in wrap(text, WIDTH - margin.len()) {
        let _ = writeln!(out, "{margin}{style}{line}{RESET}");
    }
}

/// Breaks `text` at spaces into lines of at most `width` characters; a longer word stays whole.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = visible(word);
        if used > 0 && used + 1 + length > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    if used > 0 {
        lines.push(line);
    }
    lines
}

/// The characters of `word` that take room: a style takes none.
fn visible(word: &str) -> usize {
    let mut parts = word.split('\x1b');
    let first = parts.next().map_or(0, |part| part.chars().count());
    first + parts.map(|part| part.split_once('m').map_or(0, |(_, rest)| rest.chars().count())).sum::<usize>()
}

/// Names come from untrusted files: control characters must not reach the terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// At most `width` characters, the middle left out: paths say most at their ends.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width || width < 8 {
        return text.to_owned();
    }
    let head = (width - 1) / 3;
    let tail = width - 1 - head;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{start}…{end}")
}

/// `values` over time as at most `columns` bars, each the most within its stretch; a full bar is `top`.
pub(crate) fn bars(values: &[u64], top: u64, columns: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let columns = columns.min(values.len());
    (0..columns)
        .map(|column| {
            let stretch = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
            let most = stretch.iter().copied().max().unwrap_or(0);
            BARS[(most as f64 / top.max(1) as f64 * 8.0).round().min(8.0) as usize]
        })
        .collect()
}

pub(crate) fn bytes(value: u64) -> String {
    Bytes(value).to_string()
}

pub(crate) fn duration(us: u64) -> String {
    Micros(us).to_string()
}

pub(crate) fn percent(value: f64) -> String {
    share(value)
}

/// An integer with thin groups of three: 190,112.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// "1 event", "2 events".
pub(crate) fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_spaces_and_long_words_stay_whole() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("aaaaaaa b", 3), ["aaaaaaa", "b"]);
        assert!(wrap("  ", 3).is_empty());
        assert_eq!(wrap("\x1b[1;31maa\x1b[0m bb cc", 5).len(), 2, "styles take no room");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(
            [count(7), count(1_000), count(26_389), count(1_234_567)],
            ["7", "1,000", "26,389", "1,234,567"]
        );
    }
}
