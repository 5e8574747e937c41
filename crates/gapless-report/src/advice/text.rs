//! Advice for a terminal: the verdict, then each suggestion with the line to set, the results of its
//! replay and its costs.

use super::{Advice, Answer, BatchInfo, Setting, Suggestion, Word};
use crate::replay::text::driver_time;
use crate::text::layout::{command, indent};
use crate::text::paint::{BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, bytes, clean, percent};
use crate::text::table::{Align, Table};
use crate::text::{count, plural};
use std::fmt::Write;

use Align::{Left, Right};

/// The advice as text.
#[must_use]
pub fn render(advice: &Advice) -> String {
    let mut out = String::new();
    let a = &advice.answer;
    let settings = Some(a.baseline.settings.as_str());
    crate::text::source::render(&mut out, &advice.source, settings);
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
        if let Some(batch) = &a.batch {
            batch_share(out, batch);
        }
        next(out, a, path);
    }
}

fn suggestion(out: &mut String, number: usize, s: &Suggestion, a: &Answer) {
    let (before, after) = (&a.baseline, &s.setting);
    out.push('\n');
    command(out, &format!("  {BOLD}{number}{RESET}  "), &clean(&s.line), CYAN);
    let mut table = Table::new(&[Left, Left]).names(1, 24);
    let mut row = |name: &str, value: String| table.row("", vec![name.to_owned(), value]);
    if before.survives {
        row("saves", format!("{} ({})", bytes(s.saving), percent(s.saving_share)));
        row("peak reserved", arrow(before, after, |t| bytes(t.peak_reserved)));
    } else {
        let card = bytes(a.capacity.unwrap_or(0));
        row("survives", format!("on {card}, with {} at most", bytes(after.peak_reserved)));
    }
    let card = arrow(before, after, |t| bytes(t.min_capacity));
    row("smallest card", if s.needs_larger_card(a) { format!("{card}: it grows") } else { card });
    // A run that ended early made fewer calls for that reason alone, so then only the suggestion's cost is shown.
    let costs: fn(&Setting) -> String = |t| {
        let calls = [plural(t.device_allocs, "device alloc"), plural(t.device_frees, "free")].join(", ");
        format!("{calls}, {}, {} in the driver", plural(t.retries, "retry"), driver_time(t.driver_time_ms))
    };
    if before.survives {
        // A figure that grows is a cost, one that shrinks is a gain; equal figures are left out.
        let (mut costs, mut gains) = (Vec::new(), Vec::new());
        let figures: [Figure; 4] = [
            ("device allocs", |t| t.device_allocs as f64, |t| count(t.device_allocs)),
            ("device frees", |t| t.device_frees as f64, |t| count(t.device_frees)),
            ("retries", |t| t.retries as f64, |t| count(t.retries)),
            ("in the driver", |t| t.driver_time_ms, |t| driver_time(t.driver_time_ms)),
        ];
        for (name, value, shown) in figures {
            let text = format!("{} {name}", arrow(before, after, shown));
            if shown(before) == shown(after) {
                continue;
            }
            if value(after) > value(before) { costs.push(text) } else { gains.push(text) }
        }
        if costs.is_empty() {
            costs.push("nothing more".to_owned());
        }
        for (head, lines) in [("costs", costs), ("gains", gains)] {
            for (i, line) in lines.into_iter().enumerate() {
                row(if i == 0 { head } else { "" }, line);
            }
        }
    } else {
        row("costs", costs(after));
    }
    if let Some(version) = &s.needs {
        row("needs", format!("torch {version} or later; older ones refuse it"));
    }
    table.render(out, "     ");
}

/// A figure of a setting: its name, its value, and its format.
type Figure = (&'static str, fn(&Setting) -> f64, fn(&Setting) -> String);

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

/// The post-mortem uses this too.
pub(crate) fn table_of_holders(out: &mut String, holders: &[crate::model::HolderInfo]) {
    let mut table = Table::new(&[Right, Right, Right, Left, Left]).names(4, 24).spare(&[3]);
    for h in holders {
        let label = clean(&h.label);
        table.row(
            "",
            vec![bytes(h.bytes), percent(h.share), format!("{} ×", count(h.count)), h.kind.clone(), label],
        );
    }
    table.render(out, "    ");
}

/// The post-mortem uses this too.
pub(crate) fn batch_share(out: &mut String, b: &BatchInfo) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(min_capacity: u64, calls: u64) -> Setting {
        Setting {
            settings: String::new(),
            survives: true,
            peak_reserved: 10 << 30,
            peak_allocated: 8 << 30,
            min_capacity,
            device_allocs: calls,
            device_frees: 7,
            retries: 100 - calls,
            driver_time_ms: 1.0,
        }
    }

    fn shown(before: Setting, after: Setting) -> String {
        let suggestion = Suggestion {
            line: "export X=y".to_owned(),
            needs: None,
            changes: 1,
            saving: 1 << 30,
            saving_share: 0.1,
            setting: after,
        };
        let answer = Answer {
            device: 0,
            capacity: None,
            allocator: "torch@2.11".to_owned(),
            verdict: Word::Helps,
            sentence: String::new(),
            tried: 2,
            planned: 2,
            stopped: false,
            floor: 8 << 30,
            excess: None,
            baseline: before,
            suggestions: vec![suggestion],
            holders: Vec::new(),
            batch: None,
        };
        let mut out = String::new();
        body(&mut out, &answer, "run.pickle", "");
        out
    }

    /// The rows below `head`, up to the next one with a head of its own.
    fn rows<'t>(text: &'t str, head: &str) -> Vec<&'t str> {
        let mut lines =
            text.lines().map(str::trim_end).skip_while(|line| !line.trim_start().starts_with(head));
        let first = lines.next().map(|line| line.trim_start().trim_start_matches(head).trim());
        let more = lines.take_while(|line| line.starts_with("           ")).map(str::trim);
        first.into_iter().chain(more).collect()
    }

    #[test]
    fn what_grows_is_a_cost_and_what_shrinks_is_a_gain() {
        let text = shown(setting(10 << 30, 20), setting(9 << 30, 30));
        assert_eq!(rows(&text, "costs"), ["20 -> 30 device allocs"], "{text}");
        assert_eq!(rows(&text, "gains"), ["80 -> 70 retries"], "{text}");
        assert!(!text.contains("device frees"), "what stays the same is not told: {text}");
        let text = shown(setting(10 << 30, 20), setting(10 << 30, 20));
        assert_eq!(rows(&text, "costs"), ["nothing more"], "{text}");
        assert!(!text.contains("gains"), "{text}");
    }

    #[test]
    fn a_smallest_card_that_grows_is_flagged() {
        assert!(shown(setting(9 << 30, 20), setting(10 << 30, 20)).contains("10.0 GiB: it grows"));
        assert!(!shown(setting(10 << 30, 20), setting(9 << 30, 20)).contains("it grows"));
    }
}
