//! A tenant's share as people write it: `a:30GiB`, `a:60%:borrow`. The name is 1 to 63 letters, digits, `.`, `_` or
//! `-`.

use std::fmt;

/// The longest name, in bytes, for which a record has room.
pub const LONGEST: usize = 63;

/// A part of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Bytes(u64),
    /// A part of the card, in hundredths of a per cent.
    Part(u32),
}

impl Size {
    /// The size in bytes, for a card of `capacity` bytes.
    #[must_use]
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Part(part) => (u128::from(capacity) * u128::from(part) / 10_000) as u64,
        }
    }
}

/// A tenant, and the memory that it may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub name: String,
    pub size: Size,
    /// True if it may hold more while no other tenant needs it.
    pub borrow: bool,
}

/// The reason why a text is not a valid share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareError(String);

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: write NAME:BYTES or NAME:PART%, with :borrow behind it, such as a:30GiB:borrow",
            self.0
        )
    }
}

impl std::error::Error for ShareError {}

impl std::str::FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Share, ShareError> {
        let wrong = |what: String| Err(ShareError(what));
        let mut parts = text.split(':').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > LONGEST || !name.chars().all(fine) {
            return wrong(format!(
                "invalid tenant name {name:?}: use letters, digits, . _ -, at most {LONGEST} characters"
            ));
        }
        let Some(size) = parts.next() else { return wrong(format!("{text:?} does not say how much")) };
        let Some(size) = parse_size(size) else {
            return wrong(format!(
                "invalid share {size:?}: use a size or a percentage, such as 30GiB or 60%"
            ));
        };
        let borrow = match parts.next() {
            None => false,
            Some("borrow") => true,
            Some(other) => return wrong(format!("{other:?} is not borrow")),
        };
        if parts.next().is_some() {
            return wrong(format!("{text:?} has too many parts"));
        }
        Ok(Share { name: name.to_owned(), size, borrow })
    }
}

/// `30GiB`, `1.5g`, `60%`, `12.5%`, a whole number of bytes; more than 0, and at most 100 %.
fn parse_size(text: &str) -> Option<Size> {
    if let Some(percent) = text.strip_suffix('%') {
        let (whole, rest) = percent.trim().split_once('.').unwrap_or((percent.trim(), "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(rest) || rest.len() > 2 || whole.len() > 3 {
            return None;
        }
        let part = whole.parse::<u32>().ok()? * 100 + format!("{rest:0<2}").parse::<u32>().ok()?;
        return (1..=10_000).contains(&part).then_some(Size::Part(part));
    }
    let bytes = gapless_size::parse(text.as_bytes()).ok()?.bytes;
    (bytes > 0).then_some(Size::Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Share>().map(|s| (s.name, s.size, s.borrow));
        assert_eq!(read("a:30GiB"), Ok(("a".into(), Size::Bytes(30 << 30), false)));
        assert_eq!(read("team-b:60%:borrow"), Ok(("team-b".into(), Size::Part(6000), true)));
        assert_eq!(read("x: 12.5% "), Ok(("x".into(), Size::Part(1250), false)));
        assert_eq!(read("x:1.5g"), Ok(("x".into(), Size::Bytes(3 << 29), false)));
        for wrong in [
            "",
            "a",
            "a:",
            ":1GiB",
            "a b:1",
            "a:0",
            "a:0%",
            "a:101%",
            "a:1e9",
            "a:1GiB:lend",
            "a:1:borrow:x",
            "a:-1",
            "a:%",
            "a:1.234%",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read(&format!("{}:1", "n".repeat(64))).is_err());
    }

    #[test]
    fn sizes_are_those_of_every_other_door() {
        for line in include_str!("../../../testdata/sizes.csv").lines().filter(|line| !line.starts_with('#'))
        {
            let fields: Vec<&str> = line.split('|').collect();
            let wanted = fields[1].parse::<u64>().ok().filter(|&bytes| bytes > 0).map(Size::Bytes);
            assert_eq!(parse_size(fields[0].trim()), wanted, "{line}");
        }
    }

    #[test]
    fn a_part_is_of_the_card_and_rounds_down() {
        assert_eq!(Size::Part(6000).of(143_771 << 20), (143_771u64 << 20) * 6 / 10);
        assert_eq!(Size::Part(3333).of(10), 3);
        assert_eq!(Size::Bytes(7).of(3), 7);
    }
}
