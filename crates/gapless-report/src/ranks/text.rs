//! The ranks for a terminal: a strip of memory over the run for each rank, then the odd ranks.
//!
//! Beyond [`LINES`] ranks, neighbours share a line that shows the most of them; the worst rank, the middle one and the
//! odd ones always have a line of their own.

use super::model::{OddRank, RankRow, Ranks, Timeline};
use super::robust::median;
use crate::text::table::{Align, Table};
use crate::text::{
    BOLD, CYAN, DIM, RED, RESET, YELLOW, bars, bytes, clean, count, duration, facts as layout_facts, indent,
    percent, plural, shorten, verb, width, wrap,
};
use std::fmt::Write;

/// Ranks that each have a line of their own.
const LINES: usize = 32;
/// Lines that more ranks share.
const FOLDED: usize = 16;
/// Characters of a strip, at most; and at least, however long the names and marks are.
const STRIP: usize = 64;
const SHORTEST: usize = 16;
/// Files that cannot be read, and odd ranks, that are listed one by one.
const LISTED: usize = 12;

/// For a terminal.
#[must_use]
pub fn text(ranks: &Ranks) -> String {
    let mut out = String::new();
    head(&mut out, ranks);
    strips(&mut out, ranks);
    groups(&mut out, ranks);
    odd(&mut out, ranks);
    differences(&mut out, ranks);
    divergence(&mut out, ranks);
    waiting(&mut out, ranks);
    problems(&mut out, ranks);
    out
}

/// A heading with its note: beside it, or below if the line is too short.
fn heading(out: &mut String, title: &str, about: &str, style: &str) {
    if title.chars().count() + 2 + about.chars().count() <= width() {
        let _ = writeln!(out, "\n{BOLD}{title}{RESET}  {style}{about}{RESET}");
    } else {
        let _ = writeln!(out, "\n{BOLD}{title}{RESET}");
        indent(out, "  ", about, style);
    }
}

fn readable(ranks: &Ranks) -> impl Iterator<Item = &RankRow> {
    ranks.ranks.iter().filter(|row| row.error.is_none())
}

fn head(out: &mut String, ranks: &Ranks) {
    let numbers: std::collections::BTreeSet<u32> = ranks.ranks.iter().map(|row| row.rank).collect();
    let mut facts = vec![plural(numbers.len() as u64, "rank"), plural(ranks.files, "file")];
    let events: u64 = readable(ranks).filter_map(|row| row.events).sum();
    facts.push(plural(events, "event"));
    facts.push(ranks.numbering.clone());
    let _ = writeln!(out, "{BOLD}{}{RESET}", shorten(&clean(&ranks.path), width()));
    layout_facts(out, "", &facts);
    let mut table = Table::new(&[
        Align::Left,
        Align::Right,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Left,
        Align::Right,
    ]);
    table.row(DIM, ["peak", "worst", "", "median", "least", "", "imbalance"].map(str::to_owned).to_vec());
    for (name, of) in figures() {
        let mut values: Vec<(u64, u32)> =
            readable(ranks).filter_map(|row| Some((of(row)?, row.rank))).collect();
        values.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let (Some(worst), Some(least)) = (values.first(), values.last()) else { continue };
        let middle = values[values.len() / 2];
        let mean = values.iter().map(|(value, _)| *value as f64).sum::<f64>() / values.len() as f64;
        let imbalance = if mean > 0.0 { worst.0 as f64 / mean - 1.0 } else { 0.0 };
        table.row(
            "",
            vec![
                name.to_owned(),
                bytes(worst.0),
                format!("rank {}", worst.1),
                bytes(middle.0),
                bytes(least.0),
                format!("rank {}", least.1),
                percent(imbalance),
            ],
        );
    }
    table.render(out, "  ");
    cached(out, ranks);
    for text in &ranks.not_compared {
        indent(out, "  ", &format!("{YELLOW}note:{RESET} {text}"), "");
    }
}

/// A worst rank that allocates no more than the others: the bytes that it reserves beyond theirs are cached.
fn cached(out: &mut String, ranks: &Ranks) {
    let Some(worst) = readable(ranks).find(|row| Some(row.rank) == ranks.worst_rank) else { return };
    let typical = |of: Figure| median(&readable(ranks).filter_map(of).map(|v| v as f64).collect::<Vec<_>>());
    let (Some(reserved), Some(allocated)) = (worst.peak_reserved, worst.peak_allocated) else { return };
    let more = reserved as f64 - typical(|row| row.peak_reserved);
    let same = (allocated as f64) < 1.02 * typical(|row| row.peak_allocated);
    if same && more > 0.05 * reserved as f64 {
        let text = format!(
            "rank {} reserves {} more than the median and allocates no more: fragmentation, which varies between ranks that \
             do the same; `--rank {}` shows it",
            worst.rank,
            bytes(more as u64),
            worst.rank
        );
        indent(out, "  ", &text, DIM);
    }
}

type Figure = fn(&RankRow) -> Option<u64>;

fn figures() -> [(&'static str, Figure); 2] {
    [("reserved", |row| row.peak_reserved), ("allocated", |row| row.peak_allocated)]
}

/// One line of the picture: a name, its marks, the strip's values and the peaks.
struct Line {
    name: String,
    mark: String,
    style: &'static str,
    values: Vec<u64>,
    allocated: u64,
    reserved: Option<u64>,
}

fn strips(out: &mut String, ranks: &Ranks) {
    let rows: Vec<(&RankRow, &Timeline)> = readable(ranks).zip(&ranks.timelines).collect();
    if rows.is_empty() {
        return;
    }
    let top = readable(ranks).filter_map(|row| row.peak_allocated).max().unwrap_or(0);
    let scale = format!("from each rank's first event to its last; a full block is {}", bytes(top));
    heading(out, "Allocated over the run", &scale, DIM);
    let several = rows.iter().any(|(row, _)| rows.iter().filter(|(r, _)| r.rank == row.rank).count() > 1);
    let special = |row: &RankRow| -> bool {
        ranks.worst_rank == Some(row.rank)
            || ranks.median_rank == Some(row.rank)
            || odd_of(ranks, row).is_some()
    };
    let mut lines: Vec<Line> = Vec::new();
    if rows.len() <= LINES {
        lines.extend(rows.iter().map(|&(row, timeline)| line(ranks, row, timeline, several)));
    } else {
        for part in rows.chunks(rows.len().div_ceil(FOLDED)) {
            lines.push(folded(part));
        }
        let own = rows.iter().filter(|(row, _)| special(row)).take(LISTED + 2);
        lines.extend(own.map(|&(row, timeline)| line(ranks, row, timeline, several)));
    }
    let text_width = width;
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let marks = lines.iter().map(|line| line.mark.chars().count() + 2).max().unwrap_or(0);
    let others = 2 + width + 2 + 2 * (2 + 9) + marks;
    let columns = text_width().saturating_sub(others).clamp(SHORTEST, STRIP);
    let (allocated, reserved) = ("allocated", "reserved");
    let _ = writeln!(out, "  {DIM}{:<width$}  {:<columns$}  {allocated:>9}  {reserved:>9}{RESET}", "", "");
    for line in lines {
        let strip = bars(&line.values, top, columns);
        let reserved = line.reserved.map_or_else(|| "unknown".to_owned(), bytes);
        let row = format!(
            "  {}{:<width$}{RESET}  {CYAN}{strip:<columns$}{RESET}  {:>9}  {reserved:>9}  {}{}",
            line.style,
            line.name,
            bytes(line.allocated),
            line.style,
            line.mark
        );
        let _ = writeln!(out, "{}{RESET}", row.trim_end());
    }
}

fn odd_of<'a>(ranks: &'a Ranks, row: &RankRow) -> Option<&'a OddRank> {
    ranks.odd_ranks.iter().find(|odd| odd.rank == row.rank && Some(odd.device) == row.device)
}

fn line(ranks: &Ranks, row: &RankRow, timeline: &Timeline, several: bool) -> Line {
    let mut marks = Vec::new();
    if ranks.worst_rank == Some(row.rank) {
        marks.push("worst".to_owned());
    }
    if ranks.median_rank == Some(row.rank) && ranks.timelines.len() > LINES {
        marks.push("median".to_owned());
    }
    let odd = odd_of(ranks, row);
    marks.extend(odd.map(|odd| odd.why.word().to_owned()));
    let device = match row.device {
        Some(device) if several => format!(" device {device}"),
        _ => String::new(),
    };
    Line {
        name: format!("rank {}{device}", row.rank),
        mark: marks.join(", "),
        style: if odd.is_some() { YELLOW } else { "" },
        values: timeline.allocated.clone(),
        allocated: row.peak_allocated.unwrap_or(0),
        reserved: row.peak_reserved,
    }
}

/// Several ranks: at each place of the strip, the most of them.
fn folded(part: &[(&RankRow, &Timeline)]) -> Line {
    let mut values = vec![0; STRIP];
    for (_, timeline) in part {
        let n = timeline.allocated.len();
        for (at, value) in values.iter_mut().enumerate() {
            let (from, to) = (at * n / STRIP, ((at + 1) * n / STRIP).max(at * n / STRIP + 1).min(n));
            let most = timeline.allocated.get(from..to).into_iter().flatten().copied().max().unwrap_or(0);
            *value = most.max(*value);
        }
    }
    let (first, last) = (part[0].0.rank, part[part.len() - 1].0.rank);
    Line {
        name: if first == last { format!("rank {first}") } else { format!("ranks {first}-{last}") },
        mark: if part.len() > 1 { format!("the most of {}", part.len()) } else { String::new() },
        style: DIM,
        values,
        allocated: part.iter().filter_map(|(row, _)| row.peak_allocated).max().unwrap_or(0),
        reserved: part.iter().filter_map(|(row, _)| row.peak_reserved).max(),
    }
}

fn groups(out: &mut String, ranks: &Ranks) {
    if ranks.groups.len() < 2 {
        return;
    }
    let title = "ranks that hold the same part of the model; ranks are compared within their group";
    heading(out, "Groups", title, DIM);
    let mut table =
        Table::new(&[Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Right])
            .names(1, 12);
    let names = ["group", "ranks", "highest peak", "median", "imbalance", "step"];
    table.row(DIM, names.map(str::to_owned).to_vec());
    for (i, group) in ranks.groups.iter().enumerate().take(FOLDED) {
        let members: Vec<u32> = group.ranks.iter().map(|id| id.rank).collect();
        table.row(
            "",
            vec![
                i.to_string(),
                shorten(&ranges(&members), 36),
                bytes(group.max_peak),
                bytes(group.median_peak),
                percent(group.imbalance),
                group.step_us.map_or_else(String::new, |us| duration(us as u64)),
            ],
        );
    }
    table.render(out, "  ");
    if ranks.groups.len() > FOLDED {
        let more = ranks.groups.len() - FOLDED;
        let _ = writeln!(out, "  {DIM}and {more} more: --format json lists all{RESET}");
    }
}

/// 0, 1, 2, 5 as "0-2, 5".
pub(super) fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match parts.last_mut() {
            Some(part) if part.1 + 1 == number => part.1 = number,
            _ => parts.push((number, number)),
        }
    }
    let shown = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn odd(out: &mut String, ranks: &Ranks) {
    if readable(ranks).count() < 2 {
        return;
    }
    if ranks.odd_ranks.is_empty() {
        let most = ranks.groups.iter().map(|group| group.ranks.len()).max().unwrap_or(0);
        let what = match most {
            0 | 1 => "every rank holds another model, so none can be compared",
            2 => "of two replicas, neither failed, holds much more or is much slower",
            _ => "no rank differs from its replicas by more than they differ among themselves",
        };
        heading(out, "No odd rank", what, DIM);
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Odd ranks{RESET}  {DIM}against the replicas of their group{RESET}");
    for odd in ranks.odd_ranks.iter().take(LISTED) {
        let weight =
            if odd.bytes > 0 { format!("  {BOLD}{}{RESET}", bytes(odd.bytes)) } else { String::new() };
        let mut also: Vec<&str> = odd.also.iter().map(|why| why.word()).collect();
        also.insert(0, odd.why.word());
        let _ = writeln!(out, "  {YELLOW}rank {}  {}{RESET}{weight}", odd.rank, also.join(", also "));
        for line in wrap(&clean(&odd.sentence), width() - 4) {
            let _ = writeln!(out, "    {line}");
        }
        holders(out, &odd.holders);
    }
    if ranks.odd_ranks.len() > LISTED {
        let more = ranks.odd_ranks.len() - LISTED;
        let _ = writeln!(out, "  {DIM}and {more} more: --format json lists all{RESET}");
    }
}

fn holders(out: &mut String, holders: &[super::model::OddHolder]) {
    let mut table = Table::new(&[Align::Right, Align::Left, Align::Left, Align::Left]).names(3, 16);
    for holder in holders {
        table.row(
            DIM,
            vec![
                format!("+{}", bytes(holder.bytes)),
                format!("peers {}", bytes(holder.peer_bytes)),
                holder.kind.clone(),
                shorten(&clean(&holder.label), 52),
            ],
        );
    }
    table.render(out, "    ");
}

fn differences(out: &mut String, ranks: &Ranks) {
    for difference in ranks.differences.iter().take(LISTED) {
        let [a, b] = difference.ranks;
        let title = format!("Ranks {} and {} differ", a.rank, b.rank);
        heading(out, &title, "of two replicas, nobody can say which one is odd", DIM);
        for (id, rows) in [a, b].iter().zip(&difference.holders).filter(|(_, rows)| !rows.is_empty()) {
            let _ = writeln!(out, "  rank {} holds more:", id.rank);
            holders(out, rows);
        }
    }
}

fn divergence(out: &mut String, ranks: &Ranks) {
    let Some(d) = &ranks.first_divergence else { return };
    let time = d.time_us.map_or_else(String::new, |us| format!(", {}", duration(us)));
    let event = count(u64::from(d.tick.saturating_sub(1)));
    let text = format!("{}: {} (event {event}{time})", d.place(), d.sentence);
    heading(out, "First divergence", &text, "");
}

fn waiting(out: &mut String, ranks: &Ranks) {
    for wait in ranks.waiting.iter().take(LISTED) {
        let text = format!(
            "if ranks meet after every step, {} {} {} a step for rank {}, and {} {}{} meanwhile",
            plural(wait.ranks, "rank"),
            verb(wait.ranks, "waits", "wait"),
            duration(wait.us_per_step as u64),
            wait.for_rank,
            verb(wait.ranks, "holds", "hold"),
            bytes(wait.held_bytes),
            verb(wait.ranks, "", " each")
        );
        heading(out, "Waiting", &text, "");
    }
}

fn problems(out: &mut String, ranks: &Ranks) {
    let failed: Vec<&RankRow> = ranks.ranks.iter().filter(|row| row.error.is_some()).collect();
    let notes = notes(ranks);
    let nothing = failed.is_empty()
        && notes.is_empty()
        && ranks.missing_ranks.is_empty()
        && ranks.duplicate_ranks.is_empty()
        && ranks.skipped_files.is_empty();
    if nothing {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}Files{RESET}");
    for row in failed.iter().take(LISTED) {
        let error = clean(row.error.as_deref().unwrap_or_default());
        let _ = writeln!(out, "  {RED}rank {} could not be read{RESET}", row.rank);
        for line in wrap(&error, width() - 4) {
            let _ = writeln!(out, "    {line}");
        }
    }
    if failed.len() > LISTED {
        let _ = writeln!(out, "  {DIM}and {} more could not be read{RESET}", failed.len() - LISTED);
    }
    for (note, of) in notes.iter().take(LISTED) {
        let on = if of.len() == 1 { "rank" } else { "ranks" };
        indent(out, "  ", &format!("{on} {}: {}", ranges(of), clean(note)), DIM);
    }
    let mut line = |what: &str, list: String| {
        let _ = writeln!(out, "  {DIM}{what}{RESET} {}", shorten(&list, width() - what.len() - 3));
    };
    if !ranks.missing_ranks.is_empty() {
        line("no file for ranks", ranges(&ranks.missing_ranks));
    }
    if !ranks.duplicate_ranks.is_empty() {
        line("more than one file for ranks", ranges(&ranks.duplicate_ranks));
    }
    if !ranks.skipped_files.is_empty() {
        line("left out (no traces, or older parts):", clean(&ranks.skipped_files.join(", ")));
    }
}

/// Parts that were repaired or left out, with their ranks.
fn notes(ranks: &Ranks) -> Vec<(&str, Vec<u32>)> {
    let mut found: Vec<(&str, Vec<u32>)> = Vec::new();
    for row in readable(ranks) {
        for note in &row.notes {
            match found.iter().position(|(text, _)| text == note) {
                Some(at) => found[at].1.push(row.rank),
                None if found.len() <= LISTED => found.push((note, vec![row.rank])),
                None => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_a_row_are_a_range() {
        assert_eq!(ranges(&[5, 0, 1, 2, 9, 8, 2]), "0-2, 5, 8-9");
        assert_eq!(ranges(&[]), "");
    }
}
