//! Many ranks as Markdown, for pull requests and chats: the figures first, then the odd ranks, then all ranks, folded.

use super::diff::{HolderChange, RankDiff, RanksDiff};
use super::findings::findings;
use super::model::{OddHolder, RankRow, Ranks};
use super::text::ranges;
use crate::check::{Noticed, Subject};
use crate::markdown::{Side, Table, code, details, escape, finding};
use crate::text::{bytes, count, duration, percent, plural, shorten, verb};
use std::fmt::Write;

use Side::{Left, Right};

/// Labels longer than this make a table unreadable.
const LABEL: usize = 60;
/// Ranks that a folded table lists.
const LISTED: usize = 32;

/// The ranks as Markdown.
#[must_use]
pub fn markdown(ranks: &Ranks) -> String {
    let mut out = String::new();
    let numbers: std::collections::BTreeSet<u32> = ranks.ranks.iter().map(|row| row.rank).collect();
    let of = plural(numbers.len() as u64, "rank");
    let _ = writeln!(out, "### Memory of {of}: {}\n", code(&ranks.path));
    out.push_str(&figures(ranks));
    let _ = write!(out, "\n{}", below(ranks));
    out
}

/// The subject of a check of many ranks: their files, and the odd ones as findings.
#[must_use]
pub fn subject(ranks: &Ranks) -> Subject {
    let several = |rank: u32| ranks.ranks.iter().filter(|row| row.rank == rank).count() > 1;
    let place = |rank: u32, device: Option<u32>| match device {
        Some(device) if several(rank) => format!("rank {rank}, device {device}"),
        _ => format!("rank {rank}"),
    };
    let noticed = findings(ranks)
        .into_iter()
        .map(|(rank, finding)| Noticed { rank: Some(rank), place: place(rank, finding.device), finding })
        .collect();
    let files = ranks.ranks.iter().map(|row| (row.rank, row.file.clone())).collect();
    Subject { files, noticed, details: format!("\n{}", below(ranks)) }
}

fn figures(ranks: &Ranks) -> String {
    let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let rank = |rank: Option<u32>| known(rank.map(|rank| format!("rank {rank}")));
    let peak = |wanted: Option<u32>, of: fn(&RankRow) -> Option<u64>| {
        let rows = ranks.ranks.iter().filter(|row| Some(row.rank) == wanted);
        known(rows.filter_map(of).max().map(bytes))
    };
    let mut table =
        Table::new(&[("", Left), ("rank", Left), ("peak reserved", Right), ("peak allocated", Right)]);
    for (name, of) in [("worst", ranks.worst_rank), ("median", ranks.median_rank)] {
        let (reserved, allocated) = (peak(of, |row| row.peak_reserved), peak(of, |row| row.peak_allocated));
        table.row(&[name.to_owned(), rank(of), reserved, allocated]);
    }
    let mut out = table.finish();
    let imbalance = known(ranks.imbalance.map(percent));
    let _ = writeln!(
        out,
        "\nImbalance {imbalance}: highest peak {} / mean peak - 1 ({}).",
        ranks.imbalance_of,
        escape(&ranks.numbering)
    );
    out
}

/// The odd ranks, then the ranks one by one.
fn below(ranks: &Ranks) -> String {
    let mut out = String::new();
    let odd = findings(ranks);
    if odd.is_empty() {
        out.push_str(match ranks.groups.iter().map(|group| group.ranks.len()).max().unwrap_or(0) {
            0 | 1 => "No odd rank: every rank holds another model, so none can be compared.\n",
            2 => "No odd rank: of two replicas, neither failed, holds much more or is much slower.\n",
            _ => {
                "No odd rank: no rank differs from its replicas by more than they differ among themselves.\n"
            }
        });
    }
    for (rank, one) in odd.iter().take(LISTED) {
        out.push_str(&finding(one, &format!(" (rank {rank})")));
    }
    if odd.len() > LISTED {
        let _ = writeln!(out, "\nand {} more odd ranks: `--format json` lists all", odd.len() - LISTED);
    }
    for difference in ranks.differences.iter().take(LISTED) {
        let [a, b] = difference.ranks;
        let title =
            format!("Ranks {} and {} differ: of two replicas, either may be the odd one", a.rank, b.rank);
        let both = [a, b].into_iter().zip(&difference.holders).filter(|(_, rows)| !rows.is_empty());
        let body: String =
            both.map(|(id, rows)| format!("Rank {} holds more:\n\n{}\n", id.rank, beyond(rows))).collect();
        let _ = write!(out, "\n{}", details(&title, &body));
    }
    if let Some(d) = &ranks.first_divergence {
        let _ = writeln!(out, "\nFirst divergence: {}: {}.", d.place(), d.sentence);
    }
    for wait in ranks.waiting.iter().take(LISTED) {
        let _ = writeln!(
            out,
            "\nIf ranks meet after every step, {} {} {} a step for rank {}, and {} {}{} meanwhile.",
            plural(wait.ranks, "rank"),
            verb(wait.ranks, "waits", "wait"),
            duration(wait.us_per_step as u64),
            wait.for_rank,
            verb(wait.ranks, "holds", "hold"),
            bytes(wait.held_bytes),
            verb(wait.ranks, "", " each")
        );
    }
    for text in &ranks.not_compared {
        let _ = writeln!(out, "\nNote: {}.", escape(text));
    }
    out.push_str(&problems(ranks));
    let _ = write!(out, "\n{}", rows(ranks));
    out
}

fn beyond(holders: &[OddHolder]) -> String {
    let mut table = Table::new(&[("more", Right), ("peer", Right), ("kind", Left), ("where", Left)]);
    for h in holders {
        let label = code(&shorten(&h.label, LABEL));
        table.row(&[bytes(h.bytes), bytes(h.peer_bytes), escape(&h.kind), label]);
    }
    table.finish()
}

/// Files that could not be read, and ranks without one.
fn problems(ranks: &Ranks) -> String {
    let mut out = String::new();
    let failed: Vec<&RankRow> = ranks.ranks.iter().filter(|row| row.error.is_some()).collect();
    for row in failed.iter().take(LISTED) {
        let error = row.error.as_deref().unwrap_or_default();
        let _ = writeln!(out, "* rank {} could not be read: {}", row.rank, escape(error));
    }
    if failed.len() > LISTED {
        let _ = writeln!(out, "* and {} more could not be read", failed.len() - LISTED);
    }
    if !ranks.missing_ranks.is_empty() {
        let _ = writeln!(out, "* no file for ranks {}", ranges(&ranks.missing_ranks));
    }
    if !ranks.duplicate_ranks.is_empty() {
        let _ = writeln!(out, "* more than one file for ranks {}", ranges(&ranks.duplicate_ranks));
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

/// The ranks with the highest peaks, folded.
fn rows(ranks: &Ranks) -> String {
    let mut list: Vec<&RankRow> = ranks.ranks.iter().filter(|row| row.error.is_none()).collect();
    list.sort_by_key(|row| (std::cmp::Reverse(row.peak_reserved.max(row.peak_allocated)), row.rank));
    let columns = [
        ("rank", Right),
        ("device", Right),
        ("peak reserved", Right),
        ("peak allocated", Right),
        ("fragmentation", Right),
        ("steps", Right),
        ("file", Left),
    ];
    let mut table = Table::new(&columns);
    let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    for row in list.iter().take(LISTED) {
        table.row(&[
            row.rank.to_string(),
            known(row.device.map(|device| device.to_string())),
            known(row.peak_reserved.map(bytes)),
            known(row.peak_allocated.map(bytes)),
            known(row.fragmentation.map(percent)),
            known(row.steps.map(count)),
            code(&row.file),
        ]);
    }
    let mut body = table.finish();
    if list.len() > LISTED {
        let _ = writeln!(body, "\nand {} more: `--format json` lists all", list.len() - LISTED);
    }
    details("Ranks, the highest peak first", &body)
}

/// The difference between two runs as Markdown; at most `top` holders that grew and `top` that shrank.
#[must_use]
pub fn diff(diff: &RanksDiff, top: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "### Memory: {} → {}\n", code(&diff.before), code(&diff.after));
    let mut table = Table::new(&[("", Left), ("before", Right), ("after", Right), ("change", Right)]);
    let unknown = || "unknown".to_owned();
    for (name, sides) in
        [("worst peak reserved", diff.worst_reserved), ("worst peak allocated", diff.worst_allocated)]
    {
        let shown = |value: Option<u64>| value.map_or_else(unknown, bytes);
        let change = sides.before.zip(sides.after).map_or_else(String::new, |(a, b)| signed(a, b));
        table.row(&[name.to_owned(), shown(sides.before), shown(sides.after), change]);
    }
    let share = |value: Option<f64>| value.map_or_else(unknown, percent);
    let imbalance = ["imbalance".to_owned(), share(diff.imbalance.before), share(diff.imbalance.after)];
    table.row(&[&imbalance[..], &[String::new()]].concat());
    out.push_str(&table.finish());
    if !diff.unmatched_ranks.is_empty() {
        let ranks = ranges(&diff.unmatched_ranks);
        let _ = writeln!(out, "\nOnly one of the runs has ranks {ranks}, or they could not be read.");
    }
    for (when, all) in [("before", &diff.odd_ranks.before), ("after", &diff.odd_ranks.after)] {
        for odd in all.iter().take(LISTED) {
            let why = odd.why.word();
            let _ = writeln!(out, "\nOdd {when}: rank {}, {why}: {}.", odd.rank, escape(&odd.sentence));
        }
    }
    let mut changed: Vec<&RankDiff> = diff.ranks.iter().filter(|row| row.change() != 0).collect();
    changed.sort_by_key(|row| (std::cmp::Reverse(row.change().unsigned_abs()), row.rank));
    if changed.is_empty() {
        out.push_str("\nNo peak differs on any rank.\n");
    } else {
        let title =
            format!("Peaks differ on {} of {}", changed.len(), plural(diff.ranks.len() as u64, "rank"));
        let _ = write!(out, "\n{}", details(&title, &by_rank(&changed)));
    }
    let (grew, shrank): (Vec<&HolderChange>, Vec<&HolderChange>) =
        diff.holders.iter().partition(|holder| holder.change > 0);
    for (title, rows) in [("What grew", grew), ("What shrank", shrank)] {
        if !rows.is_empty() {
            let title = format!("{title}: the most at once, summed over all ranks");
            let _ = write!(out, "\n{}", details(&title, &holders(&rows, top)));
        }
    }
    out
}

fn by_rank(changed: &[&RankDiff]) -> String {
    let columns = [("rank", Right), ("peak", Left), ("before", Right), ("after", Right), ("change", Right)];
    let mut table = Table::new(&columns);
    for row in changed.iter().take(LISTED) {
        let (of, before, after) = match (row.peak_reserved.before, row.peak_reserved.after) {
            (Some(before), Some(after)) => ("reserved", before, after),
            _ => ("allocated", row.peak_allocated.before, row.peak_allocated.after),
        };
        let change = signed(before, after);
        table.row(&[row.rank.to_string(), of.to_owned(), bytes(before), bytes(after), change]);
    }
    let mut body = table.finish();
    if changed.len() > LISTED {
        let _ = writeln!(body, "\nand {} more: `--format json` lists all", changed.len() - LISTED);
    }
    body
}

fn holders(rows: &[&HolderChange], top: usize) -> String {
    let columns = [
        ("change", Right),
        ("before", Right),
        ("after", Right),
        ("ranks", Right),
        ("kind", Left),
        ("where", Left),
    ];
    let mut table = Table::new(&columns);
    for row in rows.iter().take(top) {
        table.row(&[
            signed(row.before, row.after),
            bytes(row.before),
            bytes(row.after),
            count(row.ranks),
            escape(&row.kind),
            code(&shorten(&row.label, LABEL)),
        ]);
    }
    let mut body = table.finish();
    if rows.len() > top {
        let _ = writeln!(body, "\nand {} more: --top or --format json", rows.len() - top);
    }
    body
}

fn signed(before: u64, after: u64) -> String {
    match after.cmp(&before) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", bytes(after - before)),
        std::cmp::Ordering::Less => format!("-{}", bytes(before - after)),
    }
}
