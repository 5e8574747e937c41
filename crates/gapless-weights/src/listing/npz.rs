//! NumPy's archives, with a `.npy` member for each array, and a `.npy` file alone. Headers are read; no data is.

use super::{Listed, Place, elements};
use crate::input::Input;
use gapless_formats::fault::{Fault, malformed};
use gapless_formats::source::Source;
use gapless_formats::zip::Zip;
use std::io::{Read, Seek};

/// The longest header of a `.npy` that is read.
const LONGEST: usize = 64 << 10;
const COMPRESSED: &str = "compressed in the archive";
const SWAPPED: &str = "big-endian numbers";

pub(super) fn read<R: Read + Seek>(zip: &mut Zip<R>) -> Result<(Vec<Listed>, Vec<String>), Fault> {
    let (mut tensors, mut notes) = (Vec::new(), Vec::new());
    for member in zip.members.clone().iter().filter(|member| member.name.ends_with(".npy")) {
        let head = zip.head(member, LONGEST)?;
        let name = member.name.trim_end_matches(".npy").to_owned();
        match array(&head, name, member.size)? {
            Ok((mut tensor, start)) => {
                match zip.place(member)? {
                    Some(range) if tensor.place != Place::Elsewhere(SWAPPED) => {
                        tensor.place = Place::Range(range.start + start..range.end);
                    }
                    Some(_) => {}
                    None => tensor.place = Place::Elsewhere(COMPRESSED),
                }
                tensors.push(tensor);
            }
            Err(note) => notes.push(note),
        }
    }
    Ok((tensors, notes))
}

/// A `.npy` file of its own.
pub(super) fn read_one(input: &Input) -> Result<(Vec<Listed>, Vec<String>), Fault> {
    let mut source = Source::new(input.file())?;
    let head = source.bytes(input.size.min(LONGEST as u64), LONGEST as u64, "the header of an array")?;
    let name = input.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(match array(&head, name, input.size)? {
        Ok((mut tensor, start)) => {
            if tensor.place != Place::Elsewhere(SWAPPED) {
                tensor.place = Place::Range(start..input.size);
            }
            (vec![tensor], Vec::new())
        }
        Err(note) => (Vec::new(), vec![note]),
    })
}

type Noted<T> = std::result::Result<T, String>;

/// The array whose file begins with `head` and has `size` bytes, and the beginning of its data; or a note why it is
/// not listed. The caller fills in its place, except for big-endian numbers.
fn array(head: &[u8], name: String, size: u64) -> Result<Noted<(Listed, u64)>, Fault> {
    let Some((text, start)) = header(head) else {
        return malformed(0, format!("\"{name}\" is not an array of NumPy's"));
    };
    let (Some(descr), Some(shape)) = (quoted(text, "descr"), shape(text)) else {
        return Ok(Err(format!("{name}: records and objects are not listed")));
    };
    let Some((dtype, width)) = kind(descr) else {
        return Ok(Err(format!("{name}: the type {descr} is not listed")));
    };
    let bytes = elements(&shape).and_then(|count| count.checked_mul(width));
    let Some(bytes) = bytes.filter(|bytes| Some(*bytes) == size.checked_sub(start as u64)) else {
        return malformed(0, format!("the array \"{name}\" has another length than its shape says"));
    };
    let is_swapped = descr.starts_with('>') && width > 1;
    let place = Place::Elsewhere(if is_swapped { SWAPPED } else { COMPRESSED });
    Ok(Ok((Listed { name, dtype: dtype.to_owned(), shape, bytes, file: 0, place }, start as u64)))
}

/// The header's text, and the beginning of the data.
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
        "c16" => ("C128", 16),
        // ml_dtypes writes bfloat16 as V2.
        "V2" => ("BF16", 2),
        _ => return None,
    })
}
