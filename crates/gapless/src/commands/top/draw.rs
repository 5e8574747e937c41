//! The parts that views are made of: texts of a width, bars, sparklines, areas. Pure, and readable without colour.

use gapless_trace::Bytes;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Styles by meaning; all plain if the user wants no colour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Palette {
    is_colored: bool,
}

impl Palette {
    pub(crate) fn new(is_colored: bool) -> Palette {
        Palette { is_colored }
    }

    fn color(self, color: Color) -> Style {
        if self.is_colored { Style::new().fg(color) } else { Style::new() }
    }

    pub(crate) fn live(self) -> Style {
        self.color(Color::Cyan)
    }

    pub(crate) fn reserved(self) -> Style {
        self.color(Color::Blue)
    }

    pub(crate) fn others(self) -> Style {
        self.color(Color::Yellow)
    }

    pub(crate) fn quiet(self) -> Style {
        if self.is_colored {
            Style::new().fg(Color::DarkGray)
        } else {
            Style::new().add_modifier(Modifier::DIM)
        }
    }

    pub(crate) fn warning(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

pub(crate) const LIVE: char = '█';
pub(crate) const RESERVED: char = '▒';
pub(crate) const OTHERS: char = '░';
pub(crate) const FREE: char = '·';

/// The columns that a text takes.
pub(crate) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cut to `width` columns, with a sign at the cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 0);
    let mut one = [0; 4];
    for c in text.chars() {
        let more = width_of(c.encode_utf8(&mut one));
        if used + more >= width {
            break;
        }
        out.push(c);
        used += more;
    }
    if width > 0 {
        out.push('…');
    }
    out
}

/// Cut or filled with spaces to `width` columns.
pub(crate) fn left(text: &str, width: usize) -> String {
    let mut out = cut(text, width);
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(width_of(&out))));
    out
}

pub(crate) fn right(text: &str, width: usize) -> String {
    let out = cut(text, width);
    let mut padded = " ".repeat(width.saturating_sub(width_of(&out)));
    padded.push_str(&out);
    padded
}

pub(crate) fn bytes(count: u64) -> String {
    Bytes(count).to_string()
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A count a second: `0`, `12.3`, `1.2k`, `45M`.
pub(crate) fn rate(value: f64) -> String {
    let short = |value: f64, unit: &str| {
        if value < 10.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
    };
    match value {
        v if v <= 0.0 => "0".to_owned(),
        v if v < 999.5 => short(v, ""),
        v if v < 999_500.0 => short(v / 1e3, "k"),
        v => short(v / 1e6, "M"),
    }
}

/// 1234567 as 1,234,567.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time that has passed: `12 s`, `3 min`, `2 h 05 min`, `4 d 02 h`.
pub(crate) fn duration(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=3599 => format!("{} min", seconds / 60),
        3600..=86_399 => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A command line without the folder of its program.
pub(crate) fn command(text: &str) -> String {
    let (program, rest) = text.split_once(' ').unwrap_or((text, ""));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program);
    if rest.is_empty() { name.to_owned() } else { format!("{name} {rest}") }
}

/// A card as a bar of `width` columns: live, reserved beyond that, others, free.
pub(crate) fn bar(width: usize, total: u64, parts: [u64; 3], palette: Palette) -> Vec<Span<'static>> {
    let styles = [palette.live(), palette.reserved(), palette.others(), palette.quiet()];
    let signs = [LIVE, RESERVED, OTHERS, FREE];
    let (mut sum, mut drawn, mut spans) = (0u64, 0usize, Vec::new());
    for (at, part) in parts.into_iter().chain([u64::MAX]).enumerate() {
        sum = sum.saturating_add(part);
        let end = if total == 0 && at < 3 { 0.0 } else { (sum as f64 / total.max(1) as f64).min(1.0) };
        let end = ((end * width as f64).round() as usize).clamp(drawn, width);
        let text: String = std::iter::repeat_n(signs[at], end - drawn).collect();
        spans.push(Span::styled(text, styles[at]));
        drawn = end;
    }
    spans
}

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// `values` in `width` columns, each the maximum of its values; aligned right if there are fewer values.
fn columns<T: Copy + Default>(values: &[T], width: usize, most: impl Fn(T, T) -> T) -> Vec<Option<T>> {
    let count = values.len();
    let of = |column: usize| {
        let part = if count < width {
            let at = (column + count).checked_sub(width)?;
            at..at + 1
        } else {
            column * count / width..(column + 1) * count / width
        };
        values.get(part).map(|part| part.iter().copied().fold(T::default(), &most))
    };
    (0..width).map(of).collect()
}

/// A line of small bars, from 0 to `top`.
pub(crate) fn spark(values: &[u64], width: usize, top: u64) -> String {
    let sign = |value: Option<u64>| match value {
        None => ' ',
        Some(0) => EIGHTHS[1],
        Some(value) => EIGHTHS[((value as f64 / top.max(1) as f64 * 8.0).ceil() as usize).clamp(1, 8)],
    };
    columns(values, width, u64::max).into_iter().map(sign).collect()
}

/// Live below and reserved above it, as an area of `width` by `height`, from 0 to `top`.
pub(crate) fn area(
    values: &[(u64, u64)],
    (width, height): (usize, usize),
    top: u64,
    palette: Palette,
) -> Vec<Line<'static>> {
    let columns = columns(values, width, |a, b| (a.0.max(b.0), a.1.max(b.1)));
    let eighths = |value: u64| (value as f64 / top.max(1) as f64 * (8 * height) as f64).round() as usize;
    let mut lines = Vec::with_capacity(height);
    for row in (0..height).rev() {
        let mut spans: Vec<Span<'static>> = Vec::new();
        for column in &columns {
            let (live, reserved) = column.unwrap_or_default();
            let (live, reserved) = (eighths(live), eighths(reserved));
            let (sign, style) = if live > 8 * row {
                (EIGHTHS[(live - 8 * row).min(8)], palette.live())
            } else if reserved >= 8 * row + 4 {
                (RESERVED, palette.reserved())
            } else {
                (' ', Style::new())
            };
            match spans.last_mut() {
                Some(last) if last.style == style => last.content.to_mut().push(sign),
                _ => spans.push(Span::styled(sign.to_string(), style)),
            }
        }
        lines.push(Line::from(spans));
    }
    lines
}

/// Keys and their actions, for the line at the bottom.
pub(crate) fn keys(list: &[(&'static str, &'static str)], palette: Palette) -> Vec<Span<'static>> {
    list.iter()
        .flat_map(|(key, what)| {
            [
                Span::styled(format!(" {key}"), palette.strong()),
                Span::styled(format!(" {what} "), palette.quiet()),
            ]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_keep_to_their_width() {
        assert_eq!(
            (cut("abcdef", 4), cut("abc", 4), cut("abc", 0)),
            ("abc…".into(), "abc".into(), String::new())
        );
        assert_eq!((left("ab", 4), right("ab", 4)), ("ab  ".into(), "  ab".into()));
        // A sign that takes two columns.
        for width in 0..8 {
            assert!(width_of(&cut("漢字漢字", width)) <= width);
            assert_eq!(width_of(&left("漢字漢字", width)), width);
        }
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0.0, 3.21, 42.0, 999.0, 1234.0, 45_678.0, 2e6].map(rate),
            ["0", "3.2", "42", "999", "1.2k", "46k", "2.0M"]
        );
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let seconds = |s: u64| duration(s * 1_000_000);
        assert_eq!(
            [5, 119, 120, 3725, 90_000].map(seconds),
            ["5 s", "119 s", "2 min", "1 h 02 min", "1 d 01 h"]
        );
        assert_eq!(command("/usr/bin/python3 train.py"), "python3 train.py");
        assert_eq!(command("/usr/bin/"), "/usr/bin/");
    }

    #[test]
    fn a_bar_is_full_where_the_card_is() {
        let text = |total, parts| -> String {
            bar(8, total, parts, Palette::new(false)).iter().map(|span| span.content.as_ref()).collect()
        };
        assert_eq!(text(80, [20, 20, 20]), "██▒▒░░··");
        assert_eq!(text(80, [0, 0, 0]), "········");
        assert_eq!(text(80, [80, 0, 0]), "████████");
        assert_eq!(text(80, [u64::MAX, u64::MAX, 1]), "████████");
        assert_eq!(text(0, [0, 0, 0]), "········");
    }

    #[test]
    fn a_sparkline_ends_with_the_newest() {
        assert_eq!(spark(&[0, 4, 8], 5, 8), "  ▁▄█");
        assert_eq!(spark(&[1, 8, 1, 1, 1, 1], 3, 8), "█▁▁", "the most of each pair");
        assert_eq!(spark(&[], 3, 8), "   ");
        assert_eq!(spark(&[u64::MAX], 1, 0), "█");
        assert_eq!(spark(&[5], 0, 8), "");
    }
}
