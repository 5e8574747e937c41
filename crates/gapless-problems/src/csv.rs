//! Problems as MiniMalloc's CSV: rows become buffers, and a plan is written as the column `offset`.
//!
//! The columns are those of [`gapless_formats::minimalloc`]. Every error names its line, counted from 1.

use gapless_formats::minimalloc::{Row, Rows};
use gapless_plan::problem::SIZE_SUM_LIMIT;
use gapless_plan::{Buffer, Lifetime, Plan, Problem};
use gapless_trace::Bytes;
use rustc_hash::FxHashMap;
use std::fmt::Write as _;
use std::io::Read;

use crate::error::{Error, Result};

/// The most bytes that are read: 256 GiB.
const MOST_BYTES: u64 = 1 << 38;

/// The meaning of a file's offset column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffsetColumn {
    /// The buffers are fixed there.
    #[default]
    Fixed,
    /// An earlier plan, to start from.
    Hint,
}

/// A problem, and the cells of further columns that the caller asked for.
#[derive(Clone, Debug)]
pub struct Buffers {
    pub problem: Problem,
    columns: Vec<(String, Vec<Box<str>>)>,
    ignored: Vec<String>,
}

impl Buffers {
    /// Columns of the file that the planner does not know, in small letters.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The cells of a column, one a buffer; `None` if the file does not have it or [`read`] was not asked for it.
    pub fn column(&self, name: &str) -> Option<&[Box<str>]> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, cells)| &cells[..])
    }
}

/// A problem that does not come from CSV has no further columns.
impl From<Problem> for Buffers {
    fn from(problem: Problem) -> Buffers {
        Buffers { problem, columns: Vec::new(), ignored: Vec::new() }
    }
}

/// Reads a problem from a stream, and the cells of the columns named in `keep`. The first wrong line ends it.
pub fn read(input: impl Read, offsets: OffsetColumn, keep: &[&str]) -> Result<Buffers> {
    let mut rows = Rows::new(input, MOST_BYTES)?;
    let kept: Vec<(usize, String)> = rows
        .others()
        .enumerate()
        .filter(|(_, name)| keep.contains(name))
        .map(|(at, name)| (at, name.into()))
        .collect();
    let ignored = rows.others().filter(|name| !keep.contains(name)).map(str::to_owned).collect();
    let mut columns: Vec<(String, Vec<Box<str>>)> =
        kept.iter().map(|(_, name)| (name.clone(), Vec::new())).collect();
    let mut buffers = Vec::new();
    let mut names: Vec<Box<str>> = Vec::new();
    let mut line_of_name: FxHashMap<Box<str>, u64> = FxHashMap::default();
    let mut sum = 0u64;
    while let Some(row) = rows.next()? {
        let line = row.line;
        if let Some(name) = &row.id {
            if name.is_empty() {
                return Err(wrong(line, "the id is empty"));
            }
            if let Some(first) = line_of_name.insert(name.clone(), line) {
                return Err(wrong(line, format!("the id {name:?} stands on line {first} already")));
            }
            names.push(name.clone());
        }
        for ((at, _), (_, cells)) in kept.iter().zip(&mut columns) {
            cells.push(row.others[*at].clone());
        }
        let buffer = buffer(&row, offsets)?;
        sum = sum
            .checked_add(buffer.size.0)
            .filter(|sum| *sum <= SIZE_SUM_LIMIT)
            .ok_or_else(|| wrong(line, "up to here the sizes add up to more than 2^62 bytes"))?;
        // The check of a whole problem names the buffer; each line is checked here as well, so that the error names it.
        Problem::new(vec![buffer.clone()]).map_err(|error| match error {
            gapless_plan::Error::Buffer { what, .. } => wrong(line, what),
            other => wrong(line, other.to_string()),
        })?;
        buffers.push(buffer);
    }
    Ok(Buffers { problem: Problem::with_names(buffers, names)?, columns, ignored })
}

/// Reads a problem from a text.
pub fn read_text(text: &str, offsets: OffsetColumn) -> Result<Problem> {
    read(text.as_bytes(), offsets, &[]).map(|buffers| buffers.problem)
}

fn buffer(row: &Row, offsets: OffsetColumn) -> Result<Buffer> {
    let (fixed, hint) = match offsets {
        OffsetColumn::Fixed => (row.offset, row.hint),
        OffsetColumn::Hint => (None, row.offset.or(row.hint)),
    };
    if let Some(gap) = row.gaps.iter().find(|gap| gap.window.is_some()) {
        let what =
            format!("the gap {}-{} has a window, which the planner does not support", gap.start, gap.end);
        return Err(wrong(row.line, what));
    }
    Ok(Buffer {
        lifetime: Lifetime { start: row.lower, end: row.upper },
        size: Bytes(row.size),
        alignment: Bytes(row.alignment),
        gaps: row.gaps.iter().map(|gap| Lifetime { start: gap.start, end: gap.end }).collect(),
        fixed: fixed.map(Bytes),
        hint: hint.map(Bytes),
    })
}

fn wrong(line: u64, what: impl Into<String>) -> Error {
    Error::Format(gapless_formats::Error::line(line, what))
}

/// Writes a problem, with the offsets of a plan if one is given, as MiniMalloc reads it.
#[must_use]
pub fn write(problem: &Problem, plan: Option<&Plan>) -> String {
    let buffers = problem.buffers();
    let aligned = buffers.iter().any(|buffer| buffer.alignment.0 > 1);
    let gaps = buffers.iter().any(|buffer| !buffer.gaps.is_empty());
    let fixed = plan.is_none() && buffers.iter().any(|buffer| buffer.fixed.is_some());
    let mut text = String::with_capacity(buffers.len() * 32 + 64);
    text.push_str("id,lower,upper,size");
    for (there, name) in
        [(aligned, ",alignment"), (gaps, ",gaps"), (fixed, ",offset"), (plan.is_some(), ",offset")]
    {
        text.push_str(if there { name } else { "" });
    }
    text.push('\n');
    for (index, buffer) in buffers.iter().enumerate() {
        let name = problem.name(index);
        if name.contains([',', '"']) {
            let _ = write!(text, "\"{}\"", name.replace('"', "\"\""));
        } else {
            text.push_str(&name);
        }
        let _ = write!(text, ",{},{},{}", buffer.lifetime.start, buffer.lifetime.end, buffer.size.0);
        if aligned {
            let _ = write!(text, ",{}", buffer.alignment.0);
        }
        if gaps {
            text.push(',');
            for (at, gap) in buffer.gaps.iter().enumerate() {
                let _ = write!(text, "{}{}-{}", if at == 0 { "" } else { " " }, gap.start, gap.end);
            }
        }
        if fixed {
            text.push(',');
            let _ = buffer.fixed.map(|offset| write!(text, "{}", offset.0));
        }
        if let Some(plan) = plan {
            let _ = write!(text, ",{}", plan.offsets[index].0);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        read_text(text, OffsetColumn::Fixed).unwrap_err().to_string()
    }

    #[test]
    fn columns_may_come_in_any_order_and_unknown_ones_are_passed_over() {
        let problem = read_text("size,id,note,upper,lower\n16,b1,hello,9,3\n", OffsetColumn::Fixed).unwrap();
        assert_eq!(problem.buffers(), &[Buffer::new(3, 9, 16)]);
        assert_eq!(problem.name(0), "b1");
    }

    #[test]
    fn what_was_written_reads_back_the_same() {
        let text =
            "id,lower,upper,size,alignment,gaps,offset\n\"a,\"\"1\",-4,9,16,8,-2--1 3-5,32\nb,0,2,5,,,\n";
        let problem = read_text(text, OffsetColumn::Fixed).unwrap();
        let gaps = vec![Lifetime::new(-2, -1), Lifetime::new(3, 5)];
        assert_eq!(problem.buffers()[0], Buffer::new(-4, 9, 16).aligned(8).with_gaps(gaps).fixed_at(32));
        let again = read_text(&write(&problem, None), OffsetColumn::Fixed).unwrap();
        assert_eq!(again.buffers(), problem.buffers());
        assert_eq!(again.name(0), "a,\"1");
    }

    #[test]
    fn a_plan_is_written_as_the_offset_column_and_reads_back_as_hints() {
        let problem = read_text("id,lower,upper,size\na,0,1,4\n", OffsetColumn::Fixed).unwrap();
        let plan = Plan::of_offsets(&problem, vec![Bytes(12)]);
        let text = write(&problem, Some(&plan));
        assert_eq!(text, "id,lower,upper,size,offset\na,0,1,4,12\n");
        assert_eq!(read_text(&text, OffsetColumn::Hint).unwrap().buffers()[0].hint, Some(Bytes(12)));
    }

    #[test]
    fn windows_line_ends_blank_lines_and_a_byte_order_mark_are_accepted() {
        let text = "\u{feff}id,lower,upper,size\r\n\r\na, 0 ,1,4\r\n\r\n";
        assert_eq!(read_text(text, OffsetColumn::Fixed).unwrap().buffers(), &[Buffer::new(0, 1, 4)]);
    }

    #[test]
    fn every_mistake_is_told_with_its_line() {
        let head = "id,lower,upper,size\n";
        assert!(message("").contains("no column named \"lower\""));
        assert!(message("id,lower,size\n").contains("no column named \"upper\""));
        assert!(message("id,lower,upper,size,size\n").starts_with("line 1: two columns"));
        assert_eq!(
            message(&format!("{head}a,3,3,4\n")),
            "line 2: lower 3 is not below upper 3; lifetimes are half-open"
        );
        assert!(
            message(&format!("{head}a,0,1,-4\n")).starts_with("line 2: size is -4; it must not be negative")
        );
        assert!(message(&format!("{head}a,0,1,99999999999999999999\n")).contains("does not fit in 64 bits"));
        assert!(message(&format!("{head}a,0,1,18446744073709551615\n")).contains("2^60"));
        assert!(message(&format!("{head}a,0,1,1e3\n")).contains("\"1e3\", not a whole number"));
        assert!(message(&format!("{head}a,0,x,1\n")).contains("upper is \"x\""));
        assert!(
            message(&format!("{head}a,0,1,1\nb,0,1,1\n\na,2,3,1\n"))
                .starts_with("line 5: the id \"a\" stands on line 2")
        );
        assert!(message(&format!("{head}a,0,1\n")).starts_with("line 2: 3 fields"));
        assert!(message(&format!("{head},0,1,1\n")).starts_with("line 2: the id is empty"));
        assert!(message(&format!("{head}\"a,0,1,1\n")).contains("not closed"));
        let gaps = "id,lower,upper,size,gaps\n";
        assert!(message(&format!("{gaps}a,0,9,1,3\n")).contains("not of the form start-end"));
        assert!(
            message(&format!("{gaps}a,0,9,1,3-4 2-3\n")).starts_with("line 2: the gap 2-3 begins before 4")
        );
        assert!(message(&format!("{gaps}a,0,9,1,3-12\n")).contains("past the end"));
        assert!(message(&format!("{gaps}a,0,9,1,0-9\n")).contains("nothing of the lifetime"));
        let offset = "id,lower,upper,size,alignment,offset\n";
        assert!(message(&format!("{offset}a,0,9,1,8,4\n")).contains("not a multiple of the alignment"));
        let many: String = (0..5).map(|i| format!("a{i},0,1,{}\n", 1u64 << 60)).collect();
        assert!(message(&format!("{head}{many}")).contains("2^62"));
    }
}
