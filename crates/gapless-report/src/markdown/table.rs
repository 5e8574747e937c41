//! The pieces of Markdown: escaped text, code, tables and folded sections.

use std::fmt::Write;

/// `text` as text: no character of it is markup.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // An @ would call a user, and a # would name an issue.
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '@' | '!' => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// `text` in a code span. HTML, because a backtick or a bar in `text` would end a span of Markdown or a cell.
pub(crate) fn code(text: &str) -> String {
    format!("<code>{}</code>", escape(text))
}

/// A section that is folded until a reader opens it.
pub(crate) fn details(summary: &str, body: &str) -> String {
    format!("<details><summary>{}</summary>\n\n{}\n\n</details>\n", escape(summary), body.trim_end())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A table. Cells are Markdown already: escape names before they come here.
#[derive(Debug)]
pub(crate) struct Table {
    out: String,
}

impl Table {
    pub(crate) fn new(columns: &[(&str, Side)]) -> Table {
        let mut out = String::from("|");
        for (name, _) in columns {
            let _ = write!(out, " {name} |");
        }
        out.push_str("\n|");
        for (_, side) in columns {
            out.push_str(if *side == Side::Left { " --- |" } else { " ---: |" });
        }
        out.push('\n');
        Table { out }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.out.push('|');
        for cell in cells {
            let _ = write!(self.out, " {cell} |");
        }
        self.out.push('\n');
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_is_markup() {
        let wild = "a|b`c`<img src=x> **d** [e](f) @user #12\n\x1b[31m";
        for text in [escape(wild), code(wild)] {
            let inner = text.trim_start_matches("<code>").trim_end_matches("</code>");
            for mark in ['|', '`', '<', '>', '*', '[', ']', '@', '\n', '\x1b'] {
                assert!(!inner.contains(mark), "{mark:?} in {inner}");
            }
        }
    }
}
