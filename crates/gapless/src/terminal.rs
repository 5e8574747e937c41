//! Width and characters of the terminal that shows a text.

use gapless_report::text;
use std::io::{self, IsTerminal};

/// Lets texts be as wide as the terminal that shows them, or as COLUMNS says; without either they keep to 80 columns.
pub(crate) fn use_terminal_width() {
    if let Some(columns) = columns(io::stdout().is_terminal()) {
        text::set_width(columns);
    }
}

/// The columns of a line, if known: from COLUMNS, or of the terminal if there is one.
pub(crate) fn columns(is_terminal: bool) -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let measured = || is_terminal.then(|| ratatui::crossterm::terminal::size().ok()).flatten();
    said.filter(|&columns| columns > 0).or_else(|| measured().map(|(columns, _)| usize::from(columns)))
}

/// True if texts must be ASCII: the locale has no UTF-8, or the terminal says that it is a dumb one. An unset locale
/// does not count, because most containers set none.
pub(crate) fn is_ascii() -> bool {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = value("LC_ALL").or_else(|| value("LC_CTYPE")).or_else(|| value("LANG"));
    let is_narrow = |locale: String| {
        let name = locale.split('@').next().unwrap_or_default();
        // macOS names the character set alone.
        let charset = name.split_once('.').map_or(name, |(_, charset)| charset);
        charset.to_ascii_lowercase().replace('-', "") != "utf8"
    };
    locale.is_some_and(is_narrow) || value("TERM").is_some_and(|term| term == "dumb")
}

/// A styled text for output: within the width of a line, and in ASCII if the terminal needs that.
pub(crate) fn shown(styled: &str) -> String {
    let plain = if is_ascii() { text::ascii(styled) } else { styled.to_owned() };
    text::fit(&plain, text::width())
}
