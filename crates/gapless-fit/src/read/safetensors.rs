//! Headers of `.safetensors` files: names, shapes and bytes of every tensor; the data is never read.
//!
//! ```text
//! 0        8                8 + n                       end
//! | n: u64 | n bytes of JSON | data, without holes       |
//! ```
//!
//! Refused: a header longer than 100 MB or than the file, offsets that overlap, leave a hole or pass the end, a shape
//! whose bytes are not those of its range.

use super::error::{Fault, Problem, malformed};
use super::json::{Json, brief};
use super::source::Source;
use crate::model::{Dtype, Weight};
use std::io::{Read, Seek};

/// As the format's own reader has it.
const LONGEST: u64 = 100_000_000;
/// A tensor's entry has some ten values; no model has half a million tensors.
const VALUES: u64 = 5_000_000;

/// The tensors of one file, in the order of their data.
pub(crate) fn read<R: Read + Seek>(file: R) -> Result<Vec<Weight>, Fault> {
    let mut source = Source::new(file)?;
    let length = source.u64("the length of the header")?;
    if length > LONGEST {
        let what = format!("a header of {length} bytes");
        return Err(Box::new(Problem::TooLarge { offset: 0, what, limit: LONGEST }));
    }
    let text = source.bytes(length, LONGEST, "the header")?;
    if text.first() != Some(&b'{') {
        return malformed(8, "the header does not begin with {: this is not a safetensors file");
    }
    let header = Json::parse(&text, VALUES).map_err(|fault| shifted(*fault))?;
    let data = source.left();
    let mut ranges = Vec::new();
    for (name, entry) in header.object().unwrap_or_default() {
        if name == "__metadata__" {
            continue;
        }
        ranges.push(tensor(name, entry)?);
    }
    ranges.sort_by_key(|(begin, weight, _)| (*begin, weight.bytes));
    let mut end = 0;
    for (begin, weight, at) in &ranges {
        if *begin != end {
            let what = if *begin < end { "overlaps the tensor before it" } else { "leaves a hole before it" };
            return malformed(
                *at,
                format!("tensor \"{}\" {what} (its data begins at {begin}, not {end})", brief(&weight.name)),
            );
        }
        // Checked in `tensor`: the end is one of the file's own numbers.
        end = begin + weight.bytes;
    }
    if end > data {
        return Err(Box::new(Problem::Truncated {
            offset: source.size(),
            reading: format!("the data: the header promises {end} bytes of it and {data} are there"),
        }));
    }
    if end < data {
        return malformed(
            8 + length + end,
            format!("{} bytes after the last tensor belong to none", data - end),
        );
    }
    Ok(ranges.into_iter().map(|(_, weight, _)| weight).collect())
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

/// One entry: where its data begins, the tensor, and the byte of the entry.
fn tensor(name: &str, entry: &Json) -> Result<(u64, Weight, u64), Fault> {
    let at = 8 + entry.at;
    let shown = brief(name);
    let fail = |what: &str| malformed(at, format!("tensor \"{shown}\": {what}"));
    let Some(dtype) = entry.get("dtype").and_then(Json::text) else { return fail("it has no dtype") };
    let Some((bits, dtype)) = kind(dtype) else {
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
    Ok((begin, Weight { name: name.to_owned(), shape, dtype, bytes }, at))
}

/// Bits of an element, and our word for it where there is one.
fn kind(dtype: &str) -> Option<(u64, Option<Dtype>)> {
    Some(match dtype {
        "F64" => (64, Some(Dtype::F64)),
        "F32" => (32, Some(Dtype::F32)),
        "F16" => (16, Some(Dtype::F16)),
        "BF16" => (16, Some(Dtype::Bf16)),
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => (8, Some(Dtype::F8)),
        "I64" => (64, Some(Dtype::I64)),
        "I32" => (32, Some(Dtype::I32)),
        "I16" => (16, Some(Dtype::I16)),
        "I8" => (8, Some(Dtype::I8)),
        "U8" => (8, Some(Dtype::U8)),
        "BOOL" => (8, Some(Dtype::Bool)),
        "U64" | "C64" => (64, None),
        "U32" => (32, None),
        "U16" => (16, None),
        "F6_E2M3" | "F6_E3M2" => (6, None),
        "F4" => (4, None),
        _ => return None,
    })
}
