//! Base64 (RFC 4648, with padding), because a script element holds text.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The two digits of each number of twelve bits.
static PAIRS: [[u8; 2]; 4096] = {
    let mut pairs = [[0; 2]; 4096];
    let mut i = 0;
    while i < pairs.len() {
        pairs[i] = [ALPHABET[i >> 6], ALPHABET[i & 63]];
        i += 1;
    }
    pairs
};

pub(crate) fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut text = vec![0; bytes.len().div_ceil(3) * 4];
    let digits = |word: u32| {
        let ([a, b], [c, d]) = (PAIRS[(word >> 12 & 0xfff) as usize], PAIRS[(word & 0xfff) as usize]);
        [a, b, c, d]
    };
    let mut threes = bytes.chunks_exact(3);
    let mut fours = text.chunks_exact_mut(4);
    for (three, four) in (&mut threes).zip(&mut fours) {
        let word = u32::from(three[0]) << 16 | u32::from(three[1]) << 8 | u32::from(three[2]);
        four.copy_from_slice(&digits(word));
    }
    if let (Some(four), [first, second @ ..]) = (fours.next(), threes.remainder()) {
        let second = second.first();
        let word = u32::from(*first) << 16 | u32::from(second.copied().unwrap_or(0)) << 8;
        four.copy_from_slice(&digits(word));
        four[3] = b'=';
        if second.is_none() {
            four[2] = b'=';
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_vectors_of_the_standard_come_out() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(String::from_utf8(super::encode(bytes.as_bytes())).unwrap(), text);
        }
        let digits: Vec<u8> = (0..64).map(|i| super::encode(&[i << 2])[0]).collect();
        assert_eq!(digits, super::ALPHABET);
    }
}
