//! Packs a section of the page as raw deflate (RFC 1951): pieces that repeat themselves by flate2, the rest by Huffman
//! codes alone.
//!
//! A search for repetitions is most of deflate's time. It pays for columns of a training run, which repeat
//! themselves. Columns of random sizes and lifetimes do not, so only the bytes' frequencies help there. So each piece
//! is probed, and neighbours of the same nature are packed together. Every run of pieces ends at a whole byte, so
//! runs simply follow each other.

use super::huffman;
use flate2::{Compress, Compression, FlushCompress};

/// Measured on recorded runs: level 1 writes a fifth more bytes in the same time, level 6 one to two percent fewer in a
/// tenth more.
const LEVEL: u32 = 3;
/// Bytes for which the choice is made together. Deflate's own blocks are of about this size.
const PIECE: usize = 64 << 10;

/// The bytes of a section, packed.
pub(crate) fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() / 2 + 64);
    let mut rest = bytes;
    while !rest.is_empty() {
        let (repeats, length) = run(rest);
        let (now, later) = rest.split_at(length);
        if repeats {
            search(now, &mut out);
        } else {
            huffman::blocks(now, &mut out);
        }
        rest = later;
    }
    huffman::end(&mut out);
    out
}

/// True if the first piece repeats itself, and the length of all pieces from it on with the same answer.
fn run(bytes: &[u8]) -> (bool, usize) {
    let mut pieces = bytes.chunks(PIECE);
    let first = pieces.next().unwrap_or_default();
    let repeats = repeats_itself(first);
    let more = pieces.take_while(|piece| repeats_itself(piece) == repeats);
    (repeats, first.len() + more.map(<[u8]>::len).sum::<usize>())
}

/// True if sequences of four bytes come back within a piece often enough for a search to pay: for one in eight places
/// or more. A sequence that is its own neighbour (a row of equal bytes) counts like any other.
fn repeats_itself(piece: &[u8]) -> bool {
    /// Places that are looked at, evenly over the piece: a part of every column that it has.
    const PART: usize = 512;
    const PARTS: usize = 8;
    let mut seen = [u32::MAX; 4096];
    let (mut places, mut again) = (0usize, 0usize);
    let step = (piece.len() / PARTS).max(PART);
    for part in piece.chunks(step).map(|part| &part[..part.len().min(PART)]) {
        for four in part.windows(4) {
            let word = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            let slot = &mut seen[(word.wrapping_mul(0x9E37_79B1) >> 20) as usize];
            places += 1;
            again += usize::from(*slot == word);
            *slot = word;
        }
    }
    again * 8 >= places
}

/// A run packed by flate2, up to a whole byte.
fn search(bytes: &[u8], out: &mut Vec<u8>) {
    let mut deflate = Compress::new(Compression::new(LEVEL), false);
    let mut rest = bytes;
    loop {
        out.reserve(rest.len() / 3 + 1024);
        let (before, room) = (deflate.total_in(), out.capacity() - out.len());
        // Deflating into a vector that has room does not fail.
        if deflate.compress_vec(rest, out, FlushCompress::Sync).is_err() {
            return;
        }
        rest = &rest[(deflate.total_in() - before) as usize..];
        // A flush is complete if it leaves room in the output.
        if rest.is_empty() && room > 0 && out.len() < out.capacity() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn unpack(packed: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        flate2::read::DeflateDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// A pseudo-random generator.
    fn noise(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        }
    }

    #[test]
    fn sections_of_every_nature_and_length_come_back() {
        let mut next = noise(1);
        let mut mixed = Vec::new();
        for piece in 0..9 {
            for place in 0..PIECE - 100 {
                let byte = next();
                mixed.push(match piece % 3 {
                    0 => byte as u8,
                    1 => (byte % 7 * (byte % 11)) as u8,
                    _ => (place / 9) as u8,
                });
            }
        }
        for length in [0, 1, 2, 3, 4, 511, 512, 4096, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, mixed.len()] {
            let bytes = &mixed[..length];
            assert!(unpack(&pack(bytes)) == bytes, "{length} bytes");
        }
        let zeros = vec![0; 5 * PIECE + 3];
        assert!(unpack(&pack(&zeros)) == zeros);
        assert!(pack(&zeros).len() < 2000);
    }

    #[test]
    fn what_repeats_is_searched_and_what_does_not_is_not_made_larger() {
        let mut next = noise(2);
        let random: Vec<u8> = (0..4 * PIECE).map(|_| next() as u8).collect();
        assert_eq!(run(&random), (false, random.len()));
        assert!(pack(&random).len() < random.len() + random.len() / 200);
        let sentence = b"a step is like the step before it; ".repeat(8000);
        assert_eq!(run(&sentence), (true, sentence.len()));
        assert!(pack(&sentence).len() < sentence.len() / 50);
        let both = [&random[..PIECE], &sentence[..PIECE], &random[..PIECE]].concat();
        assert_eq!(run(&both), (false, PIECE));
        assert_eq!(run(&both[PIECE..]), (true, PIECE));
        assert!(unpack(&pack(&both)) == both);
    }

    #[test]
    fn skewed_bytes_take_little_more_than_their_entropy() {
        let mut next = noise(3);
        let bytes: Vec<u8> = (0..3 * PIECE).map(|_| (next() % 16 * (next() % 16)) as u8).collect();
        assert!(!run(&bytes).0);
        let mut counts = [0usize; 256];
        bytes.iter().for_each(|&byte| counts[byte as usize] += 1);
        let share = |count: usize| count as f64 / bytes.len() as f64;
        let bits: f64 =
            counts.iter().filter(|&&n| n > 0).map(|&n| -(n as f64) * share(n).log2()).sum::<f64>();
        // A code has whole bits, and each piece has a table.
        let bound = bits / 8.0 * 1.01 + 3.0 * 120.0;
        assert!((pack(&bytes).len() as f64) < bound, "{} bytes, {bound}", pack(&bytes).len());
    }
}
