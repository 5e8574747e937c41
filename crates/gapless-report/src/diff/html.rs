//! Two runs as one HTML file that asks the network for nothing: both curves over each other, step by step, a flame
//! graph of differences, and the tables behind them.
//!
//! Figures and pictures need no scripts, except the flame graph, whose largest rows are in the tables. Nothing that
//! comes from a trace or a command line is written as markup.

use super::aligned::{Aligned, Series, align};
use super::pieces::{self, change_cell, changed};
use super::tree::{Branch, tree};
use super::{Change, DeviceDiff, Diff, HolderDiff};
use crate::analysis::{Analysis, DeviceAnalysis};
use crate::axes::{bytes_label, bytes_step, decimal_step};
use crate::text::{bytes, count, percent};
use gapless_page::{escape_json, escape_text};
use gapless_trace::{Tick, Trace};
use serde_json::json;
use std::fmt::Write;

/// Rows of each table; the rest is in the JSON.
const ROWS: usize = 25;

/// The page of `diff`, which compares these runs.
#[must_use]
pub fn page(diff: &Diff, before: &Analysis<'_>, after: &Analysis<'_>) -> String {
    let name = |path: &str| path.rsplit('/').next().filter(|n| !n.is_empty()).unwrap_or(path).to_owned();
    let mut out = String::new();
    pieces::sides(&mut out, &diff.before, &diff.after);
    out.push_str(&body(diff, before, after));
    pieces::framed(&format!("{} → {}", name(&diff.before), name(&diff.after)), &out)
}

/// The page without its frame, for a page that shows more than these two runs.
#[must_use]
pub fn body(diff: &Diff, before: &Analysis<'_>, after: &Analysis<'_>) -> String {
    let mut out = String::new();
    for device in &diff.unmatched_devices {
        let _ = writeln!(out, "<p class=\"hint\">Device {device} is in one of the runs only.</p>");
    }
    for d in &diff.devices {
        let of = |run: &Analysis<'_>| run.devices.iter().position(|own| own.device.device == d.device);
        if let (Some(a), Some(b)) = (of(before), of(after)) {
            device(&mut out, d, (before.trace, &before.devices[a]), (after.trace, &after.devices[b]));
        }
    }
    if !diff.settings.is_empty() {
        out.push_str("<section>\n<h2>Settings that differ</h2>\n<div class=\"card-box scroll\"><table class=\"narrow\">\n");
        for Change { name, before, after } in &diff.settings {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td><code>{}</code></td><td><code>{}</code></td></tr>",
                escape_text(name),
                escape_text(before),
                escape_text(after)
            );
        }
        out.push_str("</table></div>\n</section>\n");
    }
    out
}

type Run<'a, 't> = (&'t Trace, &'a DeviceAnalysis<'t>);

fn device(out: &mut String, d: &DeviceDiff, before: Run<'_, '_>, after: Run<'_, '_>) {
    let _ = writeln!(out, "<section>\n<h2>Device {}</h2>", d.device);
    tiles(out, d);
    out.push_str("</section>\n");
    let aligned = align(before.1, after.1);
    let note = if aligned.by_steps {
        "step i of one run lies over step i of the other"
    } else {
        "a run has no steps, so both are drawn from beginning to end"
    };
    let _ = write!(
        out,
        "<section>\n<h2>Both runs<span>{note}</span></h2>\n<div class=\"card-box\"><div class=\"figure\">{}</div>\n",
        svg(&aligned)
    );
    out.push_str(
        "<ul class=\"legend keys\"><li class=\"before\"><i></i>before, allocated</li><li class=\"before dashed\"><i></i>before, reserved</li>\
         <li class=\"after\"><i></i>after, allocated</li><li class=\"after dashed\"><i></i>after, reserved</li></ul></div>\n</section>\n",
    );
    let branches =
        tree((before.0, before.1, Tick(d.moment.before.tick)), (after.0, after.1, Tick(d.moment.after.tick)));
    flame(out, d, &branches);
    kinds(out, d);
    let (grew, shrank): (Vec<&HolderDiff>, Vec<&HolderDiff>) = d.holders.iter().partition(|h| h.change > 0);
    holders(out, "What grew", &grew);
    holders(out, "What shrank", &shrank);
    if d.holders.is_empty() {
        let _ = writeln!(out, "<p class=\"hint\">No holder differs at {}.</p>", escape_text(&d.moment.what));
    }
}

fn tiles(out: &mut String, d: &DeviceDiff) {
    out.push_str("<ul class=\"tiles\">\n");
    for Change { name, before, after } in d.peaks.iter().take(2) {
        let change = before.zip(*after).and_then(|(a, b)| changed(a, b));
        pieces::tile(out, &format!("peak {name}"), before.map(bytes), after.map(bytes), change);
    }
    let f = &d.fragmentation;
    let change = f.before.zip(f.after).and_then(|(a, b)| pieces::points(a, b));
    pieces::tile(out, "fragmentation", f.before.map(percent), f.after.map(percent), change);
    let g = &d.growth_per_step;
    let slope = |value: Option<f64>| value.map(|v| v.max(0.0) as u64);
    let change = slope(g.before).zip(slope(g.after)).and_then(|(a, b)| changed(a, b));
    pieces::tile(out, "growth per step", slope(g.before).map(bytes), slope(g.after).map(bytes), change);
    out.push_str("</ul>\n");
}

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 30.0;

fn svg(aligned: &Aligned) -> String {
    let all = [&aligned.before, &aligned.after];
    let most =
        all.iter().flat_map(|s| s.allocated.iter().chain(&s.reserved)).max().copied().unwrap_or(1).max(1);
    let most = most as f64 * 1.05;
    let x = |at: f64| LEFT + (at - aligned.start) / (aligned.end - aligned.start) * (WIDTH - LEFT - RIGHT);
    let y = |value: u64| HEIGHT - BOTTOM - value as f64 / most * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg class=\"curves\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Allocated and reserved bytes of both runs\">"
    );
    let mut at = 0;
    while (at as f64) < most {
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(at) + 4.0,
            bytes_label(at),
            y = y(at)
        );
        at += bytes_step(most);
    }
    if aligned.by_steps {
        let unit = decimal_step(aligned.end, 12.0).max(1.0);
        let mut step = 0.0;
        while step < aligned.end {
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.1}\"/><text class=\"tick\" x=\"{2:.1}\" y=\"{3:.1}\">step {step}</text>",
                x(step),
                HEIGHT - BOTTOM,
                x(step) + 4.0,
                HEIGHT - BOTTOM + 18.0
            );
            step += unit;
        }
    }
    for (class, series) in [("before", all[0]), ("after", all[1])] {
        for (dashed, values) in [(" dashed", &series.reserved), ("", &series.allocated)] {
            if !values.is_empty() {
                let _ = write!(
                    out,
                    "<path class=\"run {class}{dashed}\" d=\"{}\"/>",
                    line(series, values, &x, &y)
                );
            }
        }
    }
    out.push_str("</svg>");
    out
}

fn line(series: &Series, values: &[u64], x: &impl Fn(f64) -> f64, y: &impl Fn(u64) -> f64) -> String {
    let mut d = String::new();
    for (i, (&at, &value)) in series.x.iter().zip(values).enumerate() {
        let _ = if i == 0 {
            write!(d, "M{:.1} {:.1}", x(at), y(value))
        } else {
            write!(d, "H{:.1}V{:.1}", x(at), y(value))
        };
    }
    d
}

fn flame(out: &mut String, d: &DeviceDiff, branches: &[Branch]) {
    let data = json!({
        "text": branches.iter().map(|b| b.text.as_str()).collect::<Vec<_>>(),
        "parent": branches.iter().map(|b| b.parent).collect::<Vec<_>>(),
        "before": branches.iter().map(|b| b.before).collect::<Vec<_>>(),
        "after": branches.iter().map(|b| b.after).collect::<Vec<_>>(),
        "width": branches.iter().map(|b| b.width).collect::<Vec<_>>(),
    });
    let _ = write!(
        out,
        "<section>\n<h2>Who holds more, who holds less<span>at the peak of {}; a branch is as wide as the larger of both runs</span></h2>\n\
         <div class=\"card-box flame-box\"><div class=\"flame-bar\"><input type=\"search\" placeholder=\"Search the branches\" aria-label=\"Search the branches\">\
         <button type=\"button\">All</button><span class=\"scale\"><i class=\"shrank\"></i>less <i></i>same <i class=\"grew\"></i>more</span></div>\
         <div class=\"flame\"></div><p class=\"flame-said\" aria-live=\"polite\"></p>\n<script type=\"application/json\">{}</script></div>\n</section>\n",
        escape_text(&d.moment.what),
        escape_json(&data.to_string())
    );
}

fn kinds(out: &mut String, d: &DeviceDiff) {
    let most = d.kinds.iter().map(|c| c.before.max(c.after)).max().unwrap_or(0).max(1);
    if d.kinds.iter().all(|c| c.before == c.after) {
        return;
    }
    out.push_str(
        "<section>\n<h2>Kinds<span>inferred</span></h2>\n<div class=\"card-box scroll\"><table class=\"narrow\">\n\
         <thead><tr><th>Kind</th><th>Before</th><th>After</th><th>Change</th></tr></thead>\n",
    );
    for Change { name, before, after } in d.kinds.iter().filter(|c| c.before.max(c.after) > 0) {
        let bar = |value: u64, class: &str| {
            format!(
                "<i class=\"bar {class}\" style=\"width:{:.1}%\"></i>",
                value as f64 / most as f64 * 100.0
            )
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}{}</td><td>{}{}</td>{}</tr>",
            escape_text(name),
            bytes(*before),
            bar(*before, "before"),
            bytes(*after),
            bar(*after, "after"),
            change_cell(*before, *after)
        );
    }
    out.push_str("</table></div>\n</section>\n");
}

fn holders(out: &mut String, title: &str, rows: &[&HolderDiff]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<section>\n<h2>{title}</h2>\n<div class=\"card-box scroll\"><table class=\"narrow\">\n\
         <thead><tr><th>Holder</th><th>Kind</th><th>Before</th><th>After</th><th>Blocks</th><th>Change</th></tr></thead>"
    );
    for h in rows.iter().take(ROWS) {
        let _ = writeln!(
            out,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td><td>{} → {}</td>{}</tr>",
            escape_text(&h.label),
            escape_text(&h.kind),
            bytes(h.before),
            bytes(h.after),
            count(h.before_count),
            count(h.after_count),
            change_cell(h.before, h.after)
        );
    }
    out.push_str("</table></div>\n");
    if rows.len() > ROWS {
        let _ = writeln!(
            out,
            "<p class=\"hint\">{} more, {} in all: <code>--format json</code> lists them.</p>",
            rows.len() - ROWS,
            bytes(rows.iter().skip(ROWS).map(|h| h.change.unsigned_abs()).sum())
        );
    }
    out.push_str("</section>\n");
}
