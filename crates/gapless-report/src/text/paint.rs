//! Styles and readable numbers that all texts share.
//!
//! Styles are written as ANSI sequences; the caller that prints decides whether they stay.

use gapless_trace::{Bytes, Micros};

pub(crate) const BOLD: &str = "\x1b[1m";
pub(crate) const DIM: &str = "\x1b[2m";
pub(crate) const RED: &str = "\x1b[1;31m";
pub(crate) const GREEN: &str = "\x1b[1;32m";
pub(crate) const YELLOW: &str = "\x1b[1;33m";
pub(crate) const BLUE: &str = "\x1b[1;34m";
pub(crate) const CYAN: &str = "\x1b[36m";
pub(crate) const RESET: &str = "\x1b[0m";

/// Names come from untrusted files: control characters must not reach the terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `values` over time as at most `columns` bars, each the most within its stretch; a full bar is `top`.
pub(crate) fn bars(values: &[u64], top: u64, columns: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let columns = columns.min(values.len());
    (0..columns)
        .map(|column| {
            let stretch = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
            let most = stretch.iter().copied().max().unwrap_or(0);
            BARS[(most as f64 / top.max(1) as f64 * 8.0).round().min(8.0) as usize]
        })
        .collect()
}

pub(crate) fn bytes(value: u64) -> String {
    Bytes(value).to_string()
}

pub(crate) fn duration(us: u64) -> String {
    Micros(us).to_string()
}

pub(crate) fn percent(value: f64) -> String {
    let hundredths = value * 100.0;
    let digits = usize::from(hundredths.abs() < 9.95);
    format!("{hundredths:.digits$} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
    }
}
