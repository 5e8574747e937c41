//! GGUF files, versions 2 and 3: metadata and the table of tensors; the data is never read. Bytes are those of the
//! quantised blocks.
//!
//! ```text
//! "GGUF" | version: u32 | tensors: u64 | entries: u64 | entries (name, type: u32, value)
//!        | tensors (name, sides: u32, shape, type: u32, offset: u64) | data
//! ```
//!
//! Strings are a u64 length and bytes. Lists of strings (vocabularies) are walked over, not kept; every count and
//! length is compared with the bytes that are left before it is believed.

use crate::fault::{Fault, Problem, malformed, unsupported};
use crate::gguf_types::{self, Type};
use crate::json::brief;
use crate::source::Source;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Seek};

/// As ggml has it.
const SIDES: u32 = 4;
const LONGEST_NAME: u64 = 1 << 16;
/// Text in the metadata: chat templates are the longest of it.
const LONGEST_TEXT: u64 = 16 << 20;
const MOST: u64 = 1_000_000;

/// A value of the metadata, of the kinds that an architecture needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    /// Numbers of a list that is short enough to be one per layer; longer ones are not kept.
    Numbers(Vec<i128>),
    /// Number of entries of a list of strings.
    Strings(u64),
}

/// The metadata and tensors of a file.
#[derive(Debug)]
pub struct Gguf {
    pub meta: HashMap<String, Meta>,
    /// In the table's order.
    pub tensors: Vec<Tensor>,
    /// The quantised types, and the bytes in each.
    pub types: Vec<(&'static str, u64)>,
}

/// The header of one file.
pub fn read<R: Read + Seek>(file: R) -> Result<Gguf, Fault> {
    let mut source = Source::new(file)?;
    let mut magic = [0; 4];
    source.fill(&mut magic, "the magic number")?;
    if &magic != b"GGUF" {
        return malformed(0, "this is not a GGUF file: it does not begin with GGUF");
    }
    let version = source.u32("the version")?;
    match version {
        2 | 3 => {}
        1 => return unsupported("GGUF version 1 is not read", "convert the file with a current llama.cpp"),
        swapped if matches!(swapped.swap_bytes(), 1..=3) => {
            return unsupported(
                "this GGUF file is big-endian",
                "convert it with gguf-py's gguf_convert_endian.py",
            );
        }
        other => {
            return unsupported(format!("GGUF version {other} is not known"), "versions 2 and 3 are read");
        }
    }
    let tensors = counted(&mut source, "tensors", 24)?;
    let entries = counted(&mut source, "metadata entries", 13)?;
    let mut meta = HashMap::new();
    for _ in 0..entries {
        let at = source.at();
        let key = string(&mut source, LONGEST_NAME, "a key of the metadata")?;
        let kind = source.u32("the type of a metadata value")?;
        let value = value(&mut source, kind)?;
        if meta.contains_key(&key) {
            return malformed(at, format!("the key \"{}\" stands twice in the metadata", brief(&key)));
        }
        if let Some(value) = value {
            meta.insert(key, value);
        }
    }
    let mut table = Vec::new();
    let mut seen = HashSet::new();
    for _ in 0..tensors {
        let entry = tensor(&mut source)?;
        if !seen.insert(entry.tensor.name.clone()) {
            return malformed(
                entry.at,
                format!("the tensor \"{}\" stands twice in the table", brief(&entry.tensor.name)),
            );
        }
        table.push(entry);
    }
    let start = check_data(&source, &meta, &table)?;
    let mut types: Vec<(&'static str, u64)> = Vec::new();
    for entry in &table {
        match types.iter_mut().find(|(name, _)| *name == entry.tensor.kind.name) {
            Some((_, bytes)) => *bytes += entry.tensor.bytes,
            None => types.push((entry.tensor.kind.name, entry.tensor.bytes)),
        }
    }
    types.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    // Checked: every range lies in the file.
    let placed = |entry: Entry| Tensor { start: start + entry.offset, ..entry.tensor };
    Ok(Gguf { meta, tensors: table.into_iter().map(placed).collect(), types })
}

/// One tensor of the table.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// The slowest side first.
    pub shape: Vec<u64>,
    pub kind: Type,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// Offset of its data in the file.
    pub start: u64,
}

struct Entry {
    tensor: Tensor,
    offset: u64,
    at: u64,
}

/// A count of entries of at least `least` bytes each.
fn counted<R: Read + Seek>(source: &mut Source<R>, what: &str, least: u64) -> Result<u64, Fault> {
    let at = source.at();
    let count = source.u64(&format!("the number of {what}"))?;
    if count > MOST {
        return Err(Box::new(Problem::TooLarge { offset: at, what: format!("{count} {what}"), limit: MOST }));
    }
    if count.saturating_mul(least) > source.left() {
        let reading = format!("{count} {what}, of which only {} bytes are there", source.left());
        return Err(Box::new(Problem::Truncated { offset: source.size(), reading }));
    }
    Ok(count)
}

fn string<R: Read + Seek>(source: &mut Source<R>, limit: u64, reading: &str) -> Result<String, Fault> {
    let length = source.u64(reading)?;
    let at = source.at();
    let bytes = source.bytes(length, limit, reading)?;
    String::from_utf8(bytes).or_else(|_| malformed(at, format!("{reading} is not UTF-8")))
}

/// Bytes of a number by its type; text and lists have none.
fn width(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

fn number(kind: u32, bytes: &[u8]) -> Meta {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let raw = u64::from_le_bytes(wide);
    match kind {
        1 => Meta::Int(i128::from(raw as i8)),
        3 => Meta::Int(i128::from(raw as i16)),
        5 => Meta::Int(i128::from(raw as i32)),
        11 => Meta::Int(i128::from(raw as i64)),
        6 => Meta::Float(f64::from(f32::from_bits(raw as u32))),
        12 => Meta::Float(f64::from_bits(raw)),
        7 => Meta::Bool(raw != 0),
        _ => Meta::Int(i128::from(raw)),
    }
}

fn value<R: Read + Seek>(source: &mut Source<R>, kind: u32) -> Result<Option<Meta>, Fault> {
    /// Lists longer than this are not one number per layer.
    const KEPT: u64 = 4096;
    const READING: &str = "a metadata value";
    if let Some(width) = width(kind) {
        let bytes = source.bytes(width, 8, READING)?;
        return Ok(Some(number(kind, &bytes)));
    }
    let at = source.at();
    match kind {
        8 => Ok(Some(Meta::Text(string(source, LONGEST_TEXT, READING)?))),
        9 => {
            let inner = source.u32(READING)?;
            let count = source.u64(READING)?;
            if inner == 8 {
                // Each string has at least its length.
                if count > source.left() / 8 {
                    let reading = format!("a list of {count} strings");
                    return Err(Box::new(Problem::Truncated { offset: source.size(), reading }));
                }
                for _ in 0..count {
                    let length = source.u64("a string of a list")?;
                    source.skip(length, "a string of a list")?;
                }
                return Ok(Some(Meta::Strings(count)));
            }
            let Some(width) = width(inner) else {
                return malformed(
                    at,
                    format!("a list of type {inner}: lists of lists and unknown types are not read"),
                );
            };
            let Some(length) = count.checked_mul(width).filter(|length| *length <= source.left()) else {
                let reading = format!("a list of {count} numbers");
                return Err(Box::new(Problem::Truncated { offset: source.size(), reading }));
            };
            if count > KEPT {
                source.skip(length, READING)?;
                return Ok(None);
            }
            let bytes = source.bytes(length, KEPT * 8, READING)?;
            let numbers = bytes.chunks(width as usize).map(|bytes| match number(inner, bytes) {
                Meta::Int(number) => number,
                Meta::Bool(flag) => i128::from(flag),
                _ => 0,
            });
            Ok(Some(Meta::Numbers(numbers.collect())))
        }
        other => malformed(at - 4, format!("the metadata type {other} is not known")),
    }
}

fn tensor<R: Read + Seek>(source: &mut Source<R>) -> Result<Entry, Fault> {
    const READING: &str = "the table of tensors";
    let at = source.at();
    let name = string(source, LONGEST_NAME, "a tensor's name")?;
    let sides = source.u32(READING)?;
    if sides > SIDES {
        return malformed(
            source.at() - 4,
            format!("tensor \"{}\" has {sides} sides; ggml knows {SIDES}", brief(&name)),
        );
    }
    let mut shape = Vec::new();
    for _ in 0..sides {
        shape.push(source.u64(READING)?);
    }
    let number = source.u32(READING)?;
    let Some(kind) = gguf_types::of(number) else {
        let what = format!("tensor \"{}\" has the type {number}, which is not known", brief(&name));
        return malformed(source.at() - 4, what);
    };
    let offset = source.u64(READING)?;
    let row = shape.first().copied().unwrap_or(1);
    if row % kind.elements != 0 {
        let what =
            format!("tensor \"{}\": rows of {row} are not whole blocks of {}", brief(&name), kind.name);
        return malformed(at, what);
    }
    let elements = shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
    let bytes = elements
        .and_then(|elements| (elements / kind.elements).checked_mul(kind.bytes))
        .filter(|bytes| *bytes < 1 << 60);
    let Some(bytes) = bytes else {
        return malformed(at, format!("tensor \"{}\" has more elements than can be counted", brief(&name)));
    };
    // ggml writes the fastest side first; other formats write it last.
    shape.reverse();
    Ok(Entry { tensor: Tensor { name, shape, kind, bytes, start: 0 }, offset, at })
}

/// Ranges of the data: aligned, apart from each other, within the file. Returns the offset of the data.
fn check_data<R: Read + Seek>(
    source: &Source<R>,
    meta: &HashMap<String, Meta>,
    table: &[Entry],
) -> Result<u64, Fault> {
    let alignment = match meta.get("general.alignment") {
        Some(Meta::Int(number))
            if *number > 0 && *number <= 1 << 20 && (*number as u64).is_power_of_two() =>
        {
            *number as u64
        }
        Some(_) => return malformed(0, "general.alignment must be a power of two of at most 2^20"),
        None => 32,
    };
    let start = source.at().next_multiple_of(alignment);
    let mut ranges: Vec<&Entry> = table.iter().collect();
    ranges.sort_by_key(|entry| (entry.offset, entry.tensor.bytes));
    let mut end = 0;
    for entry in ranges {
        let name = brief(&entry.tensor.name);
        if entry.offset % alignment != 0 {
            return malformed(
                entry.at,
                format!("tensor \"{name}\" begins at {}, which is not aligned to {alignment}", entry.offset),
            );
        }
        if entry.offset < end {
            return malformed(
                entry.at,
                format!("the data of tensor \"{name}\" overlaps that of the one before it"),
            );
        }
        let Some(last) = entry.offset.checked_add(entry.tensor.bytes).filter(|last| *last < 1 << 60) else {
            return malformed(entry.at, format!("the data of tensor \"{name}\" ends past every file"));
        };
        end = last;
    }
    if start + end > source.size() && !table.is_empty() {
        let reading =
            format!("the data: the table needs {} bytes and the file has {}", start + end, source.size());
        return Err(Box::new(Problem::Truncated { offset: source.size(), reading }));
    }
    Ok(start)
}
