//! Lines and columns of CSV: columns found by name, every error with its line.

use crate::error::{Fault, Problem};
use std::io::{BufRead, BufReader, Read};

/// The longest line; a row of numbers is far shorter.
const LONGEST: u64 = 64 << 10;

pub(crate) struct Csv<'a> {
    input: BufReader<&'a mut (dyn Read + Send)>,
    /// Names of the columns, in small letters.
    pub(crate) columns: Vec<String>,
    /// The line that was read last, from 1.
    pub(crate) line: u64,
    bytes: u64,
    limit: u64,
    text: Vec<u8>,
}

impl<'a> Csv<'a> {
    /// Reads the header.
    pub(crate) fn new(input: &'a mut (dyn Read + Send), limit: u64) -> Result<Csv<'a>, Fault> {
        let input = BufReader::with_capacity(256 << 10, input);
        let mut csv = Csv { input, columns: Vec::new(), line: 0, bytes: 0, limit, text: Vec::new() };
        if let Some((_, header)) = csv.next()? {
            let header = header.trim_start_matches('\u{feff}').to_ascii_lowercase();
            csv.columns = fields(&header).map(str::to_owned).collect();
        }
        Ok(csv)
    }

    pub(crate) fn column(&self, names: &[&str]) -> Option<usize> {
        self.columns.iter().position(|column| names.contains(&column.as_str()))
    }

    /// The next line that is not empty, with its number.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &str)>, Fault> {
        loop {
            self.line += 1;
            self.text.clear();
            let read = (&mut self.input).take(LONGEST + 1).read_until(b'\n', &mut self.text);
            let n = read.map_err(|source| Box::new(Problem::Io { offset: self.bytes, source }))?;
            self.bytes += n as u64;
            if n == 0 {
                return Ok(None);
            }
            if n as u64 > LONGEST {
                return self.wrong(format!("a line of more than {LONGEST} bytes"));
            }
            if self.bytes > self.limit {
                return self.wrong(format!("more than {} bytes", self.limit));
            }
            if !self.text.trim_ascii().is_empty() {
                break;
            }
        }
        match std::str::from_utf8(&self.text) {
            Ok(text) => Ok(Some((self.line, text.trim()))),
            Err(_) => {
                Err(Box::new(Problem::Line { line: self.line, what: "the line is not valid UTF-8".into() }))
            }
        }
    }

    pub(crate) fn wrong<T>(&self, what: impl Into<String>) -> Result<T, Fault> {
        wrong(self.line, what)
    }
}

pub(crate) fn wrong<T>(line: u64, what: impl Into<String>) -> Result<T, Fault> {
    Err(Box::new(Problem::Line { line, what: what.into() }))
}

/// The fields of a line. Quotes around a whole field are taken off; none of the formats quotes commas.
pub(crate) fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|field| field.trim().trim_matches('"'))
}
