//! Sizes on the command line: the grammar of `gapless-size`, and each one with its unit.
//!
//! A bare number would be bytes, which users almost never mean: `--capacity 24` asks for a card of 24 bytes.

use crate::failure::Failure;
use anyhow::Result;
use gapless_trace::Bytes;

/// Reads the size that `flag` was given; `example` is a valid value for the message. Zero needs no unit.
pub(crate) fn parse(flag: &str, text: &str, example: &str) -> Result<Bytes> {
    let help = if flag.starts_with("--") {
        format!("for example {flag} {example}")
    } else {
        format!("for example {example}")
    };
    let size: Bytes = text.parse().map_err(|error| Failure::new(format!("{flag}: {error}"), help))?;
    let has_unit = gapless_size::parse(text.as_bytes()).is_ok_and(|size| size.has_unit);
    if !has_unit && size != Bytes::ZERO {
        let number = text.trim();
        let unit = example.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        return Err(Failure::new(
            format!("{flag}: the size {text:?} has no unit"),
            format!("write {number}{unit}, or {number}B for bytes"),
        )
        .into());
    }
    Ok(size)
}

/// The same for a size that must not be 0.
pub(crate) fn positive(flag: &str, text: &str, example: &str) -> Result<Bytes> {
    let size = parse(flag, text, example)?;
    if size == Bytes::ZERO {
        let what = format!("{flag}: invalid size {text:?}: it must be more than 0");
        return Err(Failure::new(what, format!("for example {flag} {example}")).into());
    }
    Ok(size)
}

/// The same for the memory of a card or of a host, which is at least 1 MiB.
pub(crate) fn memory(flag: &str, text: &str) -> Result<Bytes> {
    const LEAST: Bytes = Bytes(1 << 20);
    let size = positive(flag, text, "24GiB")?;
    if size < LEAST {
        let what = format!("{flag}: {text} is less than 1 MiB");
        return Err(Failure::new(what, format!("for example {flag} 24GiB")).into());
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> (String, String) {
        let error = parse("--capacity", text, "24GiB").expect_err(text);
        let help = error.downcast_ref::<Failure>().expect("a next step").help.clone();
        (error.to_string(), help)
    }

    #[test]
    fn a_size_has_its_unit_and_a_bare_number_is_told_how_to_be_written() {
        for text in ["24GiB", "24G", "24GB", "24 gib", "1_000B", "0", "1.5g"] {
            assert_eq!(parse("--capacity", text, "24GiB").ok(), text.parse().ok(), "{text}");
        }
        for text in ["24", "1048576", "1_000", "1.5", " 24 "] {
            let (what, help) = told(text);
            let number = text.trim();
            assert!(what.contains("has no unit") && help.contains(&format!("{number}GiB")), "{what} {help}");
            assert!(help.contains(&format!("{number}B for bytes")), "{help}");
        }
        assert!(told("99999999TiB").0.contains("too large"));
        assert!(told("-1").0.contains("below 0"));
        assert!(told("lots").1.contains("for example --capacity 24GiB"));
    }

    #[test]
    fn memory_is_more_than_a_mistyped_unit() {
        assert_eq!(memory("--memory", "24GiB").ok(), Some(Bytes(24 << 30)));
        for text in ["24", "24k", "0", "0GiB"] {
            assert!(memory("--memory", text).is_err(), "{text}");
        }
        assert!(positive("--limit-rate", "0", "500MB").is_err());
    }
}
