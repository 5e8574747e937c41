//! Styles and words that the texts of an answer share.

use crate::text::{visible, width, wrap};
use std::fmt::Write;

pub(super) use crate::text::{BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, clean};

/// The columns of a bar across the page.
pub(super) fn bar_width() -> usize {
    width().saturating_sub(8).min(72)
}

/// A style for each component, so that bar and table belong together.
pub(super) fn style(component: &str) -> &'static str {
    match component {
        "weights" => "\x1b[34m",
        "autocast_weights" | "master_copies" => "\x1b[94m",
        "gradients" => "\x1b[36m",
        "optimizer_state" => "\x1b[35m",
        "optimizer_temporaries" => "\x1b[95m",
        "loss_head" => "\x1b[33m",
        "temporaries" | "gathered" => "\x1b[31m",
        "kv_cache" => "\x1b[93m",
        "inputs" | "workspaces" | "rounding" => "\x1b[90m",
        _ => "\x1b[32m",
    }
}

/// `attention_activations` as one reads it.
pub(super) fn words(component: &str) -> String {
    component.replace('_', " ").replace("kv cache", "KV cache")
}

pub(super) fn billions(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{count}"),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.2} B", count as f64 / 1e9),
        _ => format!("{:.2} T", count as f64 / 1e12),
    }
}

/// Words wrapped to the page.
pub(super) fn paragraph(out: &mut String, first: &str, rest: &str, text: &str, style: &str) {
    let room = width().saturating_sub(visible(first).max(visible(rest)));
    for (i, line) in wrap(text, room).iter().enumerate() {
        let lead = if i == 0 { first } else { rest };
        let _ = writeln!(out, "{lead}{style}{line}{}", if style.is_empty() { "" } else { RESET });
    }
}

/// A time in the unit that suits it.
pub(super) fn seconds(s: f64) -> String {
    if s >= 10.0 {
        format!("{s:.1} s")
    } else if s >= 1.0 {
        format!("{s:.2} s")
    } else if s >= 1e-3 {
        format!("{:.1} ms", s * 1e3)
    } else {
        format!("{:.1} µs", s * 1e6)
    }
}
