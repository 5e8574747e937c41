//! Base64 (RFC 4648, with padding), because a script element holds text.

use std::io::{self, Write};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn write(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    // A multiple of three, so that only the last piece is padded.
    let mut text = Vec::with_capacity(4 * 16_384);
    for piece in bytes.chunks(3 * 16_384) {
        text.clear();
        for three in piece.chunks(3) {
            let word = three
                .iter()
                .zip([16, 8, 0])
                .fold(0u32, |word, (&byte, shift)| word | u32::from(byte) << shift);
            let digit = |shift: u32| ALPHABET[(word >> shift & 63) as usize];
            text.extend_from_slice(&[
                digit(18),
                digit(12),
                if three.len() > 1 { digit(6) } else { b'=' },
                if three.len() > 2 { digit(0) } else { b'=' },
            ]);
        }
        out.write_all(&text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_vectors_of_the_standard_come_out() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            let mut out = Vec::new();
            super::write(&mut out, bytes.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
