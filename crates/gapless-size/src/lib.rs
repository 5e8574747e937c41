//! Sizes as people write them: `24GiB`, `1.5 GB`, `512m`, `4096`.
//!
//! Every flag, environment variable and file of Gapless reads sizes with [`parse`], so that one text means one number
//! everywhere. Letters may have any case. KiB, MiB, GiB and TiB are powers of 1024, and so are K, M, G and T alone,
//! because a card of "24G" has 24 GiB. KB, MB, GB and TB are powers of 1000. `testdata/sizes.csv` has examples, which
//! the tests of every reader use.
//!
//! It allocates nothing, because the library below `malloc` calls it before there is a heap.

#![cfg_attr(not(test), no_std)]

use core::fmt;

/// The largest size (2^60): device allocators refuse it too, and sums of fewer than 16 of them cannot wrap.
pub const LIMIT: u64 = 1 << 60;

/// A size that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    /// True if the text has a unit; a bare number is a number of bytes.
    pub has_unit: bool,
}

/// The reason why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    NoNumber,
    Negative,
    Unit,
    TooLarge,
}

impl Wrong {
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Wrong::NoNumber => "it does not begin with a number",
            Wrong::Negative => "it is below 0",
            Wrong::Unit => "the unit is not one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB",
            Wrong::TooLarge => "it is too large, sizes end at 1048576TiB",
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

impl core::error::Error for Wrong {}

/// Reads a size: a number, which may have a fraction and `_` between its digits, then its unit. Half a byte is rounded
/// up.
///
/// # Errors
/// When the text is no size, or one beyond [`LIMIT`].
pub fn parse(text: &[u8]) -> Result<Size, Wrong> {
    let text = text.trim_ascii();
    if let [b'-', b'0'..=b'9' | b'.', ..] = text {
        return Err(Wrong::Negative);
    }
    let end =
        text.iter().position(|b| !b.is_ascii_digit() && !matches!(b, b'.' | b'_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = read_number(number)?;
    let unit = unit.trim_ascii();
    let scale = scale(unit).ok_or(Wrong::Unit)?;
    let fraction = (number.below * u128::from(scale) + number.parts / 2) / number.parts;
    let bytes = number
        .whole
        .checked_mul(u128::from(scale))
        .and_then(|whole| whole.checked_add(fraction))
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|&bytes| bytes <= LIMIT)
        .ok_or(Wrong::TooLarge)?;
    Ok(Size { bytes, has_unit: !unit.is_empty() })
}

/// `whole + below / parts`.
struct Number {
    whole: u128,
    below: u128,
    parts: u128,
}

/// More digits of a fraction than this are left out: because they are less than a byte in any unit.
const MOST_PARTS: u128 = 1_000_000_000_000_000_000;

fn read_number(text: &[u8]) -> Result<Number, Wrong> {
    let mut number = Number { whole: 0, below: 0, parts: 1 };
    let (mut digits, mut dots) = (0, 0);
    for &byte in text {
        match byte {
            b'.' => dots += 1,
            b'_' => {}
            _ if dots == 0 => {
                digits += 1;
                let more = number.whole.checked_mul(10).and_then(|w| w.checked_add(u128::from(byte - b'0')));
                number.whole = more.ok_or(Wrong::TooLarge)?;
            }
            _ => {
                digits += 1;
                if number.parts < MOST_PARTS {
                    number.below = number.below * 10 + u128::from(byte - b'0');
                    number.parts *= 10;
                }
            }
        }
    }
    if digits == 0 || dots > 1 || text.first() == Some(&b'_') { Err(Wrong::NoNumber) } else { Ok(number) }
}

/// The bytes of a unit.
fn scale(unit: &[u8]) -> Option<u64> {
    let Some((letter, rest)) = unit.split_first() else { return Some(1) };
    if unit.eq_ignore_ascii_case(b"b") {
        return Some(1);
    }
    let power = 1 + b"kmgt".iter().position(|known| known.eq_ignore_ascii_case(letter))? as u32;
    if rest.is_empty() || rest.eq_ignore_ascii_case(b"ib") {
        Some(1024u64.pow(power))
    } else if rest.eq_ignore_ascii_case(b"b") {
        Some(1000u64.pow(power))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a text, its bytes or the error, and true if it has a unit.
    const TABLE: &str = include_str!("../../../testdata/sizes.csv");

    #[test]
    fn sizes_are_read_as_the_table_says() {
        let mut seen = 0;
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('|').collect();
            let [text, bytes, unit] = fields[..] else { panic!("three fields: {line}") };
            let wanted = match bytes {
                "no number" => Err(Wrong::NoNumber),
                "negative" => Err(Wrong::Negative),
                "unit" => Err(Wrong::Unit),
                "too large" => Err(Wrong::TooLarge),
                bytes => Ok(Size { bytes: bytes.parse().expect("a number"), has_unit: unit == "unit" }),
            };
            assert_eq!(parse(text.as_bytes()), wanted, "{text:?}");
            seen += 1;
        }
        assert!(seen > 40, "{seen}");
    }

    #[test]
    fn a_fraction_is_exact_to_the_byte_and_half_a_byte_is_rounded_up() {
        for bytes in [0u64, 1, 5, 511, 512, 513, 1023] {
            // Every multiple of 1/1024 has at most ten digits behind the dot.
            let text = format!("{:.10}KiB", bytes as f64 / 1024.0);
            assert_eq!(parse(text.as_bytes()).map(|size| size.bytes), Ok(bytes), "{text}");
        }
        assert_eq!(parse(b"0.4999B").map(|size| size.bytes), Ok(0));
        assert_eq!(parse(b"0.5B").map(|size| size.bytes), Ok(1));
    }
}
