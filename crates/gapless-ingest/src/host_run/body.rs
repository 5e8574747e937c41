//! The body of one record: numbers and texts, never past its end.

use crate::error::{Fault, wrong};

pub(super) struct Body<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl<'a> Body<'a> {
    /// `at`: the record's offset in the file, for errors.
    pub(super) fn new(bytes: &'a [u8], at: u64) -> Body<'a> {
        Body { bytes, at }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn bytes(&mut self, count: u32) -> Result<&'a [u8], Fault> {
        match self.bytes.split_at_checked(count as usize) {
            Some((first, rest)) => {
                self.bytes = rest;
                Ok(first)
            }
            None => wrong(self.at, "a record is shorter than its content"),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N as u32)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A text with its length before it.
    pub(super) fn text(&mut self) -> Result<String, Fault> {
        let length = self.u32()?;
        Ok(String::from_utf8_lossy(self.bytes(length)?).into_owned())
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }
}
