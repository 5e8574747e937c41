//! What the texts share: styles, and numbers as people read them.
//!
//! Styles are written as ANSI sequences; whoever prints decides whether they stay.

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

/// An integer with thin groups of three: 190,112.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// "1 event", "2 events", "1 class", "2 classes", "1 batch", "2 batches", "1 copy", "2 copies".
#[must_use]
pub fn plural(number: u64, noun: &str) -> String {
    let number_text = count(number);
    if number == 1 {
        return format!("{number_text} {noun}");
    }
    let ends = |all: &[&str]| all.iter().any(|end| noun.ends_with(end));
    match noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u'])) {
        Some(stem) => format!("{number_text} {stem}ies"),
        None if ends(&["s", "x", "ch", "sh"]) => format!("{number_text} {noun}es"),
        None => format!("{number_text} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
    }

    #[test]
    fn one_is_singular_and_all_else_plural() {
        let all = |noun| [0, 1, 2, 1000].map(|n| plural(n, noun));
        assert_eq!(all("event"), ["0 events", "1 event", "2 events", "1,000 events"]);
        assert_eq!(all("batch")[1..3], ["1 batch", "2 batches"]);
        assert_eq!(all("process")[1..3], ["1 process", "2 processes"]);
        assert_eq!(all("copy")[1..3], ["1 copy", "2 copies"]);
        assert_eq!(all("day")[1..3], ["1 day", "2 days"]);
        assert_eq!(all("cache flush")[1..3], ["1 cache flush", "2 cache flushes"]);
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(
            [count(7), count(1_000), count(26_389), count(1_234_567)],
            ["7", "1,000", "26,389", "1,234,567"]
        );
    }
}
