//! A plan for people, programs and pictures.

use super::{Planned, gap};
use crate::failure::Failure;
use anyhow::Result;
use gapless_trace::Bytes;
use gapless_trace::numbers::plural;
use serde_json::json;
use std::fmt::Write;

const SCHEMA: &str = "gapless.plan/1";
/// The most rectangles of a picture. Viewers become slow with more.
const PICTURE_LIMIT: usize = 100_000;

/// "1 buffer", "2 buffers".
pub(super) fn buffers(count: usize) -> String {
    plural(count as u64, "buffer")
}

pub(super) fn text(planned: &Planned) -> String {
    let solution = &planned.solution;
    let mut out = String::new();
    let exact = |bytes: Bytes| format!("{bytes}  ({} B)", bytes.0);
    let _ = writeln!(out, "\x1b[1m{}\x1b[0m  {}", planned.name, buffers(planned.problem.len()));
    let _ = writeln!(out, "  peak         \x1b[1m{}\x1b[0m", exact(solution.plan.peak));
    let _ = writeln!(out, "  lower bound  {}", exact(solution.lower_bound));
    let proof = if solution.proven_optimal() { "  proven optimal" } else { "" };
    let _ = writeln!(out, "  gap          {}{proof}", gap(&solution.plan, solution.lower_bound));
    if let Some(moved) = planned.moved {
        let _ = writeln!(out, "  moved        {moved} of {}", buffers(planned.problem.len()));
    }
    let _ = writeln!(out, "  time         {:.1} ms", planned.took.as_secs_f64() * 1e3);
    if let Some(capacity) = planned.capacity {
        let answer = match solution.fits {
            Some(true) => "\x1b[1;32mfits\x1b[0m".to_owned(),
            Some(false) => format!("\x1b[1;31mdoes not fit\x1b[0m, and no plan can: at least {}", solution.lower_bound),
            None => "\x1b[1;33mno plan found in time\x1b[0m, and no proof that there is none: give it more --time-limit".to_owned(),
        };
        let _ = writeln!(out, "  capacity     {}: {answer}", exact(capacity));
    }
    if !solution.conflict.is_empty() {
        let conflict = match solution.conflict.len() {
            1 => "This buffer cannot lie in it".to_owned(),
            many => format!("These {many} buffers cannot lie in it together"),
        };
        let _ = writeln!(out, "\n  {conflict}:");
        for &index in solution.conflict.iter().take(20) {
            let b = &planned.problem.buffers()[index];
            let life = b.lifetime;
            let _ = writeln!(
                out,
                "    {}  {}  alive in [{}, {})",
                planned.problem.name(index),
                b.size,
                life.start,
                life.end
            );
        }
        if solution.conflict.len() > 20 {
            let _ = writeln!(out, "    and {} more: --format json lists all", solution.conflict.len() - 20);
        }
    }
    out
}

pub(super) fn json(planned: &Planned) -> Result<String> {
    let solution = &planned.solution;
    let buffers: Vec<_> = planned
        .problem
        .buffers()
        .iter()
        .zip(&solution.plan.offsets)
        .enumerate()
        .map(|(index, (b, offset))| {
            json!({
                "id": planned.problem.name(index),
                "lower": b.lifetime.start,
                "upper": b.lifetime.end,
                "size": b.size.0,
                "offset": offset.0,
            })
        })
        .collect();
    let conflict: Vec<String> = solution.conflict.iter().map(|&index| planned.problem.name(index)).collect();
    let value = json!({
        "schema": SCHEMA,
        "path": planned.name,
        "peak": solution.plan.peak.0,
        "lower_bound": solution.lower_bound.0,
        "proven_optimal": solution.proven_optimal(),
        "capacity": planned.capacity.map(|c| c.0),
        "fits": solution.fits,
        "time_ms": planned.took.as_secs_f64() * 1e3,
        "effort": solution.effort,
        "moved": planned.moved,
        "conflict": conflict,
        "buffers": buffers,
    });
    Ok(serde_json::to_string(&value)? + "\n")
}

/// Time to the right, offsets upward; one rectangle a buffer, its tone by its size.
pub(super) fn svg(planned: &Planned) -> Result<String> {
    const WIDTH: f64 = 1200.0;
    const HEIGHT: f64 = 640.0;
    const LEFT: f64 = 90.0;
    const TOP: f64 = 24.0;
    let (problem, solution) = (&planned.problem, &planned.solution);
    if problem.len() > PICTURE_LIMIT {
        return Err(Failure::new(
            format!("{} buffers are too many for a picture", problem.len()),
            "take a part of them (--steps), or --format csv",
        )
        .into());
    }
    let lifetimes = problem.buffers().iter().map(|b| b.lifetime);
    let first = lifetimes.clone().map(|l| l.start).min().unwrap_or(0);
    let last = lifetimes.map(|l| l.end).max().unwrap_or(1);
    let top = planned.capacity.map_or(0, |c| c.0).max(solution.plan.peak.0).max(1) as f64;
    let x = |time: i64| LEFT + (time - first) as f64 / (last - first).max(1) as f64 * WIDTH;
    let y = |offset: u64| TOP + HEIGHT - offset as f64 / top * HEIGHT;
    let mut out = String::new();
    let (full_width, full_height) = (LEFT + WIDTH + 24.0, TOP + HEIGHT + 40.0);
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {full_width} {full_height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">"
    );
    let _ = writeln!(
        out,
        "<style>:root{{color-scheme:light dark}} text{{fill:#555}} .l{{stroke:#8888}} .b{{stroke:#fff5;stroke-width:.5}} \
         @media(prefers-color-scheme:dark){{text{{fill:#aaa}} .b{{stroke:#0006}}}}</style>"
    );
    let title = format!(
        "{}: peak {}, bound {}, gap {}",
        planned.name,
        solution.plan.peak,
        solution.lower_bound,
        gap(&solution.plan, solution.lower_bound)
    );
    let _ = writeln!(out, "<title>{}</title>", xml(&title));
    for (index, (b, offset)) in problem.buffers().iter().zip(&solution.plan.offsets).enumerate() {
        let (hue, light) = tone(b.size.0);
        for piece in b.pieces() {
            let (left, right) = (x(piece.start), x(piece.end));
            let (upper, lower) = (y(offset.0 + b.size.0), y(offset.0));
            let _ = writeln!(
                out,
                "<rect class=\"b\" x=\"{left:.2}\" y=\"{upper:.2}\" width=\"{:.2}\" height=\"{:.2}\" \
                 fill=\"hsl({hue} 45% {light}%)\"><title>{}: {} at {}, [{}, {})</title></rect>",
                right - left,
                lower - upper,
                xml(&problem.name(index)),
                b.size,
                offset.0,
                piece.start,
                piece.end
            );
        }
    }
    let mut line = |bytes: Bytes, name: &str| {
        let at = y(bytes.0);
        let _ = writeln!(
            out,
            "<line class=\"l\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.2}\" y2=\"{at:.2}\"/>",
            LEFT + WIDTH
        );
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.2}\" text-anchor=\"end\">{bytes}</text>",
            LEFT - 8.0,
            at + 4.0
        );
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.2}\" text-anchor=\"end\">{name}</text>",
            LEFT + WIDTH,
            at - 4.0
        );
    };
    line(Bytes(0), "");
    line(solution.plan.peak, "peak");
    if let Some(capacity) = planned.capacity.filter(|c| *c != solution.plan.peak) {
        line(capacity, "capacity");
    }
    let base = TOP + HEIGHT + 20.0;
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{base}\">{first}</text>");
    let _ = writeln!(out, "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{last}</text>", LEFT + WIDTH);
    out.push_str("</svg>\n");
    Ok(out)
}

/// A hue and a lightness: equal sizes look equal, neighbours in size differ in lightness too.
fn tone(size: u64) -> (u64, u64) {
    let mixed = size.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (200 + (mixed >> 56) * 120 / 256, 42 + (mixed >> 48 & 255) * 26 / 256)
}

fn xml(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect::<String>()
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
