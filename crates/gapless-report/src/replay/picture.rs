//! The curves of all replays in one SVG: reserved as a line for each, the run's allocated bytes as a filled area
//! under them, the card as a dashed line, and a mark where one ran out of memory. Colours are the page's; without
//! scripts it is complete.

use super::model::{Replayed, RunInfo};
use crate::axes::{bytes_label, bytes_step, decimal_step};
use crate::text::{bytes, count};
use gapless_page::escape_text;
use std::fmt::Write;

const LEFT: f64 = 72.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 34.0;

/// A picture's own units. Screens of its kind show them about one to one, so letters keep their size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paper {
    class: &'static str,
    width: f64,
    height: f64,
    /// Marks along the events, at most.
    marks: f64,
}

/// The same picture for wide screens and for phones: the style shows the one that fits.
pub(super) const PAPERS: [Paper; 2] = [
    Paper { class: "wide", width: 1200.0, height: 440.0, marks: 8.0 },
    Paper { class: "narrow", width: 400.0, height: 300.0, marks: 2.0 },
];

/// The scales of bytes and ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) ticks: f64,
    bytes: f64,
    paper: Paper,
}

impl Scale {
    pub(super) fn of(d: &Replayed, capacity: Option<u64>, paper: Paper) -> Scale {
        let most = d.runs.iter().map(|r| r.peak_reserved).max().unwrap_or(0);
        // A card far above all curves would flatten them, so the picture leaves it out.
        let most = match capacity {
            Some(capacity) if capacity as f64 <= most as f64 * 1.6 => most.max(capacity),
            _ => most,
        };
        Scale { ticks: (d.events.max(1)) as f64, bytes: (most.max(1) as f64) * 1.06, paper }
    }

    fn x(self, tick: u32) -> f64 {
        LEFT + f64::from(tick).min(self.ticks) / self.ticks * (self.right() - LEFT)
    }

    fn y(self, bytes: u64) -> f64 {
        self.floor() - bytes as f64 / self.bytes * (self.floor() - TOP)
    }

    fn right(self) -> f64 {
        self.paper.width - RIGHT
    }

    fn floor(self) -> f64 {
        self.paper.height - BOTTOM
    }
}

/// The picture of one device.
pub(super) fn svg(d: &Replayed, capacity: Option<u64>, paper: Paper) -> String {
    let scale = Scale::of(d, capacity, paper);
    let Paper { class, width, height, .. } = paper;
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg class=\"curves {class}\" data-left=\"{LEFT}\" data-right=\"{}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Reserved bytes over the run, a line for each allocator\">",
        scale.right()
    );
    grid(&mut out, scale);
    if let Some(run) = d.program() {
        let _ = write!(out, "<path class=\"area\" d=\"{}\"/>", area(run, scale));
    }
    if let Some(capacity) = capacity.filter(|&c| c as f64 <= scale.bytes) {
        let y = scale.y(capacity);
        let _ = write!(
            out,
            "<line class=\"card\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"card-name\" x=\"{:.1}\" y=\"{:.1}\">the card: {}</text>",
            scale.right(),
            LEFT + 8.0,
            y - 6.0,
            bytes(capacity)
        );
    }
    // Later lines lie on top, so the first allocator, which the others are compared with, comes last.
    for (i, run) in d.runs.iter().enumerate().rev() {
        let line = steps(&run.curve.ticks, &run.curve.reserved, end(run, scale), scale);
        let _ = write!(
            out,
            "<path class=\"line c{}\" d=\"{line}\"><title>{}</title></path>",
            i % 8,
            escape_text(&format!("{}: peak {}", super::text::label(run), bytes(run.peak_reserved)))
        );
    }
    for (i, run) in d.runs.iter().enumerate() {
        if let Some(oom) = &run.oom {
            let (x, y) = (scale.x(oom.event), scale.y(oom.reserved));
            let _ = write!(
                out,
                "<g class=\"oom c{}\" transform=\"translate({x:.1} {y:.1})\"><circle r=\"9\"/><path d=\"M-4-4 4 4M4-4-4 4\"/><title>{}</title></g>",
                i % 8,
                escape_text(&format!(
                    "{} is out of memory at event {}",
                    super::text::label(run),
                    count(u64::from(oom.event))
                ))
            );
        }
    }
    let _ = write!(out, "<line class=\"hair\" y1=\"{TOP}\" y2=\"{:.1}\" hidden=\"\"/></svg>", scale.floor());
    out
}

/// The end of a run's curve: at its failure, or with the run.
fn end(run: &RunInfo, scale: Scale) -> u32 {
    run.oom.map_or(scale.ticks as u32, |oom| oom.event)
}

fn grid(out: &mut String, scale: Scale) {
    let unit = bytes_step(scale.bytes);
    let mut at = 0;
    while (at as f64) < scale.bytes {
        let y = scale.y(at);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            scale.right(),
            LEFT - 8.0,
            y + 4.0,
            bytes_label(at)
        );
        at += unit;
    }
    let unit = decimal_step(scale.ticks, scale.paper.marks);
    let mut tick = 0.0;
    while tick <= scale.ticks {
        let x = scale.x(tick as u32);
        let _ = write!(
            out,
            "<text class=\"tick x\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            scale.floor() + 18.0,
            count(tick as u64)
        );
        tick += unit;
    }
    let _ = write!(
        out,
        "<text class=\"tick x-name\" x=\"{:.1}\" y=\"{:.1}\">event</text>",
        scale.right(),
        scale.paper.height - 3.0
    );
}

/// A curve of stretches: level within each, straight up or down where the next begins.
fn steps(ticks: &[u32], values: &[u64], end: u32, scale: Scale) -> String {
    let mut d = String::new();
    let mut last = None;
    for (i, (&tick, &value)) in ticks.iter().zip(values).enumerate() {
        let (x, y) = (scale.x(tick), scale.y(value));
        if i == 0 {
            let _ = write!(d, "M{x:.1} {y:.1}");
        } else if last != Some(value) {
            let _ = write!(d, "H{x:.1}V{y:.1}");
        }
        last = Some(value);
    }
    if last.is_some() {
        let _ = write!(d, "H{:.1}", scale.x(end));
    }
    d
}

fn area(run: &RunInfo, scale: Scale) -> String {
    let Some(&first) = run.curve.ticks.first() else { return String::new() };
    let mut d = steps(&run.curve.ticks, &run.curve.allocated, end(run, scale), scale);
    let _ = write!(d, "V{:.1}H{:.1}Z", scale.y(0), scale.x(first));
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_straight_and_skips_what_stays_level() {
        let scale = Scale { ticks: 10.0, bytes: 100.0, paper: PAPERS[0] };
        let d = steps(&[0, 2, 4], &[50, 50, 100], 10, scale);
        assert_eq!(d.matches('V').count(), 1, "{d}");
        assert!(d.ends_with(&format!("H{:.1}", scale.right())), "{d}");
    }
}
