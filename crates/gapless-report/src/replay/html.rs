//! Replays as one HTML file that asks the network for nothing: the curves of all allocators in one picture, and their
//! figures.
//!
//! Markup is complete without scripts; the one it has shows values under the pointer. Nothing that comes from a trace
//! or a command line is written as markup.

use super::model::{Replay, Replayed};
use super::picture::{self, PAPERS};
use super::text::{driver_time, label, settings};
use crate::shell;
use crate::text::{bytes, count, percent, plural};
use gapless_page::{escape_json, escape_text};
use serde_json::json;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const CODE: &str = include_str!("page.js");

/// The page.
#[must_use]
pub fn page(replay: &Replay) -> String {
    let path = &replay.source.path;
    let name = path.rsplit('/').next().filter(|n| !n.is_empty()).unwrap_or(path);
    let mut facts = vec![replay.source.format.clone()];
    if !replay.source.producer.is_empty() {
        facts.push(replay.source.producer.clone());
    }
    facts.push(match replay.capacity {
        Some(capacity) => format!("on a card of {}", bytes(capacity)),
        None => "on a card of unlimited size".to_owned(),
    });
    let mut out = format!("<p class=\"about\">{}</p>\n", escape_text(&facts.join(" · ")));
    for d in replay.devices() {
        device(&mut out, d, replay.capacity);
    }
    shell::page(&format!("{name} replayed"), STYLE, &out, CODE)
}

fn device(out: &mut String, d: &Replayed, capacity: Option<u64>) {
    let facts = format!("{} · {}", plural(d.events, "event"), plural(d.allocations, "allocation"));
    let _ = write!(
        out,
        "<section>\n<h2>Device {}<span>{facts}</span></h2>\n<div class=\"card-box\">\n<div class=\"figure\">{}\
         <div class=\"tip\" hidden></div>\n<script type=\"application/json\">{}</script></div>\n",
        d.device,
        PAPERS.map(|paper| picture::svg(d, capacity, paper)).concat(),
        escape_json(&curves(d, capacity).to_string())
    );
    legend(out, d);
    out.push_str("</div>\n</section>\n");
    table(out, d, capacity.is_some());
}

/// The data of the curves for the script.
fn curves(d: &Replayed, capacity: Option<u64>) -> serde_json::Value {
    let runs: Vec<_> = d
        .runs
        .iter()
        .map(|r| {
            json!({
                "name": label(r),
                "end": r.oom.map(|oom| oom.event),
                "ticks": r.curve.ticks,
                "reserved": r.curve.reserved,
            })
        })
        .collect();
    let ticks = picture::Scale::of(d, capacity, PAPERS[0]).ticks;
    let program = d.program().map(|p| json!({ "ticks": p.curve.ticks, "allocated": p.curve.allocated }));
    json!({ "program": program, "ticks": ticks, "runs": runs })
}

fn legend(out: &mut String, d: &Replayed) {
    out.push_str("<ul class=\"legend\">\n");
    for (i, run) in d.runs.iter().enumerate() {
        let _ = writeln!(
            out,
            "<li><svg class=\"swatch c{n}\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><path class=\"line c{n}\" d=\"M0 5H26\"/></svg>\
             <b>{}</b> {} <span>{}</span></li>",
            bytes(run.peak_reserved),
            escape_text(&run.allocator),
            escape_text(&settings(run)),
            n = i % 8
        );
    }
    if let Some(run) = d.program() {
        let _ = writeln!(
            out,
            "<li><svg class=\"swatch\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><rect width=\"26\" height=\"10\" rx=\"2\"/></svg>\
             <b>{}</b> allocated <span>blocks in the program's hands, with {}</span></li>",
            bytes(run.peak_allocated),
            escape_text(&label(run))
        );
    }
    out.push_str("</ul>\n");
}

fn table(out: &mut String, d: &Replayed, carded: bool) {
    let least = d.runs.iter().any(|r| r.min_capacity.is_some());
    let mut heads = vec![
        "Allocator",
        "Peak reserved",
        "Peak allocated",
        "Fragmentation",
        "Stranded",
        "Segments",
        "Device allocs",
        "Device frees",
        "Retries",
        "Out of memory",
        "Driver time (estimate)",
    ];
    if least {
        heads.push("Smallest card");
    }
    out.push_str("<section>\n<div class=\"card-box\">\n<table>\n<thead><tr>");
    for head in &heads {
        let _ = write!(out, "<th scope=\"col\">{}</th>", explained(head));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    let most = d.runs.iter().map(|r| r.peak_reserved).max().unwrap_or(0).max(1);
    for (i, run) in d.runs.iter().enumerate() {
        let width = run.peak_reserved as f64 / most as f64 * 100.0;
        let _ = write!(
            out,
            "<tr class=\"c{}\"><td><b>{}</b><code>{}</code></td><td data-label=\"Peak reserved\"><b>{}</b><i class=\"bar\" style=\"width:{width:.1}%\"></i></td>",
            i % 8,
            escape_text(&run.allocator),
            escape_text(&settings(run)),
            bytes(run.peak_reserved)
        );
        let mut cells = vec![
            bytes(run.peak_allocated),
            percent(run.fragmentation),
            bytes(run.stranded),
            count(run.segments),
            count(run.device_allocs),
            count(run.device_frees),
            count(run.retries),
            run.oom.map_or_else(|| "no".to_owned(), |oom| format!("event {}", count(u64::from(oom.event)))),
            driver_time(run.driver_time_ms),
        ];
        if least {
            cells.push(run.min_capacity.map_or_else(String::new, bytes));
        }
        for (head, cell) in heads[2..].iter().zip(cells) {
            let failed = if *head == "Out of memory" && run.oom.is_some() { " class=\"no\"" } else { "" };
            let _ = write!(out, "<td data-label=\"{head}\"{failed}>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
    remarks(out, d, carded);
    out.push_str("</section>\n");
}

/// A head of the table with its explanation: on hover, by keyboard and by a tap.
fn explained(head: &str) -> String {
    let meaning = match head {
        "Peak reserved" => "Memory held from the device at most: the card must have it.",
        "Peak allocated" => "Bytes of blocks in the program's hands at most.",
        "Fragmentation" => "1 − peak allocated / peak reserved.",
        "Stranded" => "Free memory beside live blocks: the allocator cannot give it back.",
        "Segments" => "Pieces of memory taken from the device, at the peak.",
        "Device allocs" => "Calls that took memory from the device.",
        "Device frees" => "Calls that gave memory back.",
        "Retries" => "Times the cache was flushed to serve a request.",
        "Smallest card" => "The least memory with which this allocator serves the whole run.",
        _ => return head.to_owned(),
    };
    format!("<button type=\"button\" class=\"term\">{head}<span role=\"tooltip\">{meaning}</span></button>")
}

fn remarks(out: &mut String, d: &Replayed, carded: bool) {
    out.push_str("<ul class=\"remarks\">\n");
    for run in &d.runs {
        for remark in super::text::remarks(run, carded) {
            let class = match remark.tone {
                super::text::Tone::Good => "good",
                super::text::Tone::Bad => "bad",
                super::text::Tone::Care => "care",
            };
            let _ = writeln!(
                out,
                "<li><span class=\"mark {class}\">{}</span> {}: {}</li>",
                remark.mark,
                escape_text(&label(run)),
                escape_text(&remark.text)
            );
        }
    }
    let hints = [super::text::TIMES, super::text::STRANDED].join(" ");
    let _ = write!(out, "</ul>\n<p class=\"hint\">{hints}</p>\n");
}
