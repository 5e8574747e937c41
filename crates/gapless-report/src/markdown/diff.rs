//! The difference between two runs as Markdown: peaks first, then, folded, the holders that grew and shrank.

use super::table::{Side, Table, code, details, escape};
use crate::diff::{Change, DeviceDiff, Diff, HolderDiff};
use crate::text::{bytes, percent, shorten};
use std::fmt::Write;

use Side::{Left, Right};

/// Labels longer than this make a table unreadable.
const LABEL: usize = 60;

/// The difference as Markdown; at most `top` holders that grew and `top` that shrank.
#[must_use]
pub fn diff(diff: &Diff, top: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "### Memory: {} → {}\n", code(&diff.before), code(&diff.after));
    for change in &diff.settings {
        let (before, after) = (code(&change.before), code(&change.after));
        let _ = writeln!(out, "* setting {}: {before} → {after}", escape(&change.name));
    }
    for device in &diff.unmatched_devices {
        let _ = writeln!(out, "* device {device} is in one of the runs only");
    }
    for d in &diff.devices {
        let _ = write!(out, "\n**Device {}**\n\n{}", d.device, peaks(d));
        let (grew, shrank): (Vec<&HolderDiff>, Vec<&HolderDiff>) =
            d.holders.iter().partition(|holder| holder.change > 0);
        out.push_str(&holders("What grew", &d.moment.what, &grew, top));
        out.push_str(&holders("What shrank", &d.moment.what, &shrank, top));
        if d.holders.is_empty() {
            let _ = writeln!(out, "\nNo holder differs at {}.", d.moment.what);
        }
    }
    out
}

fn peaks(d: &DeviceDiff) -> String {
    let mut table = Table::new(&[("", Left), ("before", Right), ("after", Right), ("change", Right)]);
    for Change { name, before, after } in &d.peaks {
        let shown = |value: &Option<u64>| value.map_or("unknown".to_owned(), bytes);
        let change = match (before, after) {
            (Some(before), Some(after)) => signed(*before, *after),
            _ => String::new(),
        };
        table.row(&[format!("peak {name}"), shown(before), shown(after), change]);
    }
    let share = |value: Option<f64>| value.map_or("unknown".to_owned(), percent);
    let f = &d.fragmentation;
    table.row(&["fragmentation".to_owned(), share(f.before), share(f.after), String::new()]);
    for Change { name, before, after } in d.kinds.iter().filter(|kind| kind.before != kind.after) {
        table.row(&[format!("{name} (inferred)"), bytes(*before), bytes(*after), signed(*before, *after)]);
    }
    table.finish()
}

fn holders(title: &str, moment: &str, rows: &[&HolderDiff], top: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let columns = [("change", Right), ("before", Right), ("after", Right), ("kind", Left), ("where", Left)];
    let mut table = Table::new(&columns);
    for h in rows.iter().take(top) {
        let label = code(&shorten(&h.label, LABEL));
        let sign = if h.change > 0 { '+' } else { '-' };
        let change = format!("{sign}{}", bytes(h.change.unsigned_abs()));
        table.row(&[change, bytes(h.before), bytes(h.after), escape(&h.kind), label]);
    }
    let mut body = table.finish();
    if rows.len() > top {
        let _ = writeln!(body, "\nand {} more: --top or --format json", rows.len() - top);
    }
    format!("\n{}", details(&format!("{title} at the peak of {moment}"), &body))
}

fn signed(before: u64, after: u64) -> String {
    if before == after {
        return "same".to_owned();
    }
    let sign = if after > before { '+' } else { '-' };
    let ratio = if before == 0 {
        String::new()
    } else {
        format!(" ({sign}{})", percent((after as f64 / before as f64 - 1.0).abs()))
    };
    format!("{sign}{}{ratio}", bytes(after.abs_diff(before)))
}
