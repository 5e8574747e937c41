//! Columns that line up, whatever is in them. Cells are plain text; a row may have a style.

use super::RESET;
use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

#[derive(Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    rows: Vec<(Vec<String>, &'static str)>,
}

impl Table {
    pub(crate) fn new(align: &[Align]) -> Table {
        Table { align: align.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, style: &'static str, cells: Vec<String>) {
        self.rows.push((cells, style));
    }

    /// Writes the rows with two spaces between columns and `margin` before the first.
    pub(crate) fn render(&self, out: &mut String, margin: &str) {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|(cells, _)| cells.get(column))
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        for (cells, style) in &self.rows {
            let mut line = String::new();
            for (i, cell) in cells.iter().enumerate() {
                let pad = widths[i].saturating_sub(cell.chars().count());
                if i > 0 {
                    line.push_str("  ");
                }
                match self.align[i] {
                    Align::Left => {
                        line.push_str(cell);
                        line.extend(std::iter::repeat_n(' ', pad));
                    }
                    Align::Right => {
                        line.extend(std::iter::repeat_n(' ', pad));
                        line.push_str(cell);
                    }
                }
            }
            let line = line.trim_end();
            let _ = if style.is_empty() {
                writeln!(out, "{margin}{line}")
            } else {
                writeln!(out, "{margin}{style}{line}{RESET}")
            };
        }
    }
}
