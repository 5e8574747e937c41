//! Markup that the page of two files and the page of two runs of many ranks share.

use crate::shell;
use crate::text::{bytes, percent};
use gapless_page::escape_text;
use std::fmt::Write;

/// All pages of plain markup share the replay page's look. Rules of these pages alone follow it.
const STYLE: &str = concat!(include_str!("../replay/page.css"), include_str!("page.css"));
const CODE: &str = include_str!("page.js");

/// The whole page around `body`.
pub(crate) fn framed(title: &str, body: &str) -> String {
    shell::page(title, STYLE, body, CODE)
}

/// The line that names the two files.
pub(crate) fn sides(out: &mut String, before: &str, after: &str) {
    let _ = writeln!(
        out,
        "<p class=\"about\"><b class=\"side before\">before</b> {} <b class=\"side after\">after</b> {}</p>",
        escape_text(before),
        escape_text(after)
    );
}

/// One figure; `change` has a text and true if it is more than before.
pub(crate) fn tile(
    out: &mut String,
    name: &str,
    before: Option<String>,
    after: Option<String>,
    change: Option<(String, bool)>,
) {
    let unknown = || "unknown".to_owned();
    let (class, change) = match change {
        Some((text, true)) => ("grew", text),
        Some((text, false)) => ("shrank", text),
        None if before.is_some() && after.is_some() => ("", "same".to_owned()),
        None => ("", String::new()),
    };
    let _ = writeln!(
        out,
        "<li><span>{name}</span><b>{}</b><em class=\"{class}\">{change}</em><small>before {}</small></li>",
        after.unwrap_or_else(unknown),
        before.unwrap_or_else(unknown)
    );
}

/// `+1.50 GiB (+12.0 %)`, and true if that is more than before; `None` if nothing changed.
pub(crate) fn changed(before: u64, after: u64) -> Option<(String, bool)> {
    if before == after {
        return None;
    }
    let sign = if after > before { "+" } else { "−" };
    let share = if before == 0 {
        String::new()
    } else {
        format!(" ({sign}{})", percent(after.abs_diff(before) as f64 / before as f64))
    };
    Some((format!("{sign}{}{share}", bytes(after.abs_diff(before))), after > before))
}

/// `+1.2 points`, of two shares.
pub(crate) fn points(before: f64, after: f64) -> Option<(String, bool)> {
    let more = after > before;
    ((before - after).abs() >= 0.0005).then(|| {
        (format!("{}{:.1} points", if more { "+" } else { "−" }, (after - before).abs() * 100.0), more)
    })
}

pub(crate) fn change_cell(before: u64, after: u64) -> String {
    match changed(before, after) {
        Some((text, more)) => format!("<td class=\"{}\">{text}</td>", if more { "grew" } else { "shrank" }),
        None => "<td>same</td>".to_owned(),
    }
}
