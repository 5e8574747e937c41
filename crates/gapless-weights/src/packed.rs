//! The header of a packed file: a safetensors file whose compressed tensors are streams of bytes.
//!
//! Any reader opens it. `__metadata__` keeps the original's entries, and adds:
//!
//! * `gapless.format`: "1".
//! * `gapless.header`: the original header, byte for byte, compressed with zstd, in base64.
//! * `gapless.tensors`: JSON, for each tensor either `{"dtype": "BF16", "shape": [..], "codec": "GWS1", "sum": ".."}`,
//!   a stream (see `stream`) and the XXH3 of its directory, or `{"xxh3": ".."}`, stored as it was, or
//!   `{"dtype": .., "shape": .., "same": "other"}`: its bytes are those of another tensor, and its own entry has none.
//! * `gapless.sum`: the XXH3 of those two values, one after the other.
//!
//! So every byte of an unpacked file has a checksum: chunks in their directory, directories and plain tensors in
//! `gapless.tensors`, which also binds them to their names, and that in `gapless.sum`. The sums are not in the first
//! files of format 1. A file without `gapless.sum` is checked by its other redundant parts: the types and shapes of
//! streams, and the original's metadata. Older readers ignore the sums.
//!
//! Streams stand first, each on a boundary of 64 bytes; the others follow.

use crate::error::{Error, Result};
use gapless_formats::fault::Problem;
use gapless_formats::safetensors::{self, Header, Tensor};
use gapless_formats::zstd;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

pub(crate) const FORMAT: &str = "gapless.format";
const HEADER: &str = "gapless.header";
const TENSORS: &str = "gapless.tensors";
const SUM: &str = "gapless.sum";
const CODEC: &str = "GWS1";
const HELP: &str = "copy the file again, or pack the original again";
/// The format's own limit for a header.
pub(crate) const LONGEST: u64 = 100_000_000;

/// The form in which a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As a stream.
    Stream,
    /// As it was, with this XXH3.
    Plain(u64),
}

/// A packed file's header, with every claim checked that can be checked without the data.
#[derive(Debug)]
pub struct Packed {
    /// The packed file's own header.
    pub header: Header,
    /// The header of the file that was packed.
    pub original: Header,
    /// For each tensor of the original: the tensor that holds it, and the form.
    pub tensors: Vec<(Tensor, Stored)>,
    /// For each of them the checksum of its stream's directory, if the file has it.
    pub(crate) sums: Vec<Option<u64>>,
}

/// True if a header is that of a packed file.
pub fn is_packed(header: &Header) -> bool {
    header.metadata.iter().any(|(key, _)| is_ours(key))
}

/// True if a key of the metadata is one of packed files.
pub(crate) fn is_ours(key: &str) -> bool {
    key.starts_with("gapless.")
}

impl Packed {
    /// Reads `header`; `None` if the file is not packed.
    pub fn read(path: &Path, header: Header) -> Result<Option<Packed>> {
        if !is_packed(&header) {
            return Ok(None);
        }
        let refuse = |what: &str| Error::refused(path, what, HELP);
        match header.value(FORMAT) {
            Some("1") => {}
            Some(other) => {
                return Error::refused(
                    path,
                    format!("packed in format {other:?}, which this version does not know"),
                    "use a newer version of Gapless",
                );
            }
            None => return refuse("its metadata has keys of Gapless but no gapless.format"),
        }
        let has_sum = match header.value(SUM) {
            Some(sum) if sum_of(&header) == parse_sum(sum) => true,
            Some(_) => return refuse("the checksum of its header differs: the file is damaged"),
            None => false,
        };
        let Some(text) = header.value(HEADER).and_then(unpack_text) else {
            return refuse("the original header in its metadata is damaged");
        };
        let length = original_data(&text);
        let original = safetensors::parse(text, length).map_err(|problem| Error::Format {
            path: path.to_owned(),
            problem: Box::new(Problem::Malformed {
                offset: 8,
                what: format!("of the original header: {problem}"),
            }),
        })?;
        let Some(Ok(Value::Object(kinds))) = header.value(TENSORS).map(serde_json::from_str::<Value>) else {
            return refuse("gapless.tensors in its metadata is not JSON");
        };
        if !has_sum && original.metadata.iter().any(|(key, value)| header.value(key) != Some(value)) {
            return refuse("its metadata is not that of its original header");
        }
        let by_name: HashMap<&str, &Tensor> =
            header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        if by_name.len() != original.tensors.len() {
            return refuse("it has other tensors than its original header says");
        }
        let places: HashMap<&str, usize> =
            original.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
        let mut tensors = Vec::with_capacity(original.tensors.len());
        let mut sums = Vec::with_capacity(original.tensors.len());
        for tensor in &original.tensors {
            if kinds.get(&tensor.name).is_some_and(|kind| !is_described(kind, tensor)) {
                return refuse(&format!(
                    "tensor {:?} has another type or shape than in its original header",
                    tensor.name
                ));
            }
            // A tensor with another one's bytes has that tensor's place.
            let mut tensor = tensor;
            if let Some(same) =
                kinds.get(&tensor.name).and_then(|kind| kind.get("same")).and_then(Value::as_str)
            {
                let other = places.get(same).map(|at| &original.tensors[*at]);
                let is_like =
                    |other: &&Tensor| (&other.dtype, &other.shape) == (&tensor.dtype, &tensor.shape);
                let Some(other) = other.filter(is_like) else {
                    return refuse(&format!(
                        "tensor {:?} is said to be that of {same:?}, which differs",
                        tensor.name
                    ));
                };
                tensor = other;
            }
            let (Some(holder), Some(kind)) = (by_name.get(tensor.name.as_str()), kinds.get(&tensor.name))
            else {
                return refuse(&format!("it does not say how tensor {:?} is stored", tensor.name));
            };
            let stored = if let Some(sum) = kind.get("xxh3").and_then(Value::as_str) {
                let Some(sum) = parse_sum(sum) else {
                    return refuse(&format!("the checksum of tensor {:?} is not a number", tensor.name));
                };
                if (&holder.dtype, &holder.shape) != (&tensor.dtype, &tensor.shape) {
                    return refuse(&format!(
                        "tensor {:?} has another type or shape than it had",
                        tensor.name
                    ));
                }
                Stored::Plain(sum)
            } else if kind.get("codec").and_then(Value::as_str) == Some(CODEC) && holder.dtype == "U8" {
                Stored::Stream
            } else {
                return refuse(&format!("the codec of tensor {:?} is not known", tensor.name));
            };
            let sum = kind.get("sum").and_then(Value::as_str);
            if stored == Stored::Stream && has_sum && sum.and_then(parse_sum).is_none() {
                return refuse(&format!("the checksum of tensor {:?} is not a number", tensor.name));
            }
            sums.push(sum.and_then(parse_sum).filter(|_| stored == Stored::Stream && has_sum));
            tensors.push(((*holder).clone(), stored));
        }
        Ok(Some(Packed { header, original, tensors, sums }))
    }
}

/// The expected value of `gapless.sum`.
fn sum_of(header: &Header) -> Option<u64> {
    Some(sum_of_values(header.value(HEADER)?, header.value(TENSORS)?))
}

fn sum_of_values(header: &str, tensors: &str) -> u64 {
    let mut sum = xxhash_rust::xxh3::Xxh3Default::new();
    sum.update(header.as_bytes());
    sum.update(tensors.as_bytes());
    sum.digest()
}

/// A sum as this file writes it: each number has exactly one text, so that no other text is accepted for it.
fn parse_sum(text: &str) -> Option<u64> {
    let sum = u64::from_str_radix(text, 16).ok()?;
    (shown(sum) == text).then_some(sum)
}

fn shown(sum: u64) -> String {
    format!("{sum:016x}")
}

/// True if the type and shape of a tensor in `gapless.tensors`, if present, equal those in the original header.
fn is_described(kind: &Value, tensor: &Tensor) -> bool {
    let is_same = |key: &str, wanted: Value| kind.get(key).is_none_or(|value| *value == wanted);
    is_same("dtype", json!(tensor.dtype)) && is_same("shape", json!(tensor.shape))
}

/// The bytes of data that a header claims by its offsets. `parse` then checks that they have no holes.
fn original_data(text: &[u8]) -> u64 {
    let Ok(header) = gapless_formats::json::Json::parse(text, 5_000_000) else { return 0 };
    let ends = header.object().unwrap_or_default().iter().filter_map(|(_, entry)| {
        entry.get("data_offsets").and_then(|offsets| offsets.list()).and_then(|list| list.get(1)?.unsigned())
    });
    ends.max().unwrap_or(0)
}

/// The form in which a tensor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// As a stream whose directory has this checksum.
    Stream(u64),
    /// As it was, with this checksum.
    Plain(u64),
    /// Its bytes are those of another tensor of the original.
    Same(usize),
}

/// A tensor as it is written: its place in the original, its form, and the range of its data.
pub(crate) type Placed = (usize, Written, u64, u64);

/// The entry of a tensor in `gapless.tensors`.
fn kind(original: &Header, tensor: &Tensor, written: Written) -> Value {
    match written {
        Written::Same(other) => {
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "same": original.tensors[other].name})
        }
        Written::Stream(sum) => {
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "codec": CODEC, "sum": shown(sum)})
        }
        Written::Plain(sum) => json!({"xxh3": shown(sum)}),
    }
}

/// A tensor's own entry in the header.
fn entry(tensor: &Tensor, written: Written, begin: u64, end: u64) -> Value {
    match written {
        Written::Stream(_) | Written::Same(_) => {
            json!({"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]})
        }
        Written::Plain(_) => {
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]})
        }
    }
}

/// The header's text of a packed file.
pub(crate) fn header_text(original: &Header, compressed: &str, tensors: &[Placed]) -> Vec<u8> {
    let mut kinds = Map::new();
    for (index, stored, _, _) in tensors {
        let tensor = &original.tensors[*index];
        kinds.insert(tensor.name.clone(), kind(original, tensor, *stored));
    }
    let mut metadata = Map::new();
    for (key, value) in &original.metadata {
        metadata.insert(key.clone(), json!(value));
    }
    metadata.insert(FORMAT.into(), json!("1"));
    metadata.insert(HEADER.into(), json!(compressed));
    let kinds = Value::Object(kinds).to_string();
    metadata.insert(SUM.into(), json!(shown(sum_of_values(compressed, &kinds))));
    metadata.insert(TENSORS.into(), json!(kinds));
    // Written as text, because entries must be in the order of their data and a JSON map would sort them.
    let mut text = format!("{{\"__metadata__\":{}", Value::Object(metadata));
    for (index, stored, begin, end) in tensors {
        let tensor = &original.tensors[*index];
        text.push_str(&format!(
            ",{}:{}",
            Value::String(tensor.name.clone()),
            entry(tensor, *stored, *begin, *end)
        ));
    }
    text.push('}');
    text.into_bytes()
}

/// The longest header that a packed file can have whose data ends before `end`.
pub(crate) fn longest_header(original: &Header, compressed: &str, end: u64) -> u64 {
    let names = original.tensors.iter().enumerate();
    let longest = names.max_by_key(|(_, tensor)| Value::from(tensor.name.as_str()).to_string().len());
    let other = longest.map_or(0, |(at, _)| at);
    let longer = |index: usize| {
        let tensor = &original.tensors[index];
        // Quotes of the inner JSON are escaped in the outer one.
        let length = |written: &Written| {
            let kind = kind(original, tensor, *written).to_string();
            kind.len() + kind.matches(['"', '\\']).count() + entry(tensor, *written, 0, end).to_string().len()
        };
        let all = [Written::Stream(0), Written::Plain(0), Written::Same(other)];
        let stored = all.into_iter().max_by_key(length).unwrap_or(all[0]);
        // Begin and end with the most digits; the shape of a stream is their difference.
        (index, stored, end, 2 * end)
    };
    let all: Vec<Placed> = (0..original.tensors.len()).map(longer).collect();
    header_text(original, compressed, &all).len() as u64
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Text compressed with zstd, in base64.
pub(crate) fn pack_text(text: &[u8]) -> std::io::Result<String> {
    let bytes = zstd::compress(text);
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word =
            three.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for k in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * k)) as usize & 63];
            out.push(if k <= three.len() { char::from(digit) } else { '=' });
        }
    }
    // A header that cannot be read again would lose the original. This error leaves the original untouched.
    if unpack_text(&out).as_deref() != Some(text) {
        return Err(std::io::Error::other("the header does not survive its compression"));
    }
    Ok(out)
}

/// Undoes `pack_text`; `None` if it is damaged or longer than a header may be.
fn unpack_text(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let text = text.trim_end_matches('=').as_bytes();
    for four in text.chunks(4) {
        let mut word = 0u32;
        for digit in four {
            word = word << 6 | DIGITS.iter().position(|known| known == digit)? as u32;
        }
        word <<= 6 * (4 - four.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..four.len().max(1)]);
    }
    let mut out = Vec::new();
    zstd::Frames::new(&bytes[..]).take(LONGEST + 1).read_to_end(&mut out).ok()?;
    (out.len() as u64 <= LONGEST).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::{pack_text, unpack_text};

    #[test]
    fn text_survives_and_damage_does_not() {
        for length in [0, 1, 2, 3, 4, 100, 10_001] {
            let text: Vec<u8> = (0..length).map(|i| (i * 7 % 251) as u8).collect();
            let packed = pack_text(&text).unwrap();
            assert_eq!(unpack_text(&packed), Some(text));
        }
        assert_eq!(unpack_text("not base64!"), None);
        assert_eq!(unpack_text("AAAA"), None);
    }
}
