//! How wide a line may be, and text made to fit: wrapped at spaces, or shortened in the middle.
//!
//! Widths are columns of a terminal: a style takes none, and a CJK character takes two.

use super::paint::{DIM, RESET};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The columns of a line where nothing else is known: files, pipes and logs.
pub const DEFAULT_WIDTH: usize = 80;
/// Longer lines are hard to read on any screen.
const WIDEST: usize = 120;

static COLUMNS: AtomicUsize = AtomicUsize::new(DEFAULT_WIDTH);

/// Sets the width of all texts made from now on, at least 80 and at most 120 columns. A program calls it when it knows
/// that its output goes to a terminal of that width.
pub fn set_width(columns: usize) {
    COLUMNS.store(columns.clamp(DEFAULT_WIDTH, WIDEST), Ordering::Relaxed);
}

/// The columns of a line.
pub(crate) fn width() -> usize {
    COLUMNS.load(Ordering::Relaxed)
}

/// The columns that `text` takes.
pub(crate) fn visible(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let first = parts.next().map_or(0, UnicodeWidthStr::width);
    first + parts.map(|part| part.split_once('m').map_or(0, |(_, rest)| rest.width())).sum::<usize>()
}

/// `text` wrapped, with `margin` before each line.
pub(crate) fn indent(out: &mut String, margin: &str, text: &str, style: &str) {
    for line in wrap(text, width() - margin.len()) {
        let _ = writeln!(out, "{margin}{style}{line}{RESET}");
    }
}

/// `lead`, which may be styled, and dim `facts` with dots between them; facts that do not fit go below the first.
pub(crate) fn facts(out: &mut String, lead: &str, facts: &[String]) {
    let room = width().saturating_sub(visible(lead));
    let mut lines: Vec<String> = Vec::new();
    for fact in facts {
        match lines.last_mut() {
            Some(line) if visible(line) + 3 + visible(fact) <= room => {
                line.push_str(" · ");
                line.push_str(fact);
            }
            _ => lines.extend(wrap(fact, room)),
        }
    }
    let below = " ".repeat(visible(lead));
    for (i, line) in lines.iter().enumerate() {
        let _ = writeln!(out, "{}{DIM}{line}{RESET}", if i == 0 { lead } else { &below });
    }
    if lines.is_empty() {
        let _ = writeln!(out, "{}", lead.trim_end());
    }
}

/// Breaks `text` at spaces into lines of at most `width` columns; a word that is longer is broken too.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in with_units(text).iter().flat_map(|word| pieces(word, width)) {
        let length = visible(&word);
        if used > 0 && used + 1 + length > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(&word);
        used += length;
    }
    if used > 0 {
        lines.push(line);
    }
    lines
}

/// The words of `text`; a number and its unit are one, because a line must not break between them.
fn with_units(text: &str) -> Vec<String> {
    const UNITS: [&str; 9] = ["%", "B", "KiB", "MiB", "GiB", "TiB", "s", "ms", "µs"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', '.', ':', ')']));
        match words.last_mut() {
            Some(last) if is_unit && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// `word` in pieces of at most `width` columns. A styled word stays whole: those are short.
fn pieces(word: &str, width: usize) -> Vec<String> {
    if visible(word) <= width || width == 0 || word.contains('\x1b') {
        return vec![word.to_owned()];
    }
    let mut all = vec![String::new()];
    let mut used = 0;
    for c in word.chars() {
        let length = c.width().unwrap_or(0);
        if used + length > width {
            all.push(String::new());
            used = 0;
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
        }
        used += length;
    }
    all
}

/// At most `width` columns. What stands behind a name (`model.layers.*.weight · train.py:26 step`) goes first. Of a
/// path of names (`train.py:26 step › model.py:9 forward`) the outer ones go next, since the innermost tells holders
/// apart; then the middle, since file names say most at their ends.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    const INWARDS: &str = " › ";
    const BEHIND: &str = " · ";
    if text.width() <= width || width < 4 {
        return text.to_owned();
    }
    if let Some((name, _)) = text.split_once(BEHIND) {
        return shorten(name, width);
    }
    if let Some((_, inner)) = text.split_once(INWARDS) {
        return shorten(inner, width);
    }
    let head = (width - 1) / 3;
    let tail = width - 1 - head;
    let start = taken(text.chars(), head);
    let end: String = taken(text.chars().rev(), tail).chars().rev().collect();
    format!("{start}…{end}")
}

/// The characters of `text` that fit into `width` columns.
fn taken(text: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    text.take_while(|c| {
        used += c.width().unwrap_or(0);
        used <= width
    })
    .collect()
}

/// A line to paste into a shell: where it is too long it goes on after a backslash, at the first column, which a shell
/// reads as one word.
pub(crate) fn command(out: &mut String, lead: &str, line: &str, style: &str) {
    let mut rest = line;
    let mut lead = lead;
    while visible(lead) + visible(rest) > width() {
        let room = width() - visible(lead) - 1;
        let fitting = taken(rest.chars(), room).len();
        // After a comma, where a person would break it.
        let at = rest[..fitting].rfind(',').map_or(fitting, |comma| comma + 1);
        if at == 0 {
            break;
        }
        let _ = writeln!(out, "{lead}{style}{}\\{RESET}", &rest[..at]);
        rest = &rest[at..];
        lead = "";
    }
    let _ = writeln!(out, "{lead}{style}{rest}{RESET}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_spaces_and_long_words_are_broken() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("aaaaaaa b", 3), ["aaa", "aaa", "a b"]);
        assert!(wrap("  ", 3).is_empty());
        assert_eq!(
            wrap("it is (51 %) of 1.50 GiB", 10),
            ["it is", "(51 %) of", "1.50 GiB"],
            "with their units"
        );
        assert_eq!(wrap("\x1b[1;31maa\x1b[0m bb cc", 5).len(), 2, "styles take no room");
        assert_eq!(wrap("日本 日本", 5), ["日本", "日本"], "two columns each");
    }

    #[test]
    fn names_lose_their_middle() {
        assert_eq!(shorten("abcdefghij", 10), "abcdefghij");
        assert_eq!(shorten("abcdefghijk", 10), "abc…fghijk");
        let wide = shorten("日本語日本語日本語", 9);
        assert!(wide.width() <= 9 && wide.contains('…'), "{wide}");
    }

    #[test]
    fn a_command_that_is_too_long_goes_on_after_a_backslash() {
        let line = format!("X={},{}", "a".repeat(60), "b".repeat(60));
        let mut out = String::new();
        command(&mut out, "  1  ", &line, "");
        let plain = out.replace(RESET, "");
        assert!(plain.lines().all(|line| line.width() <= DEFAULT_WIDTH), "{plain}");
        assert_eq!(plain.trim_start_matches("  1  ").replace("\\\n", "").trim_end(), line);
        assert!(plain.lines().nth(1).is_some_and(|line| line.starts_with('b')), "{plain}");
    }

    #[test]
    fn facts_that_do_not_fit_go_below_the_first() {
        let list: Vec<String> = (0..6).map(|i| format!("fact number {i} of six")).collect();
        let mut out = String::new();
        facts(&mut out, "Device 0  ", &list);
        let plain = out.replace(DIM, "").replace(RESET, "");
        assert!(
            plain.lines().count() > 1 && plain.lines().all(|line| line.width() <= DEFAULT_WIDTH),
            "{plain}"
        );
        assert!(plain.lines().skip(1).all(|line| line.starts_with("          fact")), "{plain}");
    }
}
