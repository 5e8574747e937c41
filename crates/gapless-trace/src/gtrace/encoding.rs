//! Varints, and a cursor that reads them from untrusted bytes without ever passing their end.

/// An error in a payload; the reader adds block and offset.
pub(super) type Fault = String;

#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Small differences of either sign as small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
pub(super) fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64) >> 63) as u64
}

#[inline]
pub(super) fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// Reads from the front of a slice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        let (&first, rest) = self.rest.split_first().ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(first)
    }

    #[inline(always)]
    pub(super) fn varint(&mut self) -> Result<u64, Fault> {
        // Most are one or two bytes long.
        match self.rest {
            [a, rest @ ..] if *a < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*a))
            }
            [a, b, rest @ ..] if *b < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*a & 0x7f) | u64::from(*b) << 7)
            }
            _ => self.long_varint(),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number is longer than 64 bits".to_owned())
    }

    /// A number below 2^32.
    #[inline]
    pub(super) fn varint32(&mut self) -> Result<u32, Fault> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| format!("{value} where a 32-bit number belongs"))
    }

    #[inline]
    pub(super) fn zigzag(&mut self) -> Result<u64, Fault> {
        self.varint().map(unzigzag)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Fault> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("{other} where yes (1) or no (0) belongs")),
        }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (front, rest) = self.rest.split_at_checked(len).ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(front)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (front, rest) = self.rest.split_first_chunk::<N>().ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(*front)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Fault> {
        let len = usize::try_from(self.varint()?).map_err(|_| ends_early())?;
        std::str::from_utf8(self.bytes(len)?).map_err(|_| "a text is not UTF-8".to_owned())
    }

    pub(super) fn finish(&self) -> Result<(), Fault> {
        if self.rest.is_empty() { Ok(()) } else { Err(format!("{} byte(s) left over", self.rest.len())) }
    }
}

#[cold]
fn ends_early() -> Fault {
    "the payload ends before its last entry".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_come_back() {
        let mut values: Vec<u64> =
            (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, !(1 << bit)]).collect();
        values.push(u64::MAX);
        let mut out = Vec::new();
        for &value in &values {
            put(&mut out, value);
            put(&mut out, zigzag(value));
        }
        let mut cursor = Cursor::new(&out);
        for &value in &values {
            assert_eq!(cursor.varint().unwrap(), value);
            assert_eq!(cursor.zigzag().unwrap(), value);
        }
        cursor.finish().unwrap();
    }

    #[test]
    fn a_number_beyond_64_bits_or_cut_short_is_refused() {
        for bytes in [&[0xff; 11][..], &[0x80; 9], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert!(Cursor::new(bytes).varint().is_err());
        }
        let mut largest = Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(largest.varint().unwrap(), u64::MAX);
    }

    #[test]
    fn small_differences_of_either_sign_are_one_byte() {
        for difference in [0i64, -1, 1, 63, -64] {
            assert!(zigzag(difference as u64) < 0x80, "{difference}");
        }
    }
}
