//! Headers of `.safetensors` files: names, shapes and places of every tensor; the data is never read.
//!
//! ```text
//! 0        8                8 + n                       end
//! | n: u64 | n bytes of JSON | data, without holes       |
//! ```
//!
//! Refused: a header longer than 100 MB or than the file, offsets that overlap, leave a hole or pass the end, a shape
//! whose bytes are not those of its range.

use crate::fault::{Fault, Problem, malformed, unsupported};
use crate::json::{Json, brief};
use crate::source::Source;
use std::io::{Read, Seek};

/// As the format's own reader has it.
const LONGEST: u64 = 100_000_000;
/// A tensor's entry has some ten values; no model has half a million tensors.
const VALUES: u64 = 5_000_000;

/// One tensor: its data is the bytes from `begin` to `end` after the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// As the file names it, one that the format knows: "BF16".
    pub dtype: String,
    pub shape: Vec<u64>,
    pub begin: u64,
    pub end: u64,
}

impl Tensor {
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        self.end - self.begin
    }
}

/// The header of one file.
///
/// Invariant: tensors stand in the order of their data, without overlap or hole, and end where the file does.
#[derive(Clone, Debug)]
pub struct Header {
    /// The header's text, as it stands in the file.
    pub text: Vec<u8>,
    pub tensors: Vec<Tensor>,
    /// The strings of `__metadata__`, in the file's order.
    pub metadata: Vec<(String, String)>,
}

impl Header {
    /// Offset of the data in the file.
    pub fn data(&self) -> u64 {
        8 + self.text.len() as u64
    }

    /// The value of a key of `__metadata__`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// The header of a file.
pub fn read<R: Read + Seek>(file: R) -> Result<Header, Fault> {
    let mut source = Source::new(file)?;
    let first = source.bytes(source.left().min(8), 8, "the length of the header")?;
    source.seek(0, "the length of the header")?;
    if first.is_empty() {
        return unsupported("the file is empty", "was the process that wrote it stopped before it was done?");
    }
    let length = if first.len() < 8 { u64::MAX } else { source.u64("the length of the header")? };
    if length > LONGEST.min(source.left())
        && let Some(other) = other_format(&first)
    {
        let what = format!("this is {other}, not a safetensors file");
        let help = match other {
            "text" => "check that it is the file that you meant",
            packed if packed.ends_with("compressed") => "decompress it first",
            _ => "save its tensors as .safetensors first",
        };
        return unsupported(what, help);
    }
    if first.len() < 8 {
        source.u64("the length of the header")?;
    }
    if length > LONGEST {
        let what = format!("a header of {length} bytes");
        return Err(Box::new(Problem::TooLarge { offset: 0, what, limit: LONGEST }));
    }
    let text = source.bytes(length, LONGEST, "the header")?;
    let data = source.left();
    parse(text, data)
}

/// The format of a file that begins with other bytes than a header's length: at most eight are given.
fn other_format(first: &[u8]) -> Option<&'static str> {
    Some(match first {
        [b'G', b'G', b'U', b'F', ..] => "a GGUF file",
        [b'P', b'K', 3 | 5, 4 | 6, ..] => "a zip archive, as torch.save and numpy.savez write",
        [0x80, 2..=5, ..] => "a pickle, as torch.save wrote before 1.6",
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => "an array of NumPy's",
        [0x89, b'H', b'D', b'F', ..] => "an HDF5 file",
        [0x1f, 0x8b, ..] => "a file that gzip compressed",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "a file that zstd compressed",
        b"version " => "a pointer of Git LFS: the file itself was not downloaded (git lfs pull)",
        [b'{' | b'[', b'\n' | b' ' | b'"' | b'}' | b']' | b'\r', ..] => {
            "a JSON text, as an index or a configuration is: name its folder, or a shard"
        }
        [b'<', b'!' | b'h' | b'H', ..] => "a web page, not a model: the download went wrong",
        // A length of letters would be a header of more than 2^56 bytes.
        text if text.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~')) => "text",
        _ => return None,
    })
}

/// The header of a file whose text is `text`, with `data` bytes after it.
pub fn parse(text: Vec<u8>, data: u64) -> Result<Header, Fault> {
    // Spaces before it are against the specification, but its own reader takes them.
    if text.trim_ascii_start().first() != Some(&b'{') {
        return malformed(8, "the header does not begin with {: this is not a safetensors file");
    }
    let length = text.len() as u64;
    let header = Json::parse(&text, VALUES).map_err(|fault| shifted(*fault))?;
    let (mut ranges, mut metadata) = (Vec::new(), Vec::new());
    for (name, entry) in header.object().unwrap_or_default() {
        if name == "__metadata__" {
            for (key, value) in entry.object().unwrap_or_default() {
                let Some(text) = value.text() else {
                    let what =
                        format!("the metadata key \"{}\" is {}, not a string", brief(key), value.kind());
                    return malformed(8 + value.at, what);
                };
                metadata.push((key.clone(), text.to_owned()));
            }
            continue;
        }
        ranges.push(tensor(name, entry)?);
    }
    ranges.sort_by_key(|(tensor, _)| (tensor.begin, tensor.end));
    let mut end = 0;
    for (tensor, at) in &ranges {
        let begin = tensor.begin;
        if begin != end {
            let what = if begin < end { "overlaps the tensor before it" } else { "leaves a hole before it" };
            return malformed(
                *at,
                format!("tensor \"{}\" {what} (its data begins at {begin}, not {end})", brief(&tensor.name)),
            );
        }
        end = tensor.end;
    }
    if end > data {
        return Err(Box::new(Problem::Truncated {
            offset: 8 + length + data,
            reading: format!("the data: the header promises {end} bytes of it and {data} are there"),
        }));
    }
    if end < data {
        return malformed(
            8 + length + end,
            format!("{} bytes after the last tensor belong to none", data - end),
        );
    }
    let tensors = ranges.into_iter().map(|(tensor, _)| tensor).collect();
    Ok(Header { text, tensors, metadata })
}

/// Offsets in the header begin after its length.
fn shifted(problem: Problem) -> Fault {
    Box::new(match problem {
        Problem::Malformed { offset, what } => Problem::Malformed { offset: offset + 8, what },
        Problem::Truncated { offset, reading } => Problem::Truncated { offset: offset + 8, reading },
        Problem::TooLarge { offset, what, limit } => Problem::TooLarge { offset: offset + 8, what, limit },
        other => other,
    })
}

/// One entry: the tensor, and the byte of the entry.
fn tensor(name: &str, entry: &Json) -> Result<(Tensor, u64), Fault> {
    let at = 8 + entry.at;
    let shown = brief(name);
    let fail = |what: &str| malformed(at, format!("tensor \"{shown}\": {what}"));
    let Some(dtype) = entry.get("dtype").and_then(Json::text) else { return fail("it has no dtype") };
    let Some(bits) = bits(dtype) else {
        return fail(&format!("the dtype \"{}\" is not known", brief(dtype)));
    };
    let Some(shape) = entry.get("shape").and_then(Json::list) else { return fail("it has no shape") };
    let Some(offsets) = entry.get("data_offsets").and_then(Json::list) else {
        return fail("it has no data_offsets");
    };
    let sizes: Option<Vec<u64>> = shape.iter().map(Json::unsigned).collect();
    let Some(shape) = sizes else { return fail("its shape is not a list of sizes") };
    let [Some(begin), Some(end)] =
        [offsets.first(), offsets.get(1)].map(|offset| offset.and_then(Json::unsigned))
    else {
        return fail("its data_offsets are not two sizes");
    };
    if offsets.len() != 2 || end < begin {
        return fail(&format!("its data ends at {end}, before it begins at {begin}"));
    }
    let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    let bytes = elements
        .and_then(|elements| elements.checked_mul(bits))
        .filter(|bits| bits % 8 == 0)
        .map(|bits| bits / 8);
    let Some(bytes) = bytes else {
        return fail("its shape has more elements than can be counted, or ends within a byte");
    };
    if bytes != end - begin {
        return fail(&format!("its shape needs {bytes} bytes, its data_offsets hold {}", end - begin));
    }
    Ok((Tensor { name: name.to_owned(), dtype: dtype.to_owned(), shape, begin, end }, at))
}

/// Bits of an element of a type that the format knows.
pub fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" | "I8" | "U8" | "BOOL" => 8,
        "F6_E2M3" | "F6_E3M2" => 6,
        "F4" => 4,
        _ => return None,
    })
}
