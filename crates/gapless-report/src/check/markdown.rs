//! A verdict as a summary for a pull request: the answer first, then the figures, then (folded) the peak's holders.

use super::shown::{LISTED, shown};
use super::subject::Subject;
use super::verdict::Verdict;
use super::words::{excess, title, unknown_title, value};
use crate::markdown::{Side, Table, code, escape};
use crate::text::plural;
use std::fmt::Write;

use Side::{Left, Right};

/// The summary.
#[must_use]
pub fn markdown(verdict: &Verdict, subject: &Subject) -> String {
    let mut out = String::new();
    let over = verdict.rows.iter().filter(|row| !row.passed).count();
    let answer = match (over, verdict.unknown.len()) {
        (0, 0) => "✅ within all limits".to_owned(),
        (0, unknown) => format!("❌ {} could not be checked", limits(unknown)),
        (over, 0) => format!("❌ over {}", limits(over)),
        (over, unknown) => format!("❌ over {}, and {} could not be checked", limits(over), limits(unknown)),
    };
    let _ = writeln!(out, "### Memory: {answer}\n\n{}\n", code(&verdict.path));
    let columns = [("", Left), ("figure", Left), ("value", Right), ("limit", Right), ("against", Left)];
    let mut table = Table::new(&columns);
    let (rows, mut hidden) = shown(verdict);
    for row in rows {
        let mark = if row.passed { "✅" } else { "❌" };
        let (is, may) = (value(row.unit, row.value), value(row.unit, row.limit));
        let is = if row.passed { is } else { format!("**{is}**") };
        let against = escape(&format!("{}{}", row.against, excess(row)));
        table.row(&[mark.to_owned(), escape(&title(row)), is, may, against]);
    }
    hidden += verdict.unknown.len().saturating_sub(LISTED);
    for unknown in verdict.unknown.iter().take(LISTED) {
        let why = escape(&format!("{}; {}", unknown.why, unknown.help));
        table.row(&["❔".to_owned(), unknown_title(unknown), "not known".to_owned(), String::new(), why]);
    }
    out.push_str(&table.finish());
    if hidden > 0 {
        let _ = writeln!(out, "\nand {hidden} more: `--format json` lists all");
    }
    out.push_str(&subject.details);
    out
}

fn limits(count: usize) -> String {
    plural(count as u64, "limit")
}
