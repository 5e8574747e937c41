//! MiniMalloc's CSV: one buffer a line, columns named by the first line, in any order.
//!
//! ```text
//! id,lower,upper,size,alignment,gaps,offset,hint
//! b1,0,9,16,8,2-4 5-6,,
//! ```
//!
//! `id`, `lower`, `upper` and `size` must be there; `alignment` (empty, 0 or 1: none), `gaps` (`start-end`, separated
//! by spaces, half-open), `offset` (a fixed place, empty: free) and `hint` (a place to start from, empty: none) may be.
//! Other columns are passed over. Every error names its line, counted from 1. Fields may be quoted with `"`.

use std::borrow::Cow;
use std::fmt::Write as _;

use gapless_trace::Bytes;
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::problem::{Buffer, Lifetime, Plan, Problem};

/// What the offset column of a file means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffsetColumn {
    /// The buffers are fixed there.
    #[default]
    Fixed,
    /// An earlier plan, to start from.
    Hint,
}

/// Reads a problem from the text of a file.
pub fn read(text: &str, offsets: OffsetColumn) -> Result<Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let header = lines.by_ref().find(|(_, line)| !line.trim().is_empty());
    let Some((header_line, header)) = header else { return Err(Error::NoHeader) };
    let columns = Columns::of_header(header_line, header)?;

    let mut buffers = Vec::new();
    let mut names: Vec<Box<str>> = Vec::new();
    let mut line_of_name: FxHashMap<Box<str>, usize> = FxHashMap::default();
    let mut sum = 0u64;
    for (line, row) in lines.filter(|(_, row)| !row.trim().is_empty()) {
        let fields = split(line, row)?;
        let (name, buffer) = columns.buffer(line, &fields, offsets)?;
        if let Some(first) = line_of_name.insert(name.into(), line) {
            return Err(wrong(line, format!("the id {name:?} stands on line {first} already")));
        }
        sum = sum
            .checked_add(buffer.size.0)
            .filter(|sum| *sum <= crate::problem::SIZE_SUM_LIMIT)
            .ok_or_else(|| wrong(line, "up to here the sizes add up to more than 2^62 bytes".to_owned()))?;
        // The check of a whole problem names the buffer; here the line is known, so it is asked line by line.
        Problem::new(vec![buffer.clone()]).map_err(|error| match error {
            Error::Buffer { what, .. } => wrong(line, what),
            other => wrong(line, other.to_string()),
        })?;
        names.push(name.into());
        buffers.push(buffer);
    }
    Problem::with_names(buffers, names)
}

/// The cells of a further column, one a buffer, in the order of [`read`]; `None` where the file has no such column.
pub fn column(text: &str, name: &str) -> Result<Option<Vec<String>>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, row)| !row.trim().is_empty());
    let Some((line, header)) = lines.next() else { return Err(Error::NoHeader) };
    let Some(at) = split(line, header)?.iter().position(|column| column == name) else { return Ok(None) };
    let cell = |(line, row): (usize, &str)| {
        let fields = split(line, row)?;
        Ok(fields.get(at).map(ToString::to_string).unwrap_or_default())
    };
    lines.map(cell).collect::<Result<Vec<String>>>().map(Some)
}

/// Writes a problem, with the offsets of a plan where one is given, as MiniMalloc reads it.
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

fn wrong(line: usize, what: String) -> Error {
    Error::Line { line, what }
}

struct Columns {
    count: usize,
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
    alignment: Option<usize>,
    gaps: Option<usize>,
    offset: Option<usize>,
    hint: Option<usize>,
}

impl Columns {
    fn of_header(line: usize, header: &str) -> Result<Columns> {
        let names = split(line, header)?;
        let mut position: FxHashMap<&str, usize> = FxHashMap::default();
        for (index, name) in names.iter().enumerate() {
            if position.insert(name.as_ref(), index).is_some() {
                return Err(wrong(line, format!("two columns are named {name:?}")));
            }
        }
        let optional = |column: &str| position.get(column).copied();
        let needed = |column: &'static str| {
            optional(column).ok_or_else(|| Error::MissingColumn { column, found: names.join(", ") })
        };
        Ok(Columns {
            count: names.len(),
            id: needed("id")?,
            lower: needed("lower")?,
            upper: needed("upper")?,
            size: needed("size")?,
            alignment: optional("alignment"),
            gaps: optional("gaps"),
            offset: optional("offset"),
            hint: optional("hint"),
        })
    }

    fn buffer<'f>(
        &self,
        line: usize,
        fields: &'f [Cow<'_, str>],
        offsets: OffsetColumn,
    ) -> Result<(&'f str, Buffer)> {
        if fields.len() != self.count {
            let (found, count) = (fields.len(), self.count);
            return Err(wrong(line, format!("{found} fields, but the first line names {count} columns")));
        }
        let name = fields[self.id].as_ref();
        if name.is_empty() {
            return Err(wrong(line, "the id is empty".to_owned()));
        }
        let start = time(line, "lower", &fields[self.lower])?;
        let end = time(line, "upper", &fields[self.upper])?;
        if start >= end {
            return Err(wrong(
                line,
                format!("lower {start} is not below upper {end}; lifetimes are half-open"),
            ));
        }
        let alignment = optional_bytes(line, "alignment", self.alignment.map(|at| fields[at].as_ref()))?;
        let offset = optional_bytes(line, "offset", self.offset.map(|at| fields[at].as_ref()))?;
        let hint = optional_bytes(line, "hint", self.hint.map(|at| fields[at].as_ref()))?;
        let (fixed, hint) = match offsets {
            OffsetColumn::Fixed => (offset, hint),
            OffsetColumn::Hint => (None, offset.or(hint)),
        };
        let buffer = Buffer {
            lifetime: Lifetime { start, end },
            size: bytes(line, "size", &fields[self.size])?,
            alignment: alignment.filter(|alignment| alignment.0 > 0).unwrap_or(Bytes(1)),
            gaps: self.gaps.map_or(Ok(Vec::new()), |at| gaps(line, &fields[at]))?.into_boxed_slice(),
            fixed,
            hint,
        };
        Ok((name, buffer))
    }
}

/// The fields of one line, without the blanks around them.
fn split(line: usize, row: &str) -> Result<Vec<Cow<'_, str>>> {
    if !row.contains('"') {
        return Ok(row.split(',').map(|field| Cow::Borrowed(field.trim())).collect());
    }
    let mut fields = Vec::new();
    let mut rest = row.trim();
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut field = String::new();
            let mut tail = quoted;
            loop {
                let Some(quote) = tail.find('"') else {
                    return Err(wrong(line, "a quote is opened and not closed on this line".to_owned()));
                };
                field.push_str(&tail[..quote]);
                tail = &tail[quote + 1..];
                let Some(after) = tail.strip_prefix('"') else { break };
                field.push('"');
                tail = after;
            }
            fields.push(Cow::Owned(field));
            rest = tail.trim_start();
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            fields.push(Cow::Borrowed(rest[..end].trim()));
            rest = &rest[end..];
        }
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => return Ok(fields),
            None => return Err(wrong(line, format!("{rest:?} after a closing quote"))),
        }
    }
}

fn time(line: usize, column: &str, field: &str) -> Result<i64> {
    field.parse().map_err(|_| wrong(line, format!("{column} is {field:?}, not a whole number of 64 bits")))
}

fn bytes(line: usize, column: &str, field: &str) -> Result<Bytes> {
    if field.starts_with('-') && field[1..].bytes().all(|byte| byte.is_ascii_digit()) && field.len() > 1 {
        return Err(wrong(line, format!("{column} is {field}; it must not be negative")));
    }
    match field.parse::<u64>() {
        Ok(value) if value <= Bytes::LIMIT.0 => Ok(Bytes(value)),
        Ok(value) => Err(wrong(line, format!("{column} is {value}; more than 2^60 bytes is not accepted"))),
        Err(_) if !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(wrong(line, format!("{column} is {field}; it does not fit in 64 bits")))
        }
        Err(_) => Err(wrong(line, format!("{column} is {field:?}, not a whole number of bytes"))),
    }
}

fn optional_bytes(line: usize, column: &str, field: Option<&str>) -> Result<Option<Bytes>> {
    match field {
        None | Some("") => Ok(None),
        Some(field) => bytes(line, column, field).map(Some),
    }
}

fn gaps(line: usize, field: &str) -> Result<Vec<Lifetime>> {
    let gap = |text: &str| {
        // The first character may be a sign, so the separator is looked for behind it.
        let dash = text.char_indices().skip(1).find(|(_, letter)| *letter == '-');
        let parsed = dash.and_then(|(dash, _)| {
            Some(Lifetime { start: text[..dash].parse().ok()?, end: text[dash + 1..].parse().ok()? })
        });
        parsed.ok_or_else(|| {
            wrong(line, format!("the gap {text:?} is not of the form start-end with whole numbers"))
        })
    };
    field.split_whitespace().map(gap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        read(text, OffsetColumn::Fixed).unwrap_err().to_string()
    }

    #[test]
    fn columns_may_come_in_any_order_and_unknown_ones_are_passed_over() {
        let problem = read("size,id,note,upper,lower\n16,b1,hello,9,3\n", OffsetColumn::Fixed).unwrap();
        assert_eq!(problem.buffers(), &[Buffer::new(3, 9, 16)]);
        assert_eq!(problem.name(0), "b1");
    }

    #[test]
    fn what_was_written_reads_back_the_same() {
        let text =
            "id,lower,upper,size,alignment,gaps,offset\n\"a,\"\"1\",-4,9,16,8,-2--1 3-5,32\nb,0,2,5,,,\n";
        let problem = read(text, OffsetColumn::Fixed).unwrap();
        let gaps = vec![Lifetime::new(-2, -1), Lifetime::new(3, 5)];
        assert_eq!(problem.buffers()[0], Buffer::new(-4, 9, 16).aligned(8).with_gaps(gaps).fixed_at(32));
        let again = read(&write(&problem, None), OffsetColumn::Fixed).unwrap();
        assert_eq!(again.buffers(), problem.buffers());
        assert_eq!(again.name(0), "a,\"1");
    }

    #[test]
    fn a_plan_is_written_as_the_offset_column_and_reads_back_as_hints() {
        let problem = read("id,lower,upper,size\na,0,1,4\n", OffsetColumn::Fixed).unwrap();
        let plan = Plan::of_offsets(&problem, vec![Bytes(12)]);
        let text = write(&problem, Some(&plan));
        assert_eq!(text, "id,lower,upper,size,offset\na,0,1,4,12\n");
        assert_eq!(read(&text, OffsetColumn::Hint).unwrap().buffers()[0].hint, Some(Bytes(12)));
    }

    #[test]
    fn windows_line_ends_blank_lines_and_a_byte_order_mark_are_accepted() {
        let text = "\u{feff}id,lower,upper,size\r\n\r\na, 0 ,1,4\r\n\r\n";
        assert_eq!(read(text, OffsetColumn::Fixed).unwrap().buffers(), &[Buffer::new(0, 1, 4)]);
    }

    #[test]
    fn every_mistake_is_told_with_its_line() {
        let head = "id,lower,upper,size\n";
        assert!(message("").contains("empty"));
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
