//! The wire format of protocol buffers, the part that ONNX uses: a message is a row of fields, each a number, a wire
//! type (0: varint, 1: eight bytes, 2: a length and that many bytes, 5: four bytes) and a value.
//!
//! Nothing is copied and nothing is trusted: lengths are checked against the message around them, and a message is
//! read only on request, so that the reader controls the depth. Errors name the byte in the file.

use crate::error::{Error, Result};

/// The bytes `at..end` of a file. Invariant: `at <= end <= file.len()`.
#[derive(Clone, Copy)]
pub(super) struct Message<'f> {
    file: &'f [u8],
    at: usize,
    end: usize,
}

pub(super) struct Field<'f> {
    pub(super) number: u64,
    byte: usize,
    value: Value<'f>,
}

#[derive(Clone, Copy)]
enum Value<'f> {
    Varint(u64),
    /// Four or eight bytes; no field that is read here has them.
    Fixed,
    Bytes(Message<'f>),
}

impl<'f> Message<'f> {
    pub(super) fn new(file: &'f [u8]) -> Message<'f> {
        Message { file, at: 0, end: file.len() }
    }

    /// The next field, `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Field<'f>>> {
        if self.at == self.end {
            return Ok(None);
        }
        let byte = self.at;
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 || number >= 1 << 29 {
            return Err(wrong(byte, format!("a field numbered {number}")));
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.skip(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Value::Fixed)?,
            other => return Err(wrong(byte, format!("a field of wire type {other}"))),
        };
        Ok(Some(Field { number, byte, value }))
    }

    fn skip(&mut self, length: u64) -> Result<Message<'f>> {
        let left = self.end - self.at;
        let length = usize::try_from(length).ok().filter(|length| *length <= left).ok_or_else(|| {
            wrong(self.at, format!("a field of {length} bytes, where {left} are left of what holds it"))
        })?;
        let inner = Message { file: self.file, at: self.at, end: self.at + length };
        self.at += length;
        Ok(inner)
    }

    fn varint(&mut self) -> Result<u64> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let next = self.file[..self.end].get(self.at).copied();
            let next = next.ok_or_else(|| wrong(start, "a number that is cut off".to_owned()))?;
            self.at += 1;
            let bits = u64::from(next & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if next & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(wrong(start, "a number of more than 64 bits".to_owned()))
    }
}

impl<'f> Field<'f> {
    pub(super) fn message(&self) -> Result<Message<'f>> {
        match self.value {
            Value::Bytes(message) => Ok(message),
            _ => Err(self.unexpected("a message")),
        }
    }

    pub(super) fn text(&self) -> Result<&'f str> {
        match self.value {
            Value::Bytes(Message { file, at, end }) => std::str::from_utf8(&file[at..end])
                .map_err(|_| wrong(self.byte, "a name that is not UTF-8".to_owned())),
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn number(&self) -> Result<u64> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(self.unexpected("a number")),
        }
    }

    fn unexpected(&self, what: &str) -> Error {
        wrong(self.byte, format!("field {} is not {what}", self.number))
    }
}

fn wrong(byte: usize, what: String) -> Error {
    Error::OnnxBytes { byte, what }
}
