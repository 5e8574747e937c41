//! A diff for people and programs.

use super::{Change, DeviceDiff, Diff, HolderDiff};
use crate::text::layout::{indent, shorten, width};
use crate::text::table::{Align, Table};
use crate::text::{BOLD, DIM, RED, RESET, bytes, clean, percent};
use std::fmt::Write;

const GREEN: &str = "\x1b[32m";

/// For a terminal; at most `top` holders that grew and `top` that shrank.
#[must_use]
pub fn text(diff: &Diff, top: usize) -> String {
    let mut out = String::new();
    let name = |path: &str| shorten(&clean(path), width() - 8);
    let _ = writeln!(out, "{DIM}before{RESET}  {}", name(&diff.before));
    let _ = writeln!(out, "{DIM}after{RESET}   {BOLD}{}{RESET}", name(&diff.after));
    for change in &diff.settings {
        let known = |value: &str| if value.is_empty() { "(default)".to_owned() } else { clean(value) };
        let (name, before, after) = (clean(&change.name), known(&change.before), known(&change.after));
        indent(&mut out, "", &format!("{DIM}setting{RESET} {name}: {before} → {after}"), "");
    }
    for device in &diff.unmatched_devices {
        let _ = writeln!(out, "{DIM}device {device} is in one of the runs only{RESET}");
    }
    for d in &diff.devices {
        device(&mut out, d, top);
    }
    out
}

/// For programs: schema `gapless.diff/1`.
///
/// # Errors
/// Never for a diff; serde's signature.
pub fn json(diff: &Diff) -> serde_json::Result<String> {
    serde_json::to_string_pretty(diff).map(|text| text + "\n")
}

fn device(out: &mut String, d: &DeviceDiff, top: usize) {
    let _ = writeln!(out, "\n{BOLD}Device {}{RESET}", d.device);
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right, Align::Right]);
    table.row(DIM, ["", "before", "after", "change", ""].map(str::to_owned).to_vec());
    for Change { name, before, after } in &d.peaks {
        let shown = |value: &Option<u64>| value.map_or("unknown".to_owned(), bytes);
        let (change, ratio) = match (before, after) {
            (Some(before), Some(after)) => (signed(*before, *after), ratio(*before, *after)),
            _ => (String::new(), String::new()),
        };
        table.row("", vec![format!("peak {name}"), shown(before), shown(after), change, ratio]);
    }
    let share = |value: Option<f64>| value.map_or("unknown".to_owned(), percent);
    let f = &d.fragmentation;
    table.row("", vec!["fragmentation".to_owned(), share(f.before), share(f.after)]);
    let slope = |value: Option<f64>| value.map_or("unknown".to_owned(), |v| bytes(v.max(0.0) as u64));
    let g = &d.growth_per_step;
    table.row("", vec!["growth per step".to_owned(), slope(g.before), slope(g.after)]);
    table.render(out, "  ");

    steps(out, d);
    kinds(out, d);
    let (grew, shrank): (Vec<&HolderDiff>, Vec<&HolderDiff>) = d.holders.iter().partition(|h| h.change > 0);
    holders(out, "What grew", &grew, RED, top);
    holders(out, "What shrank", &shrank, GREEN, top);
    if d.holders.is_empty() {
        let _ = writeln!(out, "\n  {DIM}no holder differs at {}{RESET}", d.moment.what);
    }
}

fn steps(out: &mut String, d: &DeviceDiff) {
    let peaks = &d.steps.peaks;
    if peaks.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n  {BOLD}Steps{RESET}  {DIM}{} before, {} after; aligned from the first{RESET}",
        d.steps.before, d.steps.after
    );
    let changed: Vec<&Change<u64>> = peaks.iter().filter(|c| c.before != c.after).collect();
    if changed.is_empty() {
        let _ = writeln!(out, "    peak allocated is the same in all {}", peaks.len());
        return;
    }
    let mut order: Vec<&Change<u64>> = changed.clone();
    order.sort_by_key(|c| std::cmp::Reverse(c.after.abs_diff(c.before)));
    changes(out, order.into_iter().take(5));
    if changed.len() > 5 {
        let _ =
            writeln!(out, "    {DIM}and {} more of {} steps differ{RESET}", changed.len() - 5, peaks.len());
    }
}

fn kinds(out: &mut String, d: &DeviceDiff) {
    let changed: Vec<&Change<u64>> = d.kinds.iter().filter(|c| c.before != c.after).collect();
    if changed.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  {BOLD}Kinds{RESET}  {DIM}inferred; at the peak of {}{RESET}", d.moment.what);
    changes(out, changed.into_iter());
}

/// A table of bytes before and after, a row a name.
fn changes<'a>(out: &mut String, rows: impl Iterator<Item = &'a Change<u64>>) {
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right, Align::Right]);
    for Change { name, before, after } in rows {
        let cells =
            [name.clone(), bytes(*before), bytes(*after), signed(*before, *after), ratio(*before, *after)];
        table.row("", cells.to_vec());
    }
    table.render(out, "    ");
}

fn holders(out: &mut String, title: &str, rows: &[&HolderDiff], style: &'static str, top: usize) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  {BOLD}{title}{RESET}");
    let align = [Align::Right, Align::Right, Align::Right, Align::Left, Align::Left];
    let mut table = Table::new(&align).names(4, 20).spare(&[2, 3]);
    for h in rows.iter().take(top) {
        table.row(
            "",
            vec![
                format!("{}{}", if h.change > 0 { '+' } else { '-' }, bytes(h.change.unsigned_abs())),
                format!("{} → {}", bytes(h.before), bytes(h.after)),
                format!("{} → {} ×", h.before_count, h.after_count),
                h.kind.clone(),
                clean(&h.label),
            ],
        );
    }
    let _ = write!(out, "{style}");
    table.render(out, "    ");
    let _ = write!(out, "{RESET}");
    if rows.len() > top {
        let _ = writeln!(out, "    {DIM}and {} more: --top or --format json{RESET}", rows.len() - top);
    }
}

fn signed(before: u64, after: u64) -> String {
    if before == after {
        return "same".to_owned();
    }
    let sign = if after > before { '+' } else { '-' };
    format!("{sign}{}", bytes(after.abs_diff(before)))
}

fn ratio(before: u64, after: u64) -> String {
    if before == 0 || before == after {
        return String::new();
    }
    let change = after as f64 / before as f64 - 1.0;
    format!("{}{}", if change > 0.0 { "+" } else { "" }, percent(change))
}
