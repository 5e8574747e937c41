//! Lines and fields of CSV, read as a stream: columns are found by name, every error has its line, counted from 1.
//!
//! Fields may be quoted with `"`; a quoted field ends on its line. A byte order mark, Windows line ends and blank lines
//! are accepted. A line has at most [`LONGEST`] bytes, so a file without line ends is refused early.

use crate::error::{Error, Result};
use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};

/// The longest line. A buffer with ten thousand gaps is shorter.
pub const LONGEST: u64 = 256 << 10;

/// A stream of lines below a header.
#[derive(Debug)]
pub struct Csv<R> {
    input: BufReader<R>,
    columns: Vec<String>,
    line: u64,
    bytes: u64,
    limit: u64,
    text: Vec<u8>,
}

impl<R: Read> Csv<R> {
    /// Reads the header; at most `limit` bytes are read in all.
    pub fn new(input: R, limit: u64) -> Result<Csv<R>> {
        let input = BufReader::with_capacity(256 << 10, input);
        let mut csv = Csv { input, columns: Vec::new(), line: 0, bytes: 0, limit, text: Vec::new() };
        if let Some((line, header)) = csv.next()? {
            csv.columns = columns(line, header)?;
        }
        Ok(csv)
    }

    /// The names of the columns, in small letters.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The column with the first of these names that there is.
    pub fn column(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| self.columns.iter().position(|column| column == name))
    }

    /// The line that was read last.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next line that is not blank, with its number.
    #[allow(clippy::should_implement_trait)] // it lends its line
    pub fn next(&mut self) -> Result<Option<(u64, &str)>> {
        loop {
            self.line += 1;
            self.text.clear();
            let read = (&mut self.input).take(LONGEST + 1).read_until(b'\n', &mut self.text);
            let n = read.map_err(|source| Error::Io { offset: self.bytes, source })?;
            self.bytes += n as u64;
            if n == 0 {
                return Ok(None);
            }
            if n as u64 > LONGEST {
                return Err(Error::line(self.line, format!("a line of more than {LONGEST} bytes")));
            }
            if self.bytes > self.limit {
                return Err(Error::line(self.line, format!("more than {} bytes", self.limit)));
            }
            if !without_mark(&self.text).trim_ascii().is_empty() {
                break;
            }
        }
        match std::str::from_utf8(without_mark(&self.text)) {
            Ok(text) => Ok(Some((self.line, text.trim()))),
            Err(_) => Err(Error::line(self.line, "the line is not valid UTF-8")),
        }
    }

    /// The fields of the next line that is not blank, one for each column.
    pub fn row(&mut self) -> Result<Option<(u64, Vec<Cow<'_, str>>)>> {
        let count = self.columns.len();
        let Some((line, text)) = self.next()? else { return Ok(None) };
        let fields = fields(line, text)?;
        if fields.len() != count {
            let found = fields.len();
            return Err(Error::line(line, format!("{found} fields, but the header names {count} columns")));
        }
        Ok(Some((line, fields)))
    }
}

/// The names in a header, in small letters, each at most once.
pub fn columns(line: u64, header: &str) -> Result<Vec<String>> {
    let names: Vec<String> =
        fields(line, header)?.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
    for (at, name) in names.iter().enumerate() {
        if !name.is_empty() && names[..at].contains(name) {
            return Err(Error::line(line, format!("two columns are named {name:?}")));
        }
    }
    Ok(names)
}

/// The first line of `head` that is not blank, without a byte order mark.
pub fn first_line(head: &[u8]) -> &[u8] {
    without_mark(head)
        .split(|&byte| byte == b'\n' || byte == b'\r')
        .map(<[u8]>::trim_ascii)
        .find(|line| !line.is_empty())
        .unwrap_or_default()
}

fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// The fields of one line, without the blanks around them.
pub fn fields(line: u64, row: &str) -> Result<Vec<Cow<'_, str>>> {
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
                    return Err(Error::line(line, "a quote is opened and not closed on this line"));
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
            None => return Err(Error::line(line, format!("{rest:?} after a closing quote"))),
        }
    }
}
