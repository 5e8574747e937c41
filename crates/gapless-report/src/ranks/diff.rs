//! Two runs of many ranks: rank by rank, and holders that grew over all of them. A value with the JSON contract
//! `gapless.ranks-diff/1`, and its text.
//!
//! Ranks are matched by number, and by device if a rank has several. Holders are compared by where they were asked
//! for (stack, or size if there are no stacks) and by the most that they held at once; a sum over all ranks.

use super::held::Held;
use super::odd::Why;
use super::summary::Summary;
use super::text::ranges;
use super::{Run, assemble};
use crate::text::table::{Align, Table};
use crate::text::{BOLD, DIM, RED, RESET, bytes, clean, percent, plural, shorten, width, wrap};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::fmt::Write;

pub const SCHEMA: &str = "gapless.ranks-diff/1";

/// The most holders in the JSON.
const HOLDERS: usize = 256;
/// Ranks that the text lists.
const LISTED: usize = 16;

/// The difference between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RanksDiff {
    pub schema: &'static str,
    pub before: String,
    pub after: String,
    /// The ranks that both have, by rank.
    pub ranks: Vec<RankDiff>,
    /// Ranks that only one run has, or that could not be read in one of them.
    pub unmatched_ranks: Vec<u32>,
    /// The highest peaks of the matched ranks.
    pub worst_reserved: Sides<Option<u64>>,
    pub worst_allocated: Sides<Option<u64>>,
    /// Highest peak / mean peak - 1.
    pub imbalance: Sides<Option<f64>>,
    /// Ranks that differ from their replicas, in each run as a whole.
    pub odd_ranks: Sides<Vec<OddSide>>,
    /// Holders whose bytes changed, summed over all matched ranks, the largest change first.
    pub holders: Vec<HolderChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sides<T> {
    pub before: T,
    pub after: T,
}

/// A rank that is odd in one of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OddSide {
    pub rank: u32,
    pub why: Why,
    pub bytes: u64,
    /// For people.
    pub sentence: String,
}

impl RanksDiff {
    /// The rank whose difference is worth a look, and why: one that became odd, else the one whose peak allocated
    /// grew most. Reserved bytes do not count, because they vary between ranks that do the same.
    #[must_use]
    pub fn shown(&self) -> Option<(u32, &'static str)> {
        let matched = |rank: u32| self.ranks.iter().any(|row| row.rank == rank);
        let was =
            |one: &OddSide| self.odd_ranks.before.iter().any(|b| b.rank == one.rank && b.why == one.why);
        let became = self.odd_ranks.after.iter().find(|one| matched(one.rank) && !was(one));
        if let Some(one) = became {
            return Some((one.rank, "it became odd"));
        }
        let grown = |row: &&RankDiff| row.peak_allocated.after as i64 - row.peak_allocated.before as i64;
        let most = self.ranks.iter().rev().max_by_key(grown)?;
        let why = if grown(&most) > 0 { "its peak allocated grew most" } else { "no peak allocated grew" };
        Some((most.rank, why))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankDiff {
    pub rank: u32,
    pub device: u32,
    pub peak_reserved: Sides<Option<u64>>,
    pub peak_allocated: Sides<u64>,
    pub growth_per_step: Sides<Option<f64>>,
}

impl RankDiff {
    /// After less before, of the peak that changed more.
    pub(super) fn change(&self) -> i64 {
        let (before, after, _) = self.changed();
        after as i64 - before as i64
    }

    /// The peak that changed more, before and after, and true if it is that of allocated bytes though
    /// reserved ones are known.
    fn changed(&self) -> (u64, u64, bool) {
        let allocated = (self.peak_allocated.before, self.peak_allocated.after);
        match (self.peak_reserved.before, self.peak_reserved.after) {
            (Some(before), Some(after)) if before.abs_diff(after) >= allocated.0.abs_diff(allocated.1) => {
                (before, after, false)
            }
            (reserved, _) => (allocated.0, allocated.1, reserved.is_some()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HolderChange {
    pub label: String,
    pub kind: String,
    pub before: u64,
    pub after: u64,
    pub change: i64,
    /// The number of ranks on which it differs.
    pub ranks: u64,
}

/// Compares the run `after` with the run `before`.
#[must_use]
pub fn compare(before: &Run, after: &Run) -> RanksDiff {
    let mut matched: Vec<(u32, &Summary, &Summary)> = Vec::new();
    let mut unmatched: Vec<u32> = Vec::new();
    for file in &after.files {
        let old = before.files.iter().find(|old| old.rank == file.rank);
        let old: &[Summary] = old.map_or(&[], |old| &old.devices);
        let before = matched.len();
        for new in &file.devices {
            let same = old.iter().find(|old| old.device == new.device);
            // One process may see its only card under another number.
            let only = (old.len() == 1 && file.devices.len() == 1).then(|| &old[0]);
            matched.extend(same.or(only).map(|old| (file.rank, old, new)));
        }
        if matched.len() == before {
            unmatched.push(file.rank);
        }
    }
    let has = |rank: u32| matched.iter().any(|(other, ..)| *other == rank);
    unmatched.extend(before.files.iter().map(|file| file.rank).filter(|&rank| !has(rank)));
    unmatched.sort_unstable();
    unmatched.dedup();
    let worst = |of: fn(&Summary) -> Option<u64>| Sides {
        before: matched.iter().filter_map(|(_, old, _)| of(old)).max(),
        after: matched.iter().filter_map(|(_, _, new)| of(new)).max(),
    };
    let old: Vec<&Summary> = matched.iter().map(|(_, old, _)| *old).collect();
    let new: Vec<&Summary> = matched.iter().map(|(_, _, new)| *new).collect();
    RanksDiff {
        schema: SCHEMA,
        before: before.path.clone(),
        after: after.path.clone(),
        ranks: matched.iter().map(|&(rank, old, new)| row(rank, old, new)).collect(),
        unmatched_ranks: unmatched,
        worst_reserved: worst(|s| s.peak_reserved),
        worst_allocated: worst(|s| Some(s.peak_allocated)),
        imbalance: Sides { before: assemble::imbalance(&old), after: assemble::imbalance(&new) },
        odd_ranks: Sides { before: odd(before), after: odd(after) },
        holders: holders(&matched),
    }
}

fn odd(run: &Run) -> Vec<OddSide> {
    let side = |odd: super::model::OddRank| OddSide {
        rank: odd.rank,
        why: odd.why,
        bytes: odd.bytes,
        sentence: odd.sentence,
    };
    assemble::report(run).odd_ranks.into_iter().map(side).collect()
}

fn row(rank: u32, old: &Summary, new: &Summary) -> RankDiff {
    RankDiff {
        rank,
        device: new.device,
        peak_reserved: Sides { before: old.peak_reserved, after: new.peak_reserved },
        peak_allocated: Sides { before: old.peak_allocated, after: new.peak_allocated },
        growth_per_step: Sides { before: old.growth_per_step, after: new.growth_per_step },
    }
}

fn holders(matched: &[(u32, &Summary, &Summary)]) -> Vec<HolderChange> {
    let mut all: FxHashMap<(u64, bool), (HolderChange, u64)> = FxHashMap::default();
    for (_, old, new) in matched {
        let mut of_rank: FxHashMap<(u64, bool), [Option<&Held>; 2]> = FxHashMap::default();
        for (side, summary) in [old, new].into_iter().enumerate() {
            for held in &summary.held {
                of_rank.entry((held.key, held.lasting)).or_default()[side] = Some(held);
            }
        }
        for (origin, sides) in of_rank {
            let [before, after] = sides.map(|held| held.map_or(0, |held| held.bytes));
            let Some(named) = sides[1].or(sides[0]) else { continue };
            let (sum, most) = all.entry(origin).or_insert_with(|| {
                let (label, kind) = (String::new(), String::new());
                (HolderChange { label, kind, before: 0, after: 0, change: 0, ranks: 0 }, 0)
            });
            sum.before = sum.before.saturating_add(before);
            sum.after = sum.after.saturating_add(after);
            sum.ranks += u64::from(before != after);
            if named.bytes >= *most {
                *most = named.bytes;
                (sum.label, sum.kind) = (named.label.clone(), named.kind.to_owned());
            }
        }
    }
    let mut rows: Vec<HolderChange> = all
        .into_values()
        .map(|(sum, _)| HolderChange { change: sum.after as i64 - sum.before as i64, ..sum })
        .filter(|row| row.change != 0)
        .collect();
    rows.sort_by(|a, b| {
        b.change.unsigned_abs().cmp(&a.change.unsigned_abs()).then_with(|| a.label.cmp(&b.label))
    });
    rows.truncate(HOLDERS);
    rows
}

/// For programs.
///
/// # Errors
/// Never for a diff; serde's signature.
pub fn json(diff: &RanksDiff) -> serde_json::Result<String> {
    serde_json::to_string_pretty(diff).map(|text| text + "\n")
}

/// For a terminal; at most `top` holders that grew and `top` that shrank.
#[must_use]
pub fn text(diff: &RanksDiff, top: usize) -> String {
    let mut out = String::new();
    let name = |path: &str| shorten(&clean(path), width() - 8);
    let _ = writeln!(out, "{DIM}before{RESET}  {}", name(&diff.before));
    let _ = writeln!(out, "{DIM}after{RESET}   {BOLD}{}{RESET}", name(&diff.after));
    if !diff.unmatched_ranks.is_empty() {
        let what = "ranks in one of the runs only, or not readable:";
        let list = shorten(&ranges(&diff.unmatched_ranks), width() - what.len() - 1);
        let _ = writeln!(out, "{DIM}{what} {list}{RESET}");
    }
    if diff.ranks.is_empty() {
        let _ = writeln!(out, "\nno rank is in both runs");
        return out;
    }
    let _ = writeln!(out, "\n{BOLD}All ranks{RESET}  {DIM}{} in both runs{RESET}", diff.ranks.len());
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right]);
    table.row(DIM, ["", "before", "after", "change"].map(str::to_owned).to_vec());
    for (name, sides) in
        [("worst peak reserved", diff.worst_reserved), ("worst peak allocated", diff.worst_allocated)]
    {
        table.row("", line(name, sides.before, sides.after));
    }
    let share = |value: Option<f64>| value.map_or("unknown".to_owned(), percent);
    let imbalance = diff.imbalance;
    table.row("", vec!["imbalance".to_owned(), share(imbalance.before), share(imbalance.after)]);
    table.render(&mut out, "  ");
    odd_ranks(&mut out, diff);
    by_rank(&mut out, diff);
    let (grew, shrank): (Vec<&HolderChange>, Vec<&HolderChange>) =
        diff.holders.iter().partition(|holder| holder.change > 0);
    list(&mut out, "What grew", &grew, RED, top);
    list(&mut out, "What shrank", &shrank, "\x1b[32m", top);
    out
}

fn line(name: &str, before: Option<u64>, after: Option<u64>) -> Vec<String> {
    let shown = |value: Option<u64>| value.map_or("unknown".to_owned(), bytes);
    let change = before.zip(after).map_or_else(String::new, |(before, after)| signed(before, after));
    vec![name.to_owned(), shown(before), shown(after), change]
}

fn signed(before: u64, after: u64) -> String {
    match after.cmp(&before) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", bytes(after - before)),
        std::cmp::Ordering::Less => format!("-{}", bytes(before - after)),
    }
}

fn odd_ranks(out: &mut String, diff: &RanksDiff) {
    for (when, all) in [("before", &diff.odd_ranks.before), ("after", &diff.odd_ranks.after)] {
        for (i, odd) in all.iter().take(LISTED).enumerate() {
            if i == 0 {
                let _ = writeln!(out, "\n{BOLD}Odd ranks {when}{RESET}");
            }
            let _ = writeln!(out, "  rank {}  {}", odd.rank, odd.why.word());
            for line in wrap(&clean(&odd.sentence), width() - 4) {
                let _ = writeln!(out, "    {DIM}{line}{RESET}");
            }
        }
        if all.len() > LISTED {
            let _ = writeln!(out, "  {DIM}and {} more: --format json lists all{RESET}", all.len() - LISTED);
        }
    }
}

fn by_rank(out: &mut String, diff: &RanksDiff) {
    let mut changed: Vec<&RankDiff> = diff.ranks.iter().filter(|row| row.change() != 0).collect();
    if changed.is_empty() {
        let _ = writeln!(out, "\n  {DIM}no peak differs on any rank{RESET}");
        return;
    }
    changed.sort_by_key(|row| (std::cmp::Reverse(row.change().unsigned_abs()), row.rank));
    let _ = writeln!(out, "\n{BOLD}Ranks{RESET}  {DIM}peaks, the largest change first{RESET}");
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right]);
    for row in changed.iter().take(LISTED) {
        let (before, after, is_allocated) = row.changed();
        let what = if is_allocated { ", allocated" } else { "" };
        table.row("", line(&format!("rank {}{what}", row.rank), Some(before), Some(after)));
    }
    table.render(out, "  ");
    if changed.len() > LISTED {
        let _ =
            writeln!(out, "  {DIM}and {} more of {} ranks{RESET}", changed.len() - LISTED, diff.ranks.len());
    }
}

fn list(out: &mut String, title: &str, rows: &[&HolderChange], style: &'static str, top: usize) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{BOLD}{title}{RESET}  {DIM}the most at once, summed over all ranks{RESET}");
    let mut table =
        Table::new(&[Align::Right, Align::Right, Align::Left, Align::Left, Align::Left]).names(4, 16);
    for row in rows.iter().take(top) {
        table.row(
            style,
            vec![
                format!("{}{}", if row.change > 0 { '+' } else { '-' }, bytes(row.change.unsigned_abs())),
                format!("{} → {}", bytes(row.before), bytes(row.after)),
                format!("on {}", plural(row.ranks, "rank")),
                row.kind.clone(),
                shorten(&clean(&row.label), 48),
            ],
        );
    }
    table.render(out, "  ");
    if rows.len() > top {
        let _ = writeln!(out, "  {DIM}and {} more: --top or --format json{RESET}", rows.len() - top);
    }
}
