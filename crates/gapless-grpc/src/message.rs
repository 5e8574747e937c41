//! The wire format of protocol buffers, for messages that fit in memory.

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A number, a boolean or an enum.
    Number(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// A number of fixed width, which no message here has.
    Fixed,
}

/// The fields of a message with their numbers, in order; an error if this is no message.
pub fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, Field<'_>)>, String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            2 => {
                let length = varint(&mut bytes)?;
                let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len());
                let (part, rest) = bytes.split_at(length.ok_or("a field is longer than its message")?);
                bytes = rest;
                Field::Bytes(part)
            }
            kind @ (1 | 5) => {
                bytes = bytes.get(if kind == 1 { 8 } else { 4 }..).ok_or("a field is cut off")?;
                Field::Fixed
            }
            kind => return Err(format!("a field of unknown kind {kind}")),
        };
        if tag >> 3 == 0 {
            return Err("a field without a number".to_owned());
        }
        all.push((tag >> 3, field));
    }
    Ok(all)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0u64;
    for at in 0..10 {
        let (&byte, rest) = bytes.split_first().ok_or("a number is cut off")?;
        *bytes = rest;
        if at == 9 && byte > 1 {
            break;
        }
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number is too long".to_owned())
}

/// The last text with this number; empty if there is none, as the format defines it.
pub fn text(fields: &[(u64, Field<'_>)], number: u64) -> Result<String, String> {
    let of_it = fields.iter().rev().find(|(other, _)| *other == number);
    match of_it {
        Some((_, Field::Bytes(bytes))) => {
            String::from_utf8(bytes.to_vec()).map_err(|_| format!("field {number} is not UTF-8"))
        }
        Some(_) => Err(format!("field {number} is a number, not text")),
        None => Ok(String::new()),
    }
}

/// A message that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    /// Adds a text. An empty one is left out, as the format does with values that are the default.
    #[must_use]
    pub fn text(self, number: u64, text: &str) -> Message {
        if text.is_empty() { self } else { self.bytes(number, text.as_bytes()) }
    }

    /// Adds a message, which may be empty.
    #[must_use]
    pub fn message(self, number: u64, message: &Message) -> Message {
        self.bytes(number, &message.0)
    }

    #[must_use]
    fn bytes(mut self, number: u64, bytes: &[u8]) -> Message {
        self.varint(number << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let inner = Message::default().text(1, "a").text(2, "");
        let long = "x".repeat(300);
        let bytes =
            Message::default().text(1, &long).message(2, &inner).message(17, &Message::default()).finish();
        let all = fields(&bytes).expect("a message");
        assert_eq!(text(&all, 1), Ok(long));
        assert_eq!(text(&all, 3), Ok(String::new()));
        assert_eq!(all[1], (2, Field::Bytes(b"\x0a\x01a")));
        assert_eq!(all[2], (17, Field::Bytes(b"")));
        let others = fields(b"\x08\x96\x01\x11\0\0\0\0\0\0\0\0\x1d\0\0\0\0").expect("a message");
        assert_eq!(others, [(1, Field::Number(150)), (2, Field::Fixed), (3, Field::Fixed)]);
        assert!(text(&others, 1).is_err());
    }

    #[test]
    fn no_text_is_read_beyond_its_message() {
        for wrong in [
            &b"\x0a"[..],
            b"\x0a\x02a",
            b"\x0b",
            b"\x08",
            b"\x08\xff",
            b"\x11abc",
            b"\x02\x00",
            b"\x0a\xff\xff\xff\xff\x0f",
        ] {
            assert!(fields(wrong).is_err(), "{wrong:?}");
        }
        assert!(fields(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]).is_err());
        let most =
            fields(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]).expect("a number");
        assert_eq!(most, [(1, Field::Number(u64::MAX))]);
    }
}
