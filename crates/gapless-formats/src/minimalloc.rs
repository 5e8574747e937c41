//! MiniMalloc's CSV: one buffer a line, columns named by the header, in any order and in small or capital letters.
//!
//! ```text
//! id,lower,upper,size,alignment,gaps,offset,hint
//! b1,0,9,16,8,2-4 5-6,,
//! ```
//!
//! | column | also called | meaning |
//! |---|---|---|
//! | `lower`, `upper` | `start`, `begin`; `end` | the lifetime `[lower, upper)`, whole numbers |
//! | `size` | | bytes |
//! | `id` | `buffer`, `buffer_id`, `name` | the buffer's name; may be missing |
//! | `alignment` | | the offset is a multiple of it; empty, 0 or 1: none |
//! | `gaps` | | `start-end`, half-open, separated by spaces; `@lower:upper` behind one is its window |
//! | `offset` | | a fixed place; empty: free |
//! | `hint` | | a place to start from; empty or negative: none |
//!
//! A lifetime is half-open whatever its columns are called. (MiniMalloc itself adds 1 to a column named `end`.)
//! Cells of other columns come with each row as they are. This is the only reader of the format.

use crate::csv::{self, Csv};
use crate::error::{Error, Result};
use std::io::Read;

/// More bytes than any device has: 2^60. Larger sizes, alignments and offsets are refused.
pub const LARGEST: u64 = 1 << 60;

const ID: &[&str] = &["id", "buffer", "buffer_id", "name"];
const LOWER: &[&str] = &["lower", "start", "begin"];
const UPPER: &[&str] = &["upper", "end"];
const SIZE: &[&str] = &["size"];
const ALIGNMENT: &[&str] = &["alignment"];
const GAPS: &[&str] = &["gaps"];
const OFFSET: &[&str] = &["offset"];
const HINT: &[&str] = &["hint"];

/// One line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub line: u64,
    /// `None` if the file has no such column.
    pub id: Option<Box<str>>,
    /// Below `upper`.
    pub lower: i64,
    pub upper: i64,
    pub size: u64,
    /// At least 1.
    pub alignment: u64,
    /// As the file has them: order and bounds are not checked.
    pub gaps: Vec<Gap>,
    pub offset: Option<u64>,
    pub hint: Option<u64>,
    /// The cells of [`Rows::others`].
    pub others: Vec<Box<str>>,
}

/// A part of a lifetime in which the buffer needs no memory, or only a window of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub start: i64,
    pub end: i64,
    pub window: Option<(i64, i64)>,
}

/// True if a file with this first line is meant to be MiniMalloc CSV, even if a column is missing.
pub fn is_header(line: &str) -> bool {
    let Ok(columns) = csv::columns(1, line) else {
        // A header with a mistake: the reader names it.
        let line = line.to_ascii_lowercase();
        return line.split(',').any(|column| column.trim().trim_matches('"') == "lower");
    };
    let has = |names: &[&str]| names.iter().any(|name| columns.iter().any(|column| column == name));
    has(&["lower"]) || has(LOWER) && has(UPPER) && has(SIZE)
}

/// The rows of a file, read one at a time.
#[derive(Debug)]
pub struct Rows<R> {
    csv: Csv<R>,
    id: Option<usize>,
    lower: usize,
    upper: usize,
    size: usize,
    alignment: Option<usize>,
    gaps: Option<usize>,
    offset: Option<usize>,
    hint: Option<usize>,
    /// Columns of other names, and their places.
    others: Vec<(String, usize)>,
}

impl<R: Read> Rows<R> {
    /// Reads the header; at most `limit` bytes are read in all.
    pub fn new(input: R, limit: u64) -> Result<Rows<R>> {
        let csv = Csv::new(input, limit)?;
        let needed = |names: &[&str]| {
            csv.column(names).ok_or_else(|| {
                let found = csv.columns().join(", ");
                let name = names[0];
                let what =
                    format!("no column named {name:?} (found: {found}); lower, upper and size are needed");
                Error::line(csv.line().max(1), what)
            })
        };
        let (lower, upper, size) = (needed(LOWER)?, needed(UPPER)?, needed(SIZE)?);
        let optional = [ID, ALIGNMENT, GAPS, OFFSET, HINT].map(|names| csv.column(names));
        let known = |at: usize| [lower, upper, size].contains(&at) || optional.contains(&Some(at));
        let others = csv.columns().iter().cloned().zip(0..).filter(|&(_, at)| !known(at)).collect();
        let [id, alignment, gaps, offset, hint] = optional;
        Ok(Rows { csv, id, lower, upper, size, alignment, gaps, offset, hint, others })
    }

    /// The names of the columns that the format does not know, in small letters, in the order of the file.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(|(name, _)| name.as_str())
    }

    /// The line that was read last.
    pub fn line(&self) -> u64 {
        self.csv.line()
    }

    /// The next row; `None` after the last.
    #[allow(clippy::should_implement_trait)] // the first error ends it
    pub fn next(&mut self) -> Result<Option<Row>> {
        let Some((line, fields)) = self.csv.row()? else { return Ok(None) };
        let lower = time(line, "lower", &fields[self.lower])?;
        let upper = time(line, "upper", &fields[self.upper])?;
        if lower >= upper {
            let what = format!("lower {lower} is not below upper {upper}; lifetimes are half-open");
            return Err(Error::line(line, what));
        }
        let cell = |at: Option<usize>| at.map_or("", |at| fields[at].as_ref());
        let hint = cell(self.hint);
        Ok(Some(Row {
            line,
            id: self.id.map(|at| fields[at].as_ref().into()),
            lower,
            upper,
            size: bytes(line, "size", &fields[self.size])?,
            alignment: optional_bytes(line, "alignment", cell(self.alignment))?.unwrap_or(1).max(1),
            gaps: gaps(line, cell(self.gaps))?,
            offset: optional_bytes(line, "offset", cell(self.offset))?,
            hint: if is_negative(hint) { None } else { optional_bytes(line, "hint", hint)? },
            others: self.others.iter().map(|&(_, at)| fields[at].as_ref().into()).collect(),
        }))
    }
}

fn time(line: u64, column: &str, field: &str) -> Result<i64> {
    field
        .parse()
        .map_err(|_| Error::line(line, format!("{column} is {field:?}, not a whole number of 64 bits")))
}

fn is_negative(field: &str) -> bool {
    field
        .strip_prefix('-')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A number of bytes in the column of this name.
pub fn bytes(line: u64, column: &str, field: &str) -> Result<u64> {
    let wrong = |what: String| Err(Error::line(line, what));
    match field.parse::<u64>() {
        Ok(value) if value <= LARGEST => Ok(value),
        Ok(value) => wrong(format!("{column} is {value}; more than 2^60 bytes is not accepted")),
        Err(_) if is_negative(field) => wrong(format!("{column} is {field}; it must not be negative")),
        Err(_) if !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit()) => {
            wrong(format!("{column} is {field}; it does not fit in 64 bits"))
        }
        Err(_) => wrong(format!("{column} is {field:?}, not a whole number of bytes")),
    }
}

fn optional_bytes(line: u64, column: &str, field: &str) -> Result<Option<u64>> {
    if field.is_empty() { Ok(None) } else { bytes(line, column, field).map(Some) }
}

fn gaps(line: u64, field: &str) -> Result<Vec<Gap>> {
    let gap = |text: &str| {
        let parsed = || {
            let (span, window) =
                text.split_once('@').map_or((text, None), |(span, window)| (span, Some(window)));
            // The first character may be a sign, so the separator is looked for behind it.
            let (dash, _) = span.char_indices().skip(1).find(|(_, letter)| *letter == '-')?;
            let (start, end) = (span[..dash].parse().ok()?, span[dash + 1..].parse().ok()?);
            let window = match window {
                None => None,
                Some(window) => {
                    let (lower, upper) = window.split_once(':')?;
                    Some((lower.parse().ok()?, upper.parse().ok()?))
                }
            };
            Some(Gap { start, end, window })
        };
        parsed().ok_or_else(|| {
            Error::line(line, format!("the gap {text:?} is not of the form start-end with whole numbers"))
        })
    };
    field.split_whitespace().map(gap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Row>> {
        let mut rows = Rows::new(text.as_bytes(), u64::MAX)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(row);
        }
        Ok(all)
    }

    #[test]
    fn every_name_of_a_column_gives_the_same_rows() {
        let row = "b1,-3,9,16,8,2-4 5-6@0:8,64,-1";
        let expected = read(&format!("id,lower,upper,size,alignment,gaps,offset,hint\n{row}\n")).unwrap();
        let gaps = [Gap { start: 2, end: 4, window: None }, Gap { start: 5, end: 6, window: Some((0, 8)) }];
        assert_eq!(
            (&expected[0].gaps[..], expected[0].offset, expected[0].hint),
            (&gaps[..], Some(64), None)
        );
        for id in ID {
            for lower in LOWER {
                for upper in UPPER {
                    let header = format!("{id},{lower},{upper},size,alignment,gaps,offset,hint");
                    for header in [
                        header.clone(),
                        header.to_ascii_uppercase(),
                        format!("\u{feff}\"{id}\"{}", &header[id.len()..]),
                    ] {
                        assert!(is_header(header.trim_start_matches('\u{feff}')), "{header}");
                        assert_eq!(read(&format!("{header}\n{row}\n")).unwrap(), expected, "{header}");
                        assert_eq!(read(&format!("{header}\r\n{row}\r\n")).unwrap(), expected, "{header}");
                    }
                }
            }
        }
    }

    #[test]
    fn other_columns_come_as_they_are_and_an_id_may_be_missing() {
        let mut rows =
            Rows::new("size,Shares,upper,lower,name,id\n1,\"a,b\",2,1,n,i\n".as_bytes(), 1 << 20).unwrap();
        assert_eq!(rows.others().collect::<Vec<_>>(), ["shares", "name"]);
        let row = rows.next().unwrap().unwrap();
        assert_eq!((row.id.as_deref(), &*row.others[0], &*row.others[1]), (Some("i"), "a,b", "n"));
        assert_eq!(read("lower,upper,size\n0,1,2\n").unwrap()[0].id, None);
    }

    #[test]
    fn a_stream_is_refused_at_its_first_wrong_line() {
        // An endless stream: reading it whole would never end.
        let endless = std::io::Read::chain(&b"id,lower,upper,size\n"[..], std::io::repeat(b'x'));
        let mut rows = Rows::new(endless, u64::MAX).unwrap();
        assert!(rows.next().unwrap_err().to_string().starts_with("line 2: a line of more than"));
        assert!(
            Rows::new(std::io::repeat(b'\n'), 1 << 20)
                .unwrap_err()
                .to_string()
                .contains("more than 1048576 bytes")
        );
    }

    #[test]
    fn a_missing_column_is_named_with_those_there_are() {
        let message = read("id,lower,size\na,0,1\n").unwrap_err().to_string();
        assert_eq!(
            message,
            "line 1: no column named \"upper\" (found: id, lower, size); lower, upper and size are needed"
        );
        assert!(is_header("id,lower,size") && !is_header("id,size") && is_header("Start,END,size"));
    }
}
