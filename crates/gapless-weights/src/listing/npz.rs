//! NumPy's archives: a `.npy` member for each array. Headers are read; no data is.

use super::{Listed, Place, elements};
use gapless_formats::fault::{Fault, malformed};
use gapless_formats::zip::Zip;
use std::io::{Read, Seek};

/// The longest header of a `.npy` that is read.
const LONGEST: usize = 64 << 10;
const COMPRESSED: &str = "compressed in the archive";

pub(super) fn read<R: Read + Seek>(zip: &mut Zip<R>) -> Result<(Vec<Listed>, Vec<String>), Fault> {
    let (mut tensors, mut notes) = (Vec::new(), Vec::new());
    for member in zip.members.clone().iter().filter(|member| member.name.ends_with(".npy")) {
        let head = zip.head(member, LONGEST)?;
        let name = member.name.trim_end_matches(".npy").to_owned();
        let Some((text, start)) = header(&head) else {
            return malformed(0, format!("the member \"{}\" is not an array of NumPy's", member.name));
        };
        let (Some(descr), Some(shape)) = (quoted(text, "descr"), shape(text)) else {
            notes.push(format!("{name}: records and objects are not listed"));
            continue;
        };
        let Some((dtype, width)) = kind(descr) else {
            notes.push(format!("{name}: the type {descr} is not listed"));
            continue;
        };
        let bytes = elements(&shape).and_then(|count| count.checked_mul(width));
        if bytes != member.size.checked_sub(start as u64) {
            return malformed(
                0,
                format!("the member \"{}\" has another length than its shape says", member.name),
            );
        }
        let place = match zip.place(member)? {
            Some(range) => Place::Range(range.start + start as u64..range.end),
            None => Place::Elsewhere(COMPRESSED),
        };
        let bytes = bytes.unwrap_or(0);
        tensors.push(Listed { name, dtype: dtype.to_owned(), shape, bytes, file: 0, place });
    }
    Ok((tensors, notes))
}

/// The header's text, and where the data begins.
fn header(head: &[u8]) -> Option<(&str, usize)> {
    let rest = head.strip_prefix(b"\x93NUMPY")?;
    let (length, at): (usize, usize) = match rest.first()? {
        1 => (usize::from(u16::from_le_bytes([*rest.get(2)?, *rest.get(3)?])), 10),
        2 | 3 => (u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?) as usize, 12),
        _ => return None,
    };
    let text = head.get(at..at.checked_add(length)?)?;
    Some((std::str::from_utf8(text).ok()?, at + length))
}

/// The text of a key, in quotes.
fn quoted<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text.split_once(&format!("'{key}':"))?.1.trim_start();
    rest.strip_prefix('\'')?.split_once('\'').map(|(value, _)| value)
}

fn shape(text: &str) -> Option<Vec<u64>> {
    let rest = text.split_once("'shape':")?.1.trim_start().strip_prefix('(')?;
    let sizes = rest.split_once(')')?.0;
    sizes.split(',').map(str::trim).filter(|size| !size.is_empty()).map(|size| size.parse().ok()).collect()
}

/// The safetensors word for a type, and its bytes.
fn kind(descr: &str) -> Option<(&'static str, u64)> {
    // Big-endian numbers have other bytes than their type says.
    if descr.starts_with('>') && !descr.ends_with('1') {
        return None;
    }
    Some(match descr.trim_start_matches(['<', '>', '|', '=']) {
        "f8" => ("F64", 8),
        "f4" => ("F32", 4),
        "f2" => ("F16", 2),
        "i8" => ("I64", 8),
        "i4" => ("I32", 4),
        "i2" => ("I16", 2),
        "i1" => ("I8", 1),
        "u8" => ("U64", 8),
        "u4" => ("U32", 4),
        "u2" => ("U16", 2),
        "u1" => ("U8", 1),
        "b1" => ("BOOL", 1),
        "c8" => ("C64", 8),
        // What ml_dtypes writes bfloat16 as.
        "V2" => ("BF16", 2),
        _ => return None,
    })
}
