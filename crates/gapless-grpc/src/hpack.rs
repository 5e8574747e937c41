//! The compression of headers (RFC 7541): a decoder with all of it, and an encoder that needs none.

use std::collections::VecDeque;

/// The most bytes of the decoder's table, as it counts them. The encoder may use as many.
const TABLE: usize = 4096;
/// The bytes that an entry counts beside its texts.
const OVERHEAD: usize = 32;

/// A header.
pub type Header = (Vec<u8>, Vec<u8>);

/// The table that every decoder has (appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The decoder of one connection.
#[derive(Debug)]
pub struct Decoder {
    table: VecDeque<Header>,
    size: usize,
    most: usize,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { table: VecDeque::new(), size: 0, most: TABLE }
    }
}

impl Decoder {
    /// The headers of a block; at most `limit` bytes of them. After an error the connection is of no use.
    pub fn decode(&mut self, mut block: &[u8], limit: usize) -> Result<Vec<Header>, String> {
        let mut headers: Vec<Header> = Vec::new();
        let mut bytes = 0usize;
        while let Some(&first) = block.first() {
            let header = match first {
                0x80.. => {
                    let index = integer(&mut block, 7)?;
                    self.entry(index)?
                }
                0x40.. => {
                    let header = self.literal(&mut block, 6)?;
                    self.insert(header.clone());
                    header
                }
                0x20.. => {
                    let most = integer(&mut block, 5)?;
                    if most > TABLE || !headers.is_empty() {
                        return Err("an invalid size of the table of headers".to_owned());
                    }
                    self.most = most;
                    self.evict();
                    continue;
                }
                _ => self.literal(&mut block, 4)?,
            };
            bytes += header.0.len() + header.1.len() + OVERHEAD;
            if bytes > limit {
                return Err("too many headers".to_owned());
            }
            headers.push(header);
        }
        Ok(headers)
    }

    fn literal(&self, block: &mut &[u8], prefix: u32) -> Result<Header, String> {
        let name = match integer(block, prefix)? {
            0 => string(block)?,
            index => self.entry(index)?.0,
        };
        Ok((name, string(block)?))
    }

    fn entry(&self, index: usize) -> Result<Header, String> {
        let wrong = || format!("no header has the index {index}");
        let at = index.checked_sub(1).ok_or_else(wrong)?;
        if let Some((name, value)) = STATIC.get(at) {
            return Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        }
        self.table.get(at - STATIC.len()).cloned().ok_or_else(wrong)
    }

    fn insert(&mut self, header: Header) {
        self.size += header.0.len() + header.1.len() + OVERHEAD;
        self.table.push_front(header);
        self.evict();
    }

    fn evict(&mut self) {
        while self.size > self.most {
            let Some((name, value)) = self.table.pop_back() else { return };
            self.size -= name.len() + value.len() + OVERHEAD;
        }
    }
}

/// A number that begins in the low `prefix` bits of the first byte.
fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, String> {
    let mut next = || {
        let (&byte, rest) = block.split_first().ok_or("the headers are cut off")?;
        *block = rest;
        Ok::<u8, String>(byte)
    };
    let full = (1usize << prefix) - 1;
    let mut number = usize::from(next()?) & full;
    if number < full {
        return Ok(number);
    }
    for at in 0..4 {
        let byte = next()?;
        number += usize::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number in the headers is too large".to_owned())
}

fn string(block: &mut &[u8]) -> Result<Vec<u8>, String> {
    let is_short = block.first().is_some_and(|byte| byte & 0x80 != 0);
    let length = integer(block, 7)?;
    let text = block.get(..length).ok_or("the headers are cut off")?;
    *block = &block[length..];
    if is_short { huffman(text) } else { Ok(text.to_vec()) }
}

/// The lengths of the codes of all bytes (appendix B). The codes are canonical: those of one length follow each other,
/// in the order of their bytes.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];
/// The longest code.
const LONGEST: usize = 30;

/// For each length: the first code, the number of codes, and the place of the first in `BYTES`.
const CODES: ([[u32; 3]; LONGEST + 1], [u8; 256]) = {
    let mut table = [[0; 3]; LONGEST + 1];
    let mut bytes = [0; 256];
    let (mut length, mut code, mut place) = (1, 0u32, 0);
    while length <= LONGEST {
        code <<= 1;
        table[length] = [code, 0, place as u32];
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                bytes[place] = byte as u8;
                place += 1;
                table[length][1] += 1;
            }
            byte += 1;
        }
        code += table[length][1];
        length += 1;
    }
    (table, bytes)
};

fn huffman(text: &[u8]) -> Result<Vec<u8>, String> {
    let (table, bytes) = &CODES;
    let mut out = Vec::with_capacity(text.len() * 2);
    let (mut code, mut length) = (0u32, 0usize);
    for bit in text.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)) {
        code = code << 1 | u32::from(bit);
        length += 1;
        let [first, count, place] = table[length];
        if code >= first && code - first < count {
            out.push(bytes[(place + code - first) as usize]);
            (code, length) = (0, 0);
        } else if length == LONGEST {
            return Err("a text in the headers has an invalid code".to_owned());
        }
    }
    // The rest is the beginning of the longest code, all ones, and less than a byte.
    if length >= 8 || code != (1 << length) - 1 {
        return Err("a text in the headers ends within a code".to_owned());
    }
    Ok(out)
}

/// A header as the encoder writes it: its texts as they are, which no table remembers.
pub fn encode(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    for text in [name, value] {
        length(out, text.len());
        out.extend_from_slice(text.as_bytes());
    }
}

fn length(out: &mut Vec<u8>, mut number: usize) {
    if number < 0x7f {
        out.push(number as u8);
        return;
    }
    out.push(0x7f);
    number -= 0x7f;
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("a byte");
        digits.chunks(2).map(byte).collect()
    }

    fn text(headers: Vec<Header>) -> Vec<String> {
        let one = |(name, value): Header| [name, b"=".to_vec(), value].concat();
        headers.into_iter().map(|header| String::from_utf8(one(header)).expect("UTF-8")).collect()
    }

    /// The examples of appendix C.3 and C.4, three requests on one connection, without Huffman's codes and with them.
    #[test]
    fn the_examples_of_the_standard_are_read() {
        let plain = [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ];
        let coded = [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ];
        for blocks in [plain, coded] {
            let mut decoder = Decoder::default();
            let mut read = blocks.map(|block| text(decoder.decode(&bytes(block), 4096).expect("headers")));
            let [first, second, third] = &mut read;
            assert_eq!(*first, [":method=GET", ":scheme=http", ":path=/", ":authority=www.example.com"]);
            assert_eq!(second.pop().expect("a header"), "cache-control=no-cache");
            assert_eq!(second, first);
            assert_eq!(
                third[1..],
                [
                    ":scheme=https",
                    ":path=/index.html",
                    ":authority=www.example.com",
                    "custom-key=custom-value"
                ]
            );
            assert_eq!(decoder.size, 164, "as the standard counts");
        }
    }

    /// Appendix C.5: a table of 256 bytes loses its oldest entries.
    #[test]
    fn a_small_table_forgets() {
        let mut decoder = Decoder::default();
        for at in 0..200 {
            let mut block = if at == 0 { vec![0x3f, 0xe1, 0x01] } else { Vec::new() };
            block.extend([0x40, 1, b'a' + (at % 26) as u8, 1, b'x']);
            decoder.decode(&block, 4096).expect("headers");
            assert!(decoder.size <= 256);
        }
        assert_eq!(decoder.table.len(), 256 / 34);
        assert!(decoder.decode(&[0x80 | (62 + 6)], 4096).is_ok());
        assert!(decoder.decode(&[0x80 | (62 + 7)], 4096).is_err());
    }

    #[test]
    fn what_the_encoder_writes_the_decoder_reads() {
        let long = "v".repeat(1000);
        let mut block = Vec::new();
        encode(&mut block, "grpc-status", "0");
        encode(&mut block, "a", &long);
        let read = Decoder::default().decode(&block, 4096).expect("headers");
        assert_eq!(text(read), ["grpc-status=0".to_owned(), format!("a={long}")]);
        assert!(Decoder::default().decode(&block, 1000).is_err(), "beyond the limit");
    }

    #[test]
    fn every_byte_has_its_code_and_wrong_ones_are_refused() {
        let (table, bytes_by_code) = &CODES;
        for byte in 0..=255u8 {
            let length = usize::from(LENGTHS[usize::from(byte)]);
            let [first, count, place] = table[length];
            let at = (0..count).find(|at| bytes_by_code[(place + at) as usize] == byte).expect("a code");
            let word = u64::from(first + at) << (64 - length) | (u64::MAX >> length);
            let coded = &word.to_be_bytes()[..length.div_ceil(8)];
            assert_eq!(huffman(coded), Ok(vec![byte]));
        }
        for wrong in [&[0xff][..], &[0xff; 4], &[0xff, 0xff], &[0x18]] {
            assert!(huffman(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["80", "be", "41", "ff ff ff ff ff ff", "3f e2 1f", "82 20", "00 01", "40 05 61"] {
            assert!(Decoder::default().decode(&bytes(wrong), 4096).is_err(), "{wrong}");
        }
    }
}
