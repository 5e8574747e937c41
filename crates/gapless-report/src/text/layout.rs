//! The width of a line, and text made to fit: wrapped at spaces, or shortened in the middle.
//!
//! Widths are columns of a terminal: a style takes none, and a CJK character takes two.

use super::paint::{DIM, RESET};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The columns of a line if nothing else is known: files, pipes and logs.
pub const DEFAULT_WIDTH: usize = 80;
/// Longer lines are hard to read on any screen.
const WIDEST: usize = 120;

static COLUMNS: AtomicUsize = AtomicUsize::new(DEFAULT_WIDTH);

/// Figures and their names need this many columns.
const NARROWEST: usize = 40;

/// Sets the width of all texts made from now on, at least 40 and at most 120 columns. A program calls it when it knows
/// that its output goes to a terminal of that width.
pub fn set_width(columns: usize) {
    COLUMNS.store(columns.clamp(NARROWEST, WIDEST), Ordering::Relaxed);
}

/// The columns of a line.
#[must_use]
pub fn width() -> usize {
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

/// The whole text within `width` columns: a line that is wider goes on below, further in. Texts that fit are returned
/// unchanged. Words stay whole, so that a path or a command can be copied.
#[must_use]
pub fn fit(text: &str, width: usize) -> String {
    if text.lines().all(|line| visible(line) <= width) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        if visible(line.trim_end()) <= width {
            out.push_str(line);
            continue;
        }
        let spaces = |text: &str| text.len() - text.trim_start_matches(' ').len();
        let lead = spaces(line);
        let below = " ".repeat((lead + 2).min(width / 2));
        out.push_str(&line[..lead]);
        let (mut used, mut is_first) = (lead, true);
        let mut rest = line[lead..].trim_end_matches('\n');
        while !rest.is_empty() {
            let gap = spaces(rest);
            let end = rest[gap..].find(' ').map_or(rest.len(), |end| gap + end);
            let (space, word) = rest[..end].split_at(gap);
            if !is_first && used + gap + visible(word) > width {
                out.push('\n');
                out.push_str(&below);
                used = below.len();
            } else {
                out.push_str(space);
                used += gap;
            }
            out.push_str(word);
            used += visible(word);
            is_first = false;
            rest = &rest[end..];
        }
        if line.ends_with('\n') {
            out.push('\n');
        }
    }
    out
}

/// The same text in ASCII, for a terminal that shows nothing else. Most characters keep their one column.
#[must_use]
pub fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            _ if c.is_ascii() => out.push(c),
            '→' => out.push_str("->"),
            '←' => out.push_str("<-"),
            '±' => out.push_str("+-"),
            '≤' => out.push_str("<="),
            '≥' => out.push_str(">="),
            'Ψ' => out.push_str("Psi"),
            _ => out.push(match c {
                '·' | '−' | '–' | '—' | '─' | '━' | '▃' => '-',
                '×' => 'x',
                '›' => '>',
                '…' => '~',
                'µ' | 'μ' => 'u',
                '▁' | '░' => '.',
                '▂' | '▒' => ':',
                '▄' => '=',
                '▅' => '+',
                '▆' => '*',
                '▇' => '%',
                '█' | '▓' => '#',
                '│' | '┃' | '▏' | '▎' | '▍' | '▌' | '▋' | '▊' | '▉' => '|',
                '└' | '┘' | '┌' | '┐' | '├' | '┤' | '┬' | '┴' | '┼' | '╭' | '╮' | '╯' | '╰' => {
                    '+'
                }
                '▲' | '↑' => '^',
                '▼' | '↓' => 'v',
                '▶' => '>',
                '\u{a0}' => ' ',
                '‘' | '’' => '\'',
                '“' | '”' => '"',
                _ => '?',
            }),
        }
    }
    out
}

/// Breaks `text` at spaces into lines of at most `width` columns; a word that is longer is broken too.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
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

/// At most `width` columns. The text behind a name (`model.layers.*.weight · train.py:26 step`) goes first. Of a path
/// of names (`train.py:26 step › model.py:9 forward`) the outer ones go next, since the innermost tells holders
/// apart; then the middle, since file names say most at their ends.
#[must_use]
pub fn shorten(text: &str, width: usize) -> String {
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
    if let Some(shortened) = shorten_place(text, width) {
        return shortened;
    }
    middle(text, width)
}

/// `model.py:59 forward`: the number of the line is kept, and the longer of file and function is shortened first.
fn shorten_place(text: &str, width: usize) -> Option<String> {
    let (place, function) = text.split_once(' ')?;
    let (file, line) = place.rsplit_once(':')?;
    if line.is_empty() || !line.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    const LEAST: usize = 4;
    let room = width.checked_sub(line.len() + 2).filter(|&room| room >= 2 * LEAST)?;
    let (wide_file, wide_function) = (file.width(), function.width());
    let half = room / 2;
    let (for_file, for_function) = if wide_file <= half {
        (wide_file, room - wide_file)
    } else if wide_function <= half {
        (room - wide_function, wide_function)
    } else {
        (half, room - half)
    };
    Some(format!("{}:{line} {}", middle(file, for_file), middle(function, for_function)))
}

/// Leaves out the middle, because the end of a file's name says most.
fn middle(text: &str, width: usize) -> String {
    if text.width() <= width || width < 4 {
        return text.to_owned();
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

/// A line to paste into a shell: if it is too long it goes on after a backslash, at the first column, which a shell
/// reads as one word.
pub(crate) fn command(out: &mut String, lead: &str, line: &str, style: &str) {
    let mut rest = line;
    let mut lead = lead;
    while visible(lead) + visible(rest) > width() {
        let room = width() - visible(lead) - 1;
        let fitting = taken(rest.chars(), room).len();
        // Lines break after a comma, as a person would break them.
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
    fn a_line_that_is_too_wide_goes_on_below_and_a_long_word_stays_whole() {
        let path = "/a/path/".repeat(12);
        let text = format!("short\n  {}\n  {path} b\n", "a few words ".repeat(12).trim_end());
        let fitted = fit(&text, DEFAULT_WIDTH);
        let lines: Vec<&str> = fitted.lines().collect();
        assert_eq!(lines[0], "short");
        assert!(lines.iter().all(|line| line.width() <= DEFAULT_WIDTH || line.contains(&path)), "{fitted}");
        assert!(lines[2].starts_with("    w"), "{fitted}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&fitted), words(&text), "nothing is lost");
        assert_eq!(fit("a  b\n", 80), "a  b\n");
    }

    #[test]
    fn ascii_is_ascii_whatever_comes() {
        let all = "a · b × c › d … ± 2 % → µs ▁▂▃▄▅▆▇█▒░ ─━└▲ é 日本 Ψ";
        let plain = ascii(all);
        assert!(plain.is_ascii(), "{plain}");
        assert!(plain.starts_with("a - b x c > d ~ +- 2 % -> us .:-=+*%#:. --+^ ? ?? Psi"), "{plain}");
        // Bars rise in eight different letters.
        let bars: std::collections::BTreeSet<char> = ascii("▁▂▃▄▅▆▇█").chars().collect();
        assert_eq!(bars.len(), 8);
    }

    #[test]
    fn the_number_of_a_line_survives_every_width() {
        let name = "a_module_with_a_very_long_name.py:1234 SomeClass.a_function_with_a_very_long_name";
        for width in 16..name.len() {
            let short = shorten(name, width);
            assert!(short.width() <= width && short.contains(":1234 "), "{width}: {short}");
        }
        assert_eq!(shorten("x.py:7 a_function_with_a_very_long_name", 24), "x.py:7 a_fun…y_long_name");
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
