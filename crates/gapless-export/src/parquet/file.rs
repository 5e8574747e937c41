//! A Parquet file: pages compressed with Snappy, a column after the other in each row group, and a footer
//! with their places.
//!
//! ```text
//!   "PAR1"
//!   row group 0: column 0: [dictionary page] data page, column 1: ...
//!   row group 1: ...
//!   footer (thrift), its length in 4 bytes, "PAR1"
//! ```

use super::encode::{differences, runs, width};
use super::thrift::Struct;
use crate::ExportError;
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

const MAGIC: &[u8; 4] = b"PAR1";

// Parquet's numbers for the encodings, codec and page types of this file.
const PLAIN: i32 = 0;
const RLE: i32 = 3;
const DELTA_BINARY_PACKED: i32 = 5;
const RLE_DICTIONARY: i32 = 8;
const SNAPPY: i32 = 1;
const DATA_PAGE: i32 = 0;
const DICTIONARY_PAGE: i32 = 2;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U32,
    U64,
    Text,
}

/// A column: its name, its type, and true if values may be missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_optional: bool,
}

impl Column {
    /// Parquet's number of the physical type: INT32, INT64, BYTE_ARRAY.
    fn physical(&self) -> i32 {
        match self.kind {
            Kind::U32 => 1,
            Kind::U64 => 2,
            Kind::Text => 6,
        }
    }

    fn element(&self) -> Struct {
        let (converted, logical) = match self.kind {
            Kind::U32 => (13, unsigned(32)),
            Kind::U64 => (14, unsigned(64)),
            Kind::Text => (0, Struct::default().inner(1, Struct::default())),
        };
        Struct::default()
            .i32(1, self.physical())
            .i32(3, self.is_optional.into())
            .binary(4, self.name.as_bytes())
            .i32(6, converted)
            .inner(10, logical)
    }

    fn encodings(&self) -> &'static [i32] {
        match self.kind {
            Kind::Text => &[PLAIN, RLE, RLE_DICTIONARY],
            Kind::U32 | Kind::U64 => &[RLE, DELTA_BINARY_PACKED],
        }
    }
}

/// The logical type of unsigned integers.
fn unsigned(bits: i8) -> Struct {
    Struct::default().inner(10, Struct::default().i8(1, bits).bool(2, false))
}

/// The values of a column in a row group. `None`: missing.
#[derive(Debug)]
pub(super) enum Values {
    Numbers(Vec<Option<u64>>),
    Texts(Vec<Option<Arc<str>>>),
}

/// A file that is being written.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    at: u64,
    columns: &'static [Column],
    groups: Vec<Struct>,
    rows: u64,
    compressor: snap::raw::Encoder,
}

/// The places of a column's pages, for the footer.
struct Chunk {
    dictionary: Option<u64>,
    data: u64,
    /// Bytes of all pages with their headers, before and after compression.
    plain: u64,
    packed: u64,
    statistics: Struct,
}

impl<'a> Writer<'a> {
    pub(super) fn new(columns: &'static [Column], out: &'a mut dyn Write) -> Result<Writer<'a>, ExportError> {
        let compressor = snap::raw::Encoder::new();
        let mut writer = Writer { out, at: 0, columns, groups: Vec::new(), rows: 0, compressor };
        writer.write(MAGIC)?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Writes `rows` rows, given column by column.
    pub(super) fn group(
        &mut self,
        rows: usize,
        values: impl IntoIterator<Item = Values>,
    ) -> Result<(), ExportError> {
        let start = self.at;
        let mut chunks = Vec::new();
        let mut plain = 0;
        for (column, values) in self.columns.iter().zip(values) {
            let chunk = self.column(column, &values)?;
            plain += chunk.plain;
            chunks.push(chunk.describe(column, rows));
        }
        let packed = self.at - start;
        self.groups.push(
            Struct::default()
                .structs(1, chunks.into_iter())
                .i64(2, plain.cast_signed())
                .i64(3, rows as i64)
                .i64(5, start.cast_signed())
                .i64(6, packed.cast_signed()),
        );
        self.rows += rows as u64;
        Ok(())
    }

    fn column(&mut self, column: &Column, values: &Values) -> Result<Chunk, ExportError> {
        let start = self.at;
        let mut sizes = (0, 0);
        // The data page: the map of present values, then these values.
        let mut page = Vec::new();
        let (count, dictionary, encoding, statistics) = match values {
            Values::Numbers(numbers) => {
                levels(&mut page, column, numbers.iter().map(Option::is_some));
                let known: Vec<u64> = numbers.iter().flatten().copied().collect();
                let signed = |&value: &u64| match column.kind {
                    Kind::U32 => i64::from((value as u32).cast_signed()),
                    _ => value.cast_signed(),
                };
                let bits = if column.kind == Kind::U32 { 32 } else { 64 };
                page.extend(differences(&known.iter().map(signed).collect::<Vec<i64>>(), bits));
                let statistics = number_statistics(column, numbers.len(), &known);
                (numbers.len(), None, DELTA_BINARY_PACKED, statistics)
            }
            Values::Texts(texts) => {
                levels(&mut page, column, texts.iter().map(Option::is_some));
                let (words, indices) = indexed(texts);
                let mut plain = Vec::new();
                for word in &words {
                    plain.extend_from_slice(&(word.len() as u32).to_le_bytes());
                    plain.extend_from_slice(word.as_bytes());
                }
                let about = Struct::default().i32(1, words.len() as i32).i32(2, PLAIN);
                self.page(DICTIONARY_PAGE, (7, about), &plain, &mut sizes)?;
                let bits = width(words.len().saturating_sub(1) as u64);
                page.push(bits as u8);
                page.extend(runs(&indices, bits));
                let missing = (texts.len() - indices.len()) as i64;
                (texts.len(), Some(start), RLE_DICTIONARY, Struct::default().i64(3, missing))
            }
        };
        let data = self.at;
        let about = Struct::default().i32(1, count as i32).i32(2, encoding).i32(3, RLE).i32(4, RLE);
        self.page(DATA_PAGE, (5, about), &page, &mut sizes)?;
        let (plain, packed) = sizes;
        Ok(Chunk { dictionary, data, plain, packed, statistics })
    }

    /// Writes a page with its header, and adds its bytes before and after compression to `sizes`. `about` has the
    /// header's part for this kind of page, and the number of its field.
    fn page(
        &mut self,
        kind: i32,
        about: (i16, Struct),
        plain: &[u8],
        sizes: &mut (u64, u64),
    ) -> Result<(), ExportError> {
        let too_large = || ExportError::TooLarge("a page of the Parquet file is larger than 2 GiB");
        let packed = self.compressor.compress_vec(plain).map_err(|_| too_large())?;
        let length = |bytes: &[u8]| i32::try_from(bytes.len()).map_err(|_| too_large());
        let header = Struct::default().i32(1, kind).i32(2, length(plain)?).i32(3, length(&packed)?);
        let header = header.inner(about.0, about.1).end();
        sizes.0 += (header.len() + plain.len()) as u64;
        sizes.1 += (header.len() + packed.len()) as u64;
        self.write(&header)?;
        self.write(&packed)
    }

    /// Writes the footer.
    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        let columns = self.columns;
        let root = Struct::default().binary(4, b"allocations").i32(5, columns.len() as i32);
        let schema = std::iter::once(root).chain(columns.iter().map(Column::element));
        let schema: Vec<Struct> = schema.collect();
        // Minima and maxima are ordered by the logical types.
        let orders = columns.iter().map(|_| Struct::default().inner(1, Struct::default()));
        let footer = Struct::default()
            .i32(1, 2)
            .structs(2, schema.into_iter())
            .i64(3, self.rows.cast_signed())
            .structs(4, std::mem::take(&mut self.groups).into_iter())
            .binary(6, concat!("gapless ", env!("CARGO_PKG_VERSION")).as_bytes())
            .structs(7, orders)
            .end();
        self.write(&footer)?;
        self.write(&(footer.len() as u32).to_le_bytes())?;
        self.write(MAGIC)?;
        Ok(self.out.flush()?)
    }
}

impl Chunk {
    fn describe(self, column: &Column, rows: usize) -> Struct {
        let about = Struct::default()
            .i32(1, column.physical())
            .i32s(2, column.encodings())
            .binaries(3, &[column.name])
            .i32(4, SNAPPY)
            .i64(5, rows as i64)
            .i64(6, self.plain.cast_signed())
            .i64(7, self.packed.cast_signed())
            .i64(9, self.data.cast_signed());
        let about = match self.dictionary {
            Some(at) => about.i64(11, at.cast_signed()),
            None => about,
        };
        let first = self.dictionary.unwrap_or(self.data);
        Struct::default().i64(2, first.cast_signed()).inner(3, about.inner(12, self.statistics))
    }
}

/// The map of present values for a column whose values may be missing, with its length in front.
fn levels(page: &mut Vec<u8>, column: &Column, known: impl Iterator<Item = bool>) {
    if column.is_optional {
        let levels = runs(&known.map(u32::from).collect::<Vec<u32>>(), 1);
        page.extend_from_slice(&(levels.len() as u32).to_le_bytes());
        page.extend(levels);
    }
}

/// Each text once, in order of first use, and the index of each value's text.
fn indexed(texts: &[Option<Arc<str>>]) -> (Vec<&str>, Vec<u32>) {
    let mut known: HashMap<&str, u32> = HashMap::new();
    let mut words: Vec<&str> = Vec::new();
    let indices = texts.iter().flatten().map(|text| {
        *known.entry(text).or_insert_with(|| {
            words.push(text);
            words.len() as u32 - 1
        })
    });
    let indices = indices.collect();
    (words, indices)
}

/// The number of missing values, and the largest and smallest of the others.
fn number_statistics(column: &Column, count: usize, known: &[u64]) -> Struct {
    let statistics = Struct::default().i64(3, (count - known.len()) as i64);
    let bytes = |value: &u64| match column.kind {
        Kind::U32 => (*value as u32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    match (known.iter().max(), known.iter().min()) {
        (Some(largest), Some(least)) => statistics.binary(5, &bytes(largest)).binary(6, &bytes(least)),
        _ => statistics,
    }
}
