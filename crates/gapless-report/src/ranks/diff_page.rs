//! Two runs of many ranks as one HTML file: the peaks of every rank before and after, the odd ranks, the holders that
//! grew over all ranks, and below that the whole difference of the rank that matters most.
//!
//! Only the flame graph of the one rank needs scripts. Nothing that comes from a trace or a command line is
//! written as markup.

use super::diff::{HolderChange, OddSide, RankDiff, RanksDiff, Sides};
use super::text::ranges;
use crate::axes::{bytes_label, bytes_step, decimal_step};
use crate::diff::pieces;
use crate::text::{bytes, percent, plural};
use gapless_page::escape_text;
use std::fmt::Write;

/// Rows of the tables that are open; the rest of the ranks is behind a click, the rest of the holders in the JSON.
const OPEN: usize = 8;
const ROWS: usize = 25;

/// The page of `diff`. `rank` is markup by [`crate::diff::body`]: the difference of the rank that [`RanksDiff::shown`]
/// names.
#[must_use]
pub fn page(diff: &RanksDiff, rank: &str) -> String {
    let mut out = String::new();
    pieces::sides(&mut out, &diff.before, &diff.after);
    if !diff.unmatched_ranks.is_empty() {
        let _ = writeln!(
            out,
            "<p class=\"hint\">Ranks in one of the runs only, or not readable: {}.</p>",
            ranges(&diff.unmatched_ranks)
        );
    }
    tiles(&mut out, diff);
    odd(&mut out, diff);
    let _ = write!(
        out,
        "<section>\n<h2>Every rank<span>peak {}, from before to after</span></h2>\n<div class=\"card-box\"><div class=\"figure\">{}</div>\n\
         <ul class=\"legend keys\"><li class=\"before\"><i></i>before</li><li class=\"after\"><i></i>after</li></ul></div>\n</section>\n",
        peak_name(diff),
        picture(diff)
    );
    by_rank(&mut out, diff);
    let (grew, shrank): (Vec<&HolderChange>, Vec<&HolderChange>) =
        diff.holders.iter().partition(|holder| holder.change > 0);
    holders(&mut out, "What grew", &grew);
    holders(&mut out, "What shrank", &shrank);
    if let Some((number, why)) = diff.shown() {
        let _ = writeln!(
            out,
            "<section>\n<h2 id=\"rank\">Rank {number}<span>{why}</span></h2>\n</section>\n{rank}"
        );
    }
    let name = |path: &str| {
        path.trim_end_matches('/').rsplit('/').next().filter(|n| !n.is_empty()).unwrap_or(path).to_owned()
    };
    pieces::framed(&format!("{} → {}", name(&diff.before), name(&diff.after)), &out)
}

fn peak_name(diff: &RanksDiff) -> &'static str {
    let known =
        diff.ranks.iter().all(|row| row.peak_reserved.before.is_some() && row.peak_reserved.after.is_some());
    if known { "reserved" } else { "allocated" }
}

fn peaks(row: &RankDiff, reserved: bool) -> (u64, u64) {
    match (reserved, row.peak_reserved.before, row.peak_reserved.after) {
        (true, Some(before), Some(after)) => (before, after),
        _ => (row.peak_allocated.before, row.peak_allocated.after),
    }
}

fn tiles(out: &mut String, diff: &RanksDiff) {
    out.push_str("<section>\n<ul class=\"tiles\">\n");
    for (name, Sides { before, after }) in
        [("worst peak reserved", diff.worst_reserved), ("worst peak allocated", diff.worst_allocated)]
    {
        let change = before.zip(after).and_then(|(before, after)| pieces::changed(before, after));
        pieces::tile(out, name, before.map(bytes), after.map(bytes), change);
    }
    let Sides { before, after } = diff.imbalance;
    let points = before.zip(after).and_then(|(before, after)| pieces::points(before, after));
    pieces::tile(out, "imbalance", before.map(percent), after.map(percent), points);
    let grew =
        |of: fn(&RankDiff) -> Option<bool>| diff.ranks.iter().filter(|row| of(row) == Some(true)).count();
    let allocated = grew(|row| Some(row.peak_allocated.after > row.peak_allocated.before));
    let _ = writeln!(
        out,
        "<li><span>ranks in both runs</span><b>{}</b><em>peak allocated grew on {allocated}</em><small>matched by number</small></li>\n</ul>\n</section>",
        diff.ranks.len()
    );
}

fn odd(out: &mut String, diff: &RanksDiff) {
    out.push_str("<section>\n<h2>Odd ranks<span>against the replicas of their group</span></h2>\n<div class=\"card-box scroll\">");
    let Sides { before, after } = &diff.odd_ranks;
    if before.is_empty() && after.is_empty() {
        out.push_str(
            "<p class=\"none\">No rank differs from its replicas, before or after.</p></div>\n</section>\n",
        );
        return;
    }
    out.push_str("<table class=\"narrow odd\">\n<thead><tr><th>Rank</th><th>When</th><th>Why</th><th>Bytes</th><th>What</th></tr></thead>\n");
    let was = |all: &[OddSide], one: &OddSide| {
        all.iter().any(|other| other.rank == one.rank && other.why == one.why)
    };
    for one in after {
        row(out, one, if was(before, one) { "before and after" } else { "after only" }, !was(before, one));
    }
    for one in before.iter().filter(|one| !was(after, one)) {
        row(out, one, "before only", false);
    }
    out.push_str("</table></div>\n</section>\n");
}

fn row(out: &mut String, odd: &OddSide, when: &str, new: bool) {
    let weight = if odd.bytes > 0 { bytes(odd.bytes) } else { String::new() };
    let _ = writeln!(
        out,
        "<tr><td>rank {}</td><td{}>{when}</td><td>{}</td><td>{weight}</td><td>{}</td></tr>",
        odd.rank,
        if new { " class=\"grew\"" } else { "" },
        odd.why.word(),
        escape_text(&odd.sentence)
    );
}

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 30.0;

/// A column for each rank: a mark where its peak was, a mark where it is, and a line between them.
fn picture(diff: &RanksDiff) -> String {
    let reserved = peak_name(diff) == "reserved";
    let all: Vec<(u64, u64)> = diff.ranks.iter().map(|row| peaks(row, reserved)).collect();
    let most = all.iter().map(|&(before, after)| before.max(after)).max().unwrap_or(1).max(1) as f64 * 1.05;
    let width = (WIDTH - LEFT - RIGHT) / all.len().max(1) as f64;
    let x = |at: usize| LEFT + at as f64 * width;
    let y = |value: u64| HEIGHT - BOTTOM - value as f64 / most * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg class=\"curves by-rank\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Peaks of every rank before and after\">"
    );
    let mut level = 0;
    while (level as f64) < most {
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(level) + 4.0,
            bytes_label(level),
            y = y(level)
        );
        level += bytes_step(most);
    }
    let (bar, gap) = (width * 0.72, width * 0.14);
    for (at, (row, &(before, after))) in diff.ranks.iter().zip(&all).enumerate() {
        let (top, low) = (y(before.max(after)), y(before.min(after)));
        let class = if after > before { "grew" } else { "shrank" };
        let _ = write!(
            out,
            "<g><title>rank {}: {} → {}</title><rect class=\"hit\" x=\"{:.2}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{:.1}\"/>\
             <rect class=\"between {class}\" x=\"{left:.2}\" y=\"{top:.1}\" width=\"{bar:.2}\" height=\"{:.1}\"/>\
             <rect class=\"mark before\" x=\"{left:.2}\" y=\"{:.1}\" width=\"{bar:.2}\" height=\"2.4\"/>\
             <rect class=\"mark after\" x=\"{left:.2}\" y=\"{:.1}\" width=\"{bar:.2}\" height=\"2.4\"/></g>",
            row.rank,
            bytes(before),
            bytes(after),
            x(at),
            HEIGHT - BOTTOM - TOP,
            low - top,
            y(before) - 1.2,
            y(after) - 1.2,
            left = x(at) + gap,
        );
    }
    let unit = decimal_step(all.len() as f64, 16.0).max(1.0) as usize;
    for (at, row) in diff.ranks.iter().enumerate().step_by(unit) {
        let _ = write!(
            out,
            "<text class=\"tick x\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(at) + width / 2.0,
            HEIGHT - BOTTOM + 18.0,
            row.rank
        );
    }
    out.push_str("</svg>");
    out
}

fn by_rank(out: &mut String, diff: &RanksDiff) {
    let mut rows: Vec<&RankDiff> = diff.ranks.iter().collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.change().unsigned_abs()), row.rank));
    out.push_str(
        "<section>\n<h2>Ranks<span>the largest change first</span></h2>\n<div class=\"card-box scroll\">",
    );
    table(out, diff, &rows[..rows.len().min(OPEN)]);
    if rows.len() > OPEN {
        let more = rows.len() - OPEN;
        let _ =
            write!(out, "<details class=\"more\"><summary>{} more</summary>", plural(more as u64, "rank"));
        table(out, diff, &rows[OPEN..]);
        out.push_str("</details>");
    }
    out.push_str("</div>\n</section>\n");
}

fn table(out: &mut String, diff: &RanksDiff, rows: &[&RankDiff]) {
    out.push_str(
        "<table class=\"narrow\">\n<thead><tr><th>Rank</th><th>Reserved before</th><th>after</th><th>change</th>\
         <th>Allocated before</th><th>after</th><th>change</th></tr></thead>\n",
    );
    let several = |rank: u32| diff.ranks.iter().filter(|row| row.rank == rank).count() > 1;
    let known = |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), bytes);
    for row in rows {
        let device = if several(row.rank) { format!(", device {}", row.device) } else { String::new() };
        let Sides { before, after } = row.peak_reserved;
        let reserved =
            before.zip(after).map_or_else(|| "<td></td>".to_owned(), |(b, a)| pieces::change_cell(b, a));
        let _ = writeln!(
            out,
            "<tr><td>rank {}{device}</td><td>{}</td><td>{}</td>{reserved}<td>{}</td><td>{}</td>{}</tr>",
            row.rank,
            known(before),
            known(after),
            bytes(row.peak_allocated.before),
            bytes(row.peak_allocated.after),
            pieces::change_cell(row.peak_allocated.before, row.peak_allocated.after)
        );
    }
    out.push_str("</table>");
}

fn holders(out: &mut String, title: &str, rows: &[&HolderChange]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<section>\n<h2>{title} over all ranks<span>the most at once, summed</span></h2>\n<div class=\"card-box scroll\"><table class=\"narrow\">\n\
         <thead><tr><th>Holder</th><th>Kind</th><th>Ranks</th><th>Before</th><th>After</th><th>Change</th></tr></thead>"
    );
    for row in rows.iter().take(ROWS) {
        let _ = writeln!(
            out,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{}</tr>",
            escape_text(&row.label),
            escape_text(&row.kind),
            row.ranks,
            bytes(row.before),
            bytes(row.after),
            pieces::change_cell(row.before, row.after)
        );
    }
    out.push_str("</table></div>\n");
    if rows.len() > ROWS {
        let _ = writeln!(
            out,
            "<p class=\"hint\">{} more: <code>--format json</code> lists up to 256.</p>",
            rows.len() - ROWS
        );
    }
    out.push_str("</section>\n");
}
