//! Protocol-buffer messages, read forwards from a file: a message is a range of bytes, a field a number and a wire
//! type. Nothing recurses, and a length is compared with the message that it stands in before it is believed.

use crate::fault::{Fault, malformed};
use crate::source::Source;
use std::io::{Read, Seek};

/// The encoding of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Varint,
    Eight,
    Length,
    Four,
}

/// A number of at most 64 bits in groups of seven, within a message that ends at `end`.
pub fn varint<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<u64, Fault> {
    let start = source.at();
    let mut number = 0u64;
    for shift in (0..70).step_by(7) {
        if source.at() >= end {
            return malformed(source.at(), "a number passes the end of its message");
        }
        let byte = source.u8("a number")?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    malformed(start, "a number of more than 64 bits")
}

/// The next field of a message, or nothing at its end.
pub fn field<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<Option<(u64, Wire)>, Fault> {
    if source.at() >= end {
        return Ok(None);
    }
    let at = source.at();
    let key = varint(source, end)?;
    let wire = match key & 7 {
        0 => Wire::Varint,
        1 => Wire::Eight,
        2 => Wire::Length,
        5 => Wire::Four,
        other => {
            return malformed(
                at,
                format!("the wire type {other} is not known: this is not the file it claims to be"),
            );
        }
    };
    if key >> 3 == 0 {
        return malformed(at, "a field without a number: this is not the file it claims to be");
    }
    Ok(Some((key >> 3, wire)))
}

/// The end of a field of known length.
pub fn message<R: Read + Seek>(source: &mut Source<R>, end: u64) -> Result<u64, Fault> {
    let at = source.at();
    let length = varint(source, end)?;
    match source.at().checked_add(length) {
        Some(inner) if inner <= end => Ok(inner),
        _ => malformed(at, format!("a field of {length} bytes passes the end of its message")),
    }
}

/// The bytes of a field of known length.
pub fn bytes<R: Read + Seek>(
    source: &mut Source<R>,
    end: u64,
    limit: u64,
    what: &str,
) -> Result<Vec<u8>, Fault> {
    let inner = message(source, end)?;
    let length = inner - source.at();
    source.bytes(length, limit, what)
}

/// Text of at most 64 KiB.
pub fn text<R: Read + Seek>(source: &mut Source<R>, end: u64, what: &str) -> Result<String, Fault> {
    let at = source.at();
    let bytes = bytes(source, end, 1 << 16, what)?;
    String::from_utf8(bytes).or_else(|_| malformed(at, format!("{what} is not UTF-8")))
}

/// Past a field that is not needed.
pub fn skip<R: Read + Seek>(source: &mut Source<R>, end: u64, wire: Wire) -> Result<(), Fault> {
    let length = match wire {
        Wire::Varint => return varint(source, end).map(|_| ()),
        Wire::Eight => 8,
        Wire::Four => 4,
        Wire::Length => message(source, end)? - source.at(),
    };
    if length > end.saturating_sub(source.at()) {
        return malformed(source.at(), "a field passes the end of its message");
    }
    source.skip(length, "a field")
}

/// Integers that are packed into one field or written one by one; at most `limit` of them.
pub fn integers<R: Read + Seek>(
    source: &mut Source<R>,
    end: u64,
    wire: Wire,
    limit: usize,
    into: &mut Vec<i64>,
) -> Result<(), Fault> {
    let inner = if wire == Wire::Length { message(source, end)? } else { end };
    loop {
        if wire == Wire::Length && source.at() >= inner {
            return Ok(());
        }
        if into.len() >= limit {
            return malformed(source.at(), format!("a list of more than {limit} numbers"));
        }
        into.push(varint(source, inner)? as i64);
        if wire != Wire::Length {
            return Ok(());
        }
    }
}
