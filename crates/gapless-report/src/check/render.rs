//! A verdict for people, programs, GitHub's log and JUnit readers.

use super::shown::{LISTED, shown};
use super::verdict::Verdict;
use super::words::{excess, sentence, title, unknown_sentence, unknown_title, value};
use crate::text::{BOLD, DIM, RED, RESET, clean, indent, shorten, visible, width};
use std::fmt::Write;

/// For a terminal.
#[must_use]
pub fn text(verdict: &Verdict) -> String {
    let mut out = String::new();
    let (rows, hidden) = shown(verdict);
    let names = rows.iter().map(|row| title(row)).chain(verdict.unknown.iter().map(unknown_title));
    let names = names.map(|name| name.chars().count()).max().unwrap_or(0);
    for row in rows {
        let (mark, style) = if row.passed { ("ok  ", DIM) } else { ("over", RED) };
        let (is, may) = (value(row.unit, row.value), value(row.unit, row.limit));
        let figures = format!("{name:<names$}  {BOLD}{is:>9}{RESET}  limit {may:>9}", name = title(row));
        let aside = format!("{}{}", row.against, excess(row));
        if 6 + visible(&figures) + 2 + visible(&aside) <= width() {
            let _ = writeln!(out, "{style}{mark}{RESET}  {figures}  {DIM}{aside}{RESET}");
        } else {
            let _ = writeln!(out, "{style}{mark}{RESET}  {figures}");
            indent(&mut out, "      ", &aside, DIM);
        }
    }
    if hidden > 0 {
        let _ = writeln!(out, "      {DIM}and {hidden} more: --format json lists all{RESET}");
    }
    for unknown in verdict.unknown.iter().take(LISTED) {
        let name = unknown_title(unknown);
        let line = format!("{RED}??  {RESET}  {name:<names$}  not known: {}", clean(&unknown.why));
        if visible(&line) <= width() {
            let _ = writeln!(out, "{line}");
        } else {
            let _ = writeln!(out, "{RED}??  {RESET}  {name}");
            indent(&mut out, "      ", &format!("not known: {}", clean(&unknown.why)), "");
        }
    }
    if verdict.unknown.len() > LISTED {
        let _ = writeln!(out, "      {DIM}and {} more are not known{RESET}", verdict.unknown.len() - LISTED);
    }
    for holder in &verdict.holders {
        // "1.53 GiB by train.py:26 step": a long line shortens the name, never the bytes.
        let holder = clean(holder);
        let (bytes, name) = holder.split_at(holder.find(" by ").map_or(0, |at| at + " by ".len()));
        let lead = format!("      at the peak: {bytes}");
        let _ = writeln!(out, "{DIM}{lead}{}{RESET}", shorten(name, width() - visible(&lead)));
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
    for unknown in &verdict.unknown {
        let title = property(&format!("gapless: {} is not known", unknown.figure));
        let message = format!("{}; {}", unknown_sentence(unknown), unknown.help);
        let _ = writeln!(out, "::error file={},title={title}::{}", property(&verdict.path), data(&message));
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
    let (tests, errors) = (verdict.rows.len() + verdict.unknown.len(), verdict.unknown.len());
    let counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\"");
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
    for unknown in &verdict.unknown {
        let (name, message) = (xml(&unknown_title(unknown)), xml(&unknown_sentence(unknown)));
        let _ = writeln!(out, "    <testcase classname=\"gapless.check\" name=\"{name}\">");
        let _ = writeln!(out, "      <error message=\"{message}\">{}</error>", xml(unknown.help));
        let _ = writeln!(out, "    </testcase>");
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

/// Escapes for the data of a workflow command. Other control characters, which a file's name may have, become U+FFFD:
/// a log is read in terminals too.
fn data(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '%' => out.push_str("%25"),
            '\r' => out.push_str("%0D"),
            '\n' => out.push_str("%0A"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
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
    use super::super::verdict::{Row, SCHEMA, Unit, Unknown};
    use super::*;

    fn verdict() -> Verdict {
        let row = |figure, value: f64, limit: f64| Row {
            figure,
            rank: None,
            device: 0,
            unit: Unit::Bytes,
            value,
            limit,
            passed: value <= limit,
            against: "budget".to_owned(),
        };
        Verdict {
            schema: SCHEMA,
            path: "a,b:c.pickle".to_owned(),
            passed: false,
            rows: vec![row("peak reserved", 3e9, 2e9), row("peak allocated", 1e9, 2e9)],
            unknown: Vec::new(),
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
    fn a_holder_with_a_long_name_keeps_its_bytes() {
        let mut verdict = verdict();
        verdict.holders = vec![format!("1.53 GiB by train.py:26 step › {} forward", "long".repeat(20))];
        let text = text(&verdict);
        let line = text.lines().last().expect("a line");
        assert!(line.contains("at the peak: 1.53 GiB by ") && line.contains(" forward"), "{line}");
        assert!(visible(line) <= width(), "{line}");
    }

    #[test]
    fn no_control_character_reaches_a_log() {
        let mut verdict = verdict();
        verdict.path = "a\u{1b}]0;title\u{7}\u{9b}31m\r\n.pickle".to_owned();
        verdict.holders = vec!["1 B by \u{1b}[31mf".to_owned()];
        verdict.unknown = vec![Unknown {
            figure: "growth per step",
            rank: None,
            device: 0,
            why: "of \u{1b}".to_owned(),
            help: "record\u{0}more",
        }];
        for text in [github(&verdict), junit(&verdict)] {
            let wild = text.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(wild, None, "{text:?}");
        }
        assert!(github(&verdict).contains("%0D%0A.pickle"));
    }

    #[test]
    fn what_is_not_known_stands_beside_what_is_exceeded() {
        let mut verdict = verdict();
        verdict.unknown = vec![Unknown {
            figure: "growth per step",
            rank: None,
            device: 0,
            why: "of fewer steps".to_owned(),
            help: "record more",
        }];
        assert!(verdict.exceeded());
        let text = text(&verdict);
        assert!(text.contains("over") && text.contains("not known: of fewer steps"), "{text}");
        assert_eq!(github(&verdict).lines().count(), 2);
        let junit = junit(&verdict);
        assert!(junit.contains("tests=\"3\" failures=\"1\" errors=\"1\""), "{junit}");
        assert_eq!((junit.matches("<failure").count(), junit.matches("<error").count()), (1, 1));
    }

    #[test]
    fn junit_has_a_case_for_each_figure_and_is_escaped() {
        let text = junit(&verdict());
        assert_eq!(text.matches("<testcase").count(), 2);
        assert_eq!(text.matches("<failure").count(), 1);
        assert!(text.contains("&lt;lambda&gt; &quot;f&quot; &amp; 100%"));
    }
}
