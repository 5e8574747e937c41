//! Advice for a terminal: the verdict, then each suggestion with the line to set, what its replay showed and what it
//! costs.

use super::{Advice, Answer, Setting, Suggestion, Word};
use crate::replay::text::driver_time;
use crate::text::table::{Align, Table};
use crate::text::{
    BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, bytes, clean, count, indent, percent, shorten,
};
use std::fmt::Write;

use Align::{Left, Right};

/// The advice as text.
#[must_use]
pub fn render(advice: &Advice) -> String {
    let mut out = String::new();
    let a = &advice.answer;
    let settings = Some(a.baseline.settings.as_str());
    crate::text::source(&mut out, &advice.source, settings);
    let _ = writeln!(out);
    body(&mut out, a, &advice.source.path, "");
    out
}

/// The advice as a section of a report.
pub(crate) fn section(out: &mut String, a: &Answer, path: &str, several: bool) {
    let on = if several { format!(" for device {}", a.device) } else { String::new() };
    let _ = writeln!(
        out,
        "\n{BOLD}What to set{on}{RESET}  {DIM}each replayed on a model of {}{RESET}",
        a.allocator
    );
    body(out, a, path, "  ");
}

fn body(out: &mut String, a: &Answer, path: &str, margin: &str) {
    let style = match a.verdict {
        Word::Helps | Word::Fine => GREEN,
        Word::TooLarge | Word::NoSetting => RED,
    };
    indent(out, margin, &clean(&a.sentence), style);
    if a.stopped {
        let text = format!(
            "stopped after {} of {} settings; the others were not replayed",
            count(a.tried),
            count(a.planned)
        );
        indent(out, margin, &text, YELLOW);
    }
    for (i, s) in a.suggestions.iter().enumerate() {
        suggestion(out, i + 1, s, a);
    }
    if !a.suggestions.is_empty() {
        let text = "Set it before the process starts. Savings are the worse of two replays, with the driver placing segments upward and \
                    downward; driver time is an estimate.";
        let _ = writeln!(out);
        indent(out, margin, text, DIM);
    }
    if matches!(a.verdict, Word::TooLarge | Word::NoSetting) {
        holders(out, a);
        batch(out, a);
        next(out, a, path);
    }
}

fn suggestion(out: &mut String, number: usize, s: &Suggestion, a: &Answer) {
    let (before, after) = (&a.baseline, &s.setting);
    let _ = writeln!(out, "\n  {BOLD}{number}{RESET}  {CYAN}{}{RESET}", clean(&s.line));
    let mut table = Table::new(&[Left, Left]);
    let mut row = |name: &str, value: String| table.row("", vec![name.to_owned(), value]);
    if before.survives {
        row("saves", format!("{} ({})", bytes(s.saving), percent(s.saving_share)));
        row("peak reserved", arrow(before, after, |t| bytes(t.peak_reserved)));
    } else {
        let card = bytes(a.capacity.unwrap_or(0));
        row("survives", format!("on {card}, with {} at most", bytes(after.peak_reserved)));
    }
    row("smallest card", arrow(before, after, |t| bytes(t.min_capacity)));
    // A run that ended early made fewer calls for that reason alone: then only what the other one costs is told.
    let costs: fn(&Setting) -> String = |t| {
        let calls = format!("{} device allocs, {} frees", count(t.device_allocs), count(t.device_frees));
        format!("{calls}, {} retries, {} in the driver", count(t.retries), driver_time(t.driver_time_ms))
    };
    if before.survives {
        row("costs", format!("{} device allocs", arrow(before, after, |t| count(t.device_allocs))));
        row("", format!("{} device frees", arrow(before, after, |t| count(t.device_frees))));
        row("", format!("{} retries", arrow(before, after, |t| count(t.retries))));
        row("", format!("{} in the driver", arrow(before, after, |t| driver_time(t.driver_time_ms))));
    } else {
        row("costs", costs(after));
    }
    if let Some(version) = &s.needs {
        row("needs", format!("torch {version} or later; older ones refuse it"));
    }
    table.render(out, "     ");
}

fn arrow(before: &Setting, after: &Setting, of: fn(&Setting) -> String) -> String {
    format!("{} -> {}", of(before), of(after))
}

fn holders(out: &mut String, a: &Answer) {
    if a.holders.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  {BOLD}Largest holders at the peak{RESET}");
    table_of_holders(out, &a.holders);
}

/// Also for the post-mortem.
pub(crate) fn table_of_holders(out: &mut String, holders: &[crate::model::HolderInfo]) {
    let mut table = Table::new(&[Right, Right, Right, Left, Left]);
    for h in holders {
        let label = shorten(&clean(&h.label), 52);
        table.row(
            "",
            vec![bytes(h.bytes), percent(h.share), format!("{} ×", count(h.count)), h.kind.clone(), label],
        );
    }
    table.render(out, "    ");
}

fn batch(out: &mut String, a: &Answer) {
    let Some(b) = &a.batch else { return };
    let (fixed, scaling) = (bytes(b.fixed), bytes(b.scaling));
    let text = if b.fits_share > 0.0 {
        format!(
            "{fixed} of it does not depend on the batch, {scaling} scales with it: about {} of this batch would fit",
            percent(b.fits_share)
        )
    } else {
        format!("{fixed} of it does not depend on the batch, so no batch fits; {scaling} scales with it")
    };
    let _ = writeln!(out, "\n  {BOLD}Batch{RESET}  {DIM}inferred from lifetimes over the steps{RESET}");
    indent(out, "    ", &text, "");
}

fn next(out: &mut String, a: &Answer, path: &str) {
    let card = bytes(a.capacity.unwrap_or(0)).replace(' ', "");
    let text = match a.verdict {
        Word::NoSetting => format!(
            "`gapless plan {} --capacity {card}` shows whether the run can be packed if every lifetime is known; a card of {} serves it as it was",
            clean(path),
            bytes(a.baseline.min_capacity)
        ),
        _ => format!(
            "no allocator can serve it: hold less at once (a smaller batch, checkpointing, offloading), or take a card of {} or more",
            bytes(a.baseline.min_capacity)
        ),
    };
    let _ = writeln!(out);
    indent(out, "  ", &format!("{CYAN}help:{RESET} {text}"), "");
}
