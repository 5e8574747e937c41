//! One device in the terminal report.

use super::layout::{facts, indent, visible, width};
use super::table::{Align, Table};
use super::{BOLD, CYAN, DIM, RESET, bars, bytes, clean, count, duration, percent, plural};
use crate::model::{DeviceReport, MomentInfo, When};
use std::fmt::Write;

use Align::{Left, Right};

pub(super) fn render(out: &mut String, d: &DeviceReport) {
    let mut known = vec![plural(d.events, "event"), plural(d.allocations, "allocation")];
    if let Some(us) = d.duration_us {
        known.push(duration(us));
    }
    if d.events > 0 {
        known.push(d.steps.evidence.clone());
    }
    out.push('\n');
    facts(out, &format!("{BOLD}Device {}{RESET}  ", d.device), &known);
    curves(out, d);
    peaks(out, d);
    losses(out, d);
    kinds(out, d);
    holders(out, d);
    modules(out, d);
    parts(out, d);
    steps(out, d);
    churn(out, d);
}

pub(super) fn section(out: &mut String, title: &str, aside: &str) {
    if aside.is_empty() || visible(title) + visible(aside) + 4 <= width() {
        let aside = if aside.is_empty() { String::new() } else { format!("  {DIM}{aside}{RESET}") };
        let _ = writeln!(out, "\n  {BOLD}{title}{RESET}{aside}");
        return;
    }
    let _ = writeln!(out, "\n  {BOLD}{title}{RESET}");
    indent(out, "    ", aside, DIM);
}

/// Reserved and allocated over the run, as two rows of bars on one scale.
pub(super) fn curves(out: &mut String, d: &DeviceReport) {
    // The curves share the line with their names.
    let columns = width() - 13;
    let top = d.peak_reserved.unwrap_or(0).max(d.peak_active);
    if d.timeline.ticks.len() < 2 || top == 0 {
        return;
    }
    if d.peak_reserved.is_some() {
        let _ = writeln!(out, "  {DIM}reserved   {}{RESET}", bars(&d.timeline.reserved, top, columns));
    }
    let _ = writeln!(out, "  allocated  {CYAN}{}{RESET}", bars(&d.timeline.allocated, top, columns));
}

fn peaks(out: &mut String, d: &DeviceReport) {
    section(out, if d.events > 0 { "Peaks" } else { "Held when the snapshot was taken" }, "");
    let mut table = Table::new(&[Left, Right, Left, Left]).spare(&[3]);
    let mut row = |name: &str, value: Option<u64>, when: &When, meaning: &str| {
        let at = if value.is_some() && d.events > 0 { moment(when) } else { String::new() };
        let value = value.map_or("unknown".to_owned(), bytes);
        table.row("", vec![name.to_owned(), value, at, meaning.to_owned()]);
    };
    row("reserved", d.peak_reserved, &d.peak_at.reserved, "held from the device");
    row("active", Some(d.peak_active), &d.peak_at.active, "blocks not reusable yet");
    row("allocated", Some(d.peak_allocated), &d.peak_at.allocated, "in the program's hands");
    row("requested", Some(d.peak_requested), &d.peak_at.requested, "asked for, until reusable");
    row("live", Some(d.peak_live), &d.peak_at.live, "asked for and not freed");
    table.render(out, "    ");
    if let Some(fragmentation) = d.fragmentation {
        let _ = writeln!(
            out,
            "    fragmentation {BOLD}{}{RESET}  {DIM}1 - peak allocated / peak reserved{RESET}",
            percent(fragmentation)
        );
    }
}

fn moment(when: &When) -> String {
    let mut text = format!("event {}", count(u64::from(when.tick.saturating_sub(1))));
    if when.tick == 0 {
        text = "at the start".to_owned();
    }
    if let Some(us) = when.time_us {
        let _ = write!(text, ", {}", duration(us));
    }
    if let Some(step) = when.step {
        let _ = write!(text, ", step {step}");
    }
    text
}

fn losses(out: &mut String, d: &DeviceReport) {
    if d.peak_reserved.is_none() {
        return;
    }
    section(out, "Held and not used", "");
    let mut table = Table::new(&[Left, Right, Right]).names(0, 14);
    // Without a history both are one instant.
    if d.events > 0 {
        table.row(DIM, vec![String::new(), "at peak allocated".to_owned(), "at peak reserved".to_owned()]);
    }
    type Row = (&'static str, fn(&MomentInfo) -> String);
    let rows: [Row; 6] = [
        ("internal (rounding)", |m| bytes(m.losses.internal)),
        ("external (reserved, not active)", |m| bytes(m.losses.external)),
        ("  of it stranded beside live blocks", |m| bytes(m.losses.stranded)),
        ("pending frees", |m| bytes(m.losses.pending)),
        ("largest free block", |m| bytes(m.losses.largest_gap)),
        ("free blocks", |m| count(m.losses.gaps)),
    ];
    for (name, value) in rows {
        let mut cells = vec![name.to_owned(), value(&d.at_peak_allocated), value(&d.at_peak_reserved)];
        cells.truncate(if d.events > 0 { 3 } else { 2 });
        table.row("", cells);
    }
    table.render(out, "    ");
}

fn kinds(out: &mut String, d: &DeviceReport) {
    let rows: Vec<(&str, u64)> = d.kinds.at_peak.rows().into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    let total: u64 = rows.iter().map(|(_, bytes)| bytes).sum();
    if total == 0 {
        return;
    }
    // The holders' shares are of bytes in use; here free memory is a row, so shares are of reserved bytes.
    let whole = if d.kinds.at_peak.cached_free > 0 { "reserved" } else { "in use" };
    section(
        out,
        &at(d, "What the bytes are", "at peak allocated"),
        &format!("inferred; shares of {} {whole}", bytes(total)),
    );
    let longest = width().saturating_sub(40).clamp(8, 40);
    let mut table = Table::new(&[Left, Right, Right, Left]);
    for (name, value) in rows {
        let part = value as f64 / total as f64;
        let bar: String = std::iter::repeat_n('█', (part * longest as f64).round() as usize).collect();
        table.row("", vec![name.to_owned(), bytes(value), percent(part), bar]);
    }
    table.render(out, "    ");
    indent(out, "    ", &clean(&d.kinds.evidence), DIM);
}

fn holders(out: &mut String, d: &DeviceReport) {
    if d.holders.is_empty() {
        return;
    }
    section(out, &at(d, "Largest holders", "at peak allocated"), "shares of what is in use");
    let mut table = Table::new(&[Right, Right, Right, Right, Left, Left]).names(5, 24).spare(&[4]);
    for h in &d.holders {
        table.row(
            "",
            vec![
                h.rank.to_string(),
                bytes(h.bytes),
                percent(h.share),
                format!("{} ×", count(h.count)),
                h.kind.clone(),
                clean(&h.label),
            ],
        );
    }
    table.render(out, "    ");
}

/// A heading with its moment: the peak, or the one instant of a snapshot without history.
fn at(d: &DeviceReport, what: &str, peak: &str) -> String {
    format!("{what} {}", if d.events > 0 { peak } else { "at the snapshot" })
}

/// Modules below this share of the whole are left out.
const LEAST_MODULE: f64 = 0.01;
const MOST_MODULES: usize = 16;

fn modules(out: &mut String, d: &DeviceReport) {
    let Some(found) = d.modules.as_ref().filter(|found| found.total > 0) else { return };
    section(out, &at(d, "Modules", "at peak allocated"), "each with all that is inside of it");
    let share = |held: u64| held as f64 / found.total as f64;
    // The largest, in the order of the tree.
    let mut large: Vec<u64> =
        found.rows.iter().map(|row| row.bytes).filter(|&held| share(held) >= LEAST_MODULE).collect();
    large.sort_unstable_by(|a, b| b.cmp(a));
    let least = large.get(MOST_MODULES - 1).or(large.last()).copied().unwrap_or(u64::MAX);
    // A module with a single module inside, such as a list of layers, shares its row.
    let is_list = |at: usize| {
        let row = &found.rows[at];
        let inner = found.rows.get(at + 1).filter(|inner| inner.path.starts_with(&format!("{}.", row.path)));
        inner.is_some_and(|inner| inner.bytes == row.bytes)
    };
    let mut table = Table::new(&[Right, Right, Right, Left, Left]).names(3, 24).spare(&[4]);
    let mut above: Vec<&str> = Vec::new();
    let shown = (0..found.rows.len()).filter(|&at| found.rows[at].bytes >= least && !is_list(at));
    for row in shown.take(MOST_MODULES).map(|at| &found.rows[at]) {
        let inside = |outer: &str| row.path.strip_prefix(outer).and_then(|rest| rest.strip_prefix('.'));
        while above.last().is_some_and(|outer| inside(outer).is_none()) {
            above.pop();
        }
        let name = above.last().and_then(|outer| inside(outer)).unwrap_or(&row.path);
        let kinds = row.kinds.rows();
        let kind = kinds.iter().rev().max_by_key(|(_, held)| *held).map_or("", |(name, _)| name);
        let times = if row.modules > 1 { format!("{} ×", count(row.modules)) } else { String::new() };
        let indented = format!("{:indent$}{}", "", clean(name), indent = 2 * above.len().min(8));
        table.row("", vec![bytes(row.bytes), percent(share(row.bytes)), times, indented, kind.to_owned()]);
        above.push(&row.path);
    }
    if found.outside > 0 {
        let (held, part) = (bytes(found.outside), percent(share(found.outside)));
        table.row(DIM, vec![held, part, String::new(), "outside all modules".to_owned(), String::new()]);
    }
    table.render(out, "    ");
}

fn parts(out: &mut String, d: &DeviceReport) {
    if d.at_peak_reserved.pools.is_empty() {
        return;
    }
    section(out, &at(d, "Pools and streams", "at peak reserved"), "");
    let align = [Left, Left, Right, Right, Right, Right, Right];
    let mut table = Table::new(&align).names(0, 12).names(1, 8).spare(&[5, 4]);
    let head = ["pool", "stream", "reserved", "active", "free", "stranded", "largest free"];
    table.row(DIM, head.iter().map(|&h| h.to_owned()).collect());
    for p in d.at_peak_reserved.pools.iter().take(12) {
        table.row(
            "",
            vec![
                format!("{} {}", p.pool, p.class),
                gapless_trace::StreamId(p.stream).to_string(),
                bytes(p.reserved),
                bytes(p.active),
                bytes(p.losses.external),
                bytes(p.losses.stranded),
                bytes(p.losses.largest_gap),
            ],
        );
    }
    table.render(out, "    ");
    if d.at_peak_reserved.pools.len() > 12 {
        let more = d.at_peak_reserved.pools.len() - 12;
        let _ = writeln!(out, "    {DIM}and {more} more: --format json lists all{RESET}");
    }
}

pub(super) fn steps(out: &mut String, d: &DeviceReport) {
    let spans = &d.steps.spans;
    if spans.is_empty() {
        return;
    }
    section(out, "Steps", "");
    let mut table = Table::new(&[Right, Right, Right, Right, Right]);
    let head = ["step", "peak allocated", "live at end", "allocations", "time"];
    table.row(DIM, head.iter().map(|&h| h.to_owned()).collect());
    let shown: Vec<usize> = if spans.len() <= 8 {
        (0..spans.len()).collect()
    } else {
        (0..4).chain(spans.len() - 3..spans.len()).collect()
    };
    let mut previous = None;
    for i in shown {
        if previous.is_some_and(|p: usize| p + 1 != i) {
            table.row(DIM, vec!["…".to_owned()]);
        }
        previous = Some(i);
        let s = &spans[i];
        table.row(
            "",
            vec![
                i.to_string(),
                bytes(s.peak_allocated),
                bytes(s.live_end),
                count(s.allocations),
                s.duration_us.map_or_else(String::new, duration),
            ],
        );
    }
    table.render(out, "    ");
    if let Some(growth) = &d.growth {
        let sign = if growth.bytes_per_step < 0.0 { "-" } else { "+" };
        let slope = bytes(growth.bytes_per_step.abs() as u64);
        let _ = writeln!(
            out,
            "    {DIM}live bytes at step ends: {sign}{slope} a step over {}{RESET}",
            plural(growth.steps, "step")
        );
    }
}

fn churn(out: &mut String, d: &DeviceReport) {
    if d.events == 0 {
        return;
    }
    section(out, "The allocator at work", "");
    let c = &d.churn;
    let mut facts = Vec::new();
    if let Some(rate) = c.allocations_per_second {
        facts.push(format!("{} a second", plural(rate.round() as u64, "allocation")));
    }
    if let Some(each) = c.allocations_per_step {
        facts.push(format!("{} a step", count(each.round() as u64)));
    }
    facts.push(format!(
        "{} took memory, {} gave it back",
        plural(c.device_allocs, "device call"),
        count(c.device_frees)
    ));
    if let Some(calls) = c.device_calls_after_warmup {
        facts.push(format!("{} of them after the first two steps", count(calls)));
    }
    facts.push(plural(c.retries, "cache flush"));
    facts.push(format!("{} out of memory", count(c.ooms.len() as u64)));
    indent(out, "    ", &facts.join(" · "), "");
}
