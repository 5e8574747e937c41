//! Columns that line up within the width of a line. Cells are plain text; a row may have a style.
//!
//! A table that is too wide first leaves out the columns that it can spare, then shortens names in the middle, then
//! moves its columns together. It never wraps a row.

use super::layout::{shorten, visible, width};
use super::paint::RESET;
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
    /// The columns of names, and the least width at which they can be read.
    names: Vec<(usize, usize)>,
    /// Columns to leave out, the first of them first.
    spare: Vec<usize>,
}

impl Table {
    pub(crate) fn new(align: &[Align]) -> Table {
        Table { align: align.to_vec(), rows: Vec::new(), names: Vec::new(), spare: Vec::new() }
    }

    /// Column `column` has names, which may be shortened to `least` columns.
    pub(crate) fn names(mut self, column: usize, least: usize) -> Table {
        self.names.push((column, least));
        self
    }

    /// These columns may be left out, the first of them first.
    pub(crate) fn spare(mut self, columns: &[usize]) -> Table {
        self.spare = columns.to_vec();
        self
    }

    pub(crate) fn row(&mut self, style: &'static str, cells: Vec<String>) {
        self.rows.push((cells, style));
    }

    /// Writes the rows with two spaces between columns and `margin` before the first.
    pub(crate) fn render(&self, out: &mut String, margin: &str) {
        let (widths, gap) = self.fit(width().saturating_sub(margin.len()));
        for (cells, style) in &self.rows {
            let mut line = String::new();
            for (i, cell) in cells.iter().enumerate() {
                let Some(room) = widths[i] else { continue };
                let cell = shorten(cell, room);
                let pad = room.saturating_sub(visible(&cell));
                if !line.is_empty() || widths[..i].iter().flatten().next().is_some() {
                    line.push_str(gap);
                }
                match self.align[i] {
                    Align::Left => {
                        line.push_str(&cell);
                        line.extend(std::iter::repeat_n(' ', pad));
                    }
                    Align::Right => {
                        line.extend(std::iter::repeat_n(' ', pad));
                        line.push_str(&cell);
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

    /// For each column, true if it is shown with `margin` before the first.
    pub(crate) fn shown(&self, margin: &str) -> Vec<bool> {
        let (widths, _) = self.fit(width().saturating_sub(margin.len()));
        widths.iter().map(Option::is_some).collect()
    }

    /// The width of each column, `None` for those left out, and the gap between them.
    fn fit(&self, room: usize) -> (Vec<Option<usize>>, &'static str) {
        let natural = |column: usize| {
            let cells = self.rows.iter().filter_map(|(cells, _)| cells.get(column));
            cells.map(|cell| visible(cell)).max().unwrap_or(0)
        };
        let mut widths: Vec<Option<usize>> = (0..self.align.len()).map(|c| Some(natural(c))).collect();
        // A column that no row has takes no room.
        let used = self.rows.iter().map(|(cells, _)| cells.len()).max().unwrap_or(0);
        widths.truncate(used);
        let mut gap = 2;
        let excess = |widths: &[Option<usize>], gap: usize| {
            let shown = widths.iter().flatten().count();
            let total = widths.iter().flatten().sum::<usize>() + gap * shown.saturating_sub(1);
            total.saturating_sub(room)
        };
        let give = |widths: &[Option<usize>], least: fn(usize) -> usize| {
            let can = |&(column, least_width): &(usize, usize)| {
                let width = widths.get(column).copied().flatten().unwrap_or(0);
                width.saturating_sub(least(least_width))
            };
            self.names.iter().map(can).sum::<usize>()
        };
        for &column in &self.spare {
            if excess(&widths, gap) > give(&widths, |least| least)
                && let Some(width) = widths.get_mut(column)
            {
                *width = None;
            }
        }
        if excess(&widths, gap) > give(&widths, |least| least) {
            gap = 1;
        }
        let mut over = excess(&widths, gap);
        // The widest name is shortened first, one column at a time, so that no name vanishes while another is long.
        while over > 0 {
            let widest = self
                .names
                .iter()
                .filter_map(|&(column, _)| widths.get(column).copied().flatten().map(|w| (w, column)))
                .max();
            match widest {
                Some((width, column)) if width > 4 => widths[column] = Some(width - 1),
                _ => break,
            }
            over -= 1;
        }
        (widths, if gap == 2 { "  " } else { " " })
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::DEFAULT_WIDTH;
    use super::*;
    use Align::{Left, Right};

    fn lines(table: &Table) -> Vec<String> {
        let mut out = String::new();
        table.render(&mut out, "  ");
        out.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_table_within_the_line_is_left_as_it_is() {
        let mut table = Table::new(&[Left, Right]).names(0, 4).spare(&[1]);
        table.row("", vec!["a".to_owned(), "1".to_owned()]);
        table.row("", vec!["bbb".to_owned(), "22".to_owned()]);
        assert_eq!(lines(&table), ["  a     1", "  bbb  22"]);
    }

    #[test]
    fn names_give_before_columns_go_and_columns_before_the_gap() {
        let row = |name: usize, spare: usize| {
            let mut table = Table::new(&[Right, Left, Left]).names(2, 20).spare(&[1]);
            table.row("", vec!["7".to_owned(), "s".repeat(spare), "n".repeat(name)]);
            lines(&table).remove(0)
        };
        let short = row(100, 10);
        assert!(short.contains("ssssssssss") && short.contains('…'), "{short}");
        assert_eq!(visible(&short), DEFAULT_WIDTH);
        let without = row(100, 60);
        assert!(!without.contains('s') && without.contains('…'), "{without}");
        assert!(visible(&without) <= DEFAULT_WIDTH);
    }
}
