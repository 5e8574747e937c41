//! Checks names of objects before they become parts of a path of the API server, because any client of the extender
//! can send any text.

/// The longest name of an object, and of a namespace.
const LONGEST: usize = 253;
const LONGEST_LABEL: usize = 63;
const LONGEST_UID: usize = 128;

/// True if an object may have this name: lower-case letters, digits, `-` and `.`, with a letter or digit at both ends.
pub fn is_name(text: &str) -> bool {
    let is_inner =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST
        && bytes.iter().all(|byte| is_inner(*byte))
        && bytes.first().is_some_and(is_end)
        && bytes.last().is_some_and(is_end)
        && !text.contains("..")
}

/// True if a namespace may have this name.
pub fn is_namespace(text: &str) -> bool {
    text.len() <= LONGEST_LABEL && !text.contains('.') && is_name(text)
}

/// True if this may be an object's uid.
pub fn is_uid(text: &str) -> bool {
    let is_of_uid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=LONGEST_UID).contains(&text.len()) && text.bytes().all(is_of_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_ends_a_part_of_a_path_is_a_name() {
        for byte in 0..=255u8 {
            let text = String::from_utf8_lossy(&[b'a', byte, b'a']).into_owned();
            let is_right = byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
            assert_eq!(is_name(&text), is_right, "{text:?}");
            assert_eq!(is_namespace(&text), is_right && byte != b'.', "{text:?}");
            assert!(!is_uid(&text) || byte.is_ascii_alphanumeric() || b"-._".contains(&byte), "{text:?}");
        }
        for wrong in
            ["", ".", "..", "-a", "a-", "a..b", "a/../b", "a\r\nb", "a%2fb", "a?b", "ä", &"a".repeat(254)]
        {
            assert!(!is_name(wrong), "{wrong:?}");
        }
        assert!(is_name("node-7.example") && is_name(&"a".repeat(253)));
        assert!(is_namespace(&"a".repeat(63)) && !is_namespace(&"a".repeat(64)));
        assert!(is_uid("1a2b-3c") && !is_uid("") && !is_uid(&"a".repeat(129)));
    }
}
