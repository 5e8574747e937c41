//! Two of Parquet's encodings: runs of equal or packed small numbers (RLE), and packed differences
//! (DELTA_BINARY_PACKED). Bits are packed from the lowest one on.

use super::thrift::{varint, zigzag};

/// The bits of the largest number.
pub(super) fn width(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

/// Appends each value in `width` bits.
fn pack(out: &mut Vec<u8>, values: &[u64], width: u32) {
    let (mut word, mut filled) = (0u128, 0);
    for &value in values {
        word |= u128::from(value) << filled;
        filled += width;
        while filled >= 8 {
            out.push(word as u8);
            word >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        out.push(word as u8);
    }
}

/// Runs: from eight equal values on as one run, the others packed in groups of eight.
pub(super) fn runs(values: &[u32], width: u32) -> Vec<u8> {
    let mut out = Vec::new();
    // Values that wait to be packed.
    let mut loose: Vec<u64> = Vec::new();
    let mut rest = values;
    while let Some(&first) = rest.first() {
        let equal = rest.iter().take_while(|&&value| value == first).count();
        if loose.len().is_multiple_of(8) && equal >= 8 {
            end_loose(&mut out, &mut loose, width);
            varint(&mut out, (equal as u64) << 1);
            out.extend_from_slice(&first.to_le_bytes()[..width.div_ceil(8) as usize]);
            rest = &rest[equal..];
        } else {
            // A group is filled up before a run begins.
            let taken = equal.min(8 - loose.len() % 8);
            loose.extend(rest[..taken].iter().map(|&value| u64::from(value)));
            rest = &rest[taken..];
        }
    }
    end_loose(&mut out, &mut loose, width);
    out
}

fn end_loose(out: &mut Vec<u8>, loose: &mut Vec<u64>, width: u32) {
    if loose.is_empty() {
        return;
    }
    loose.resize(loose.len().next_multiple_of(8), 0);
    varint(out, (loose.len() as u64 / 8) << 1 | 1);
    pack(out, loose, width);
    loose.clear();
}

const BLOCK: usize = 128;
const MINI_BLOCKS: usize = 4;
const MINI_BLOCK: usize = BLOCK / MINI_BLOCKS;

/// Packed differences of numbers of 64 bits, or of 32 bits that were extended with their sign: as `bits` tells.
/// Differences wrap around at that size.
pub(super) fn differences(values: &[i64], bits: u32) -> Vec<u8> {
    let wrap = |difference: i64| {
        if bits == 32 { i64::from(difference as i32) } else { difference }
    };
    let mut out = Vec::new();
    varint(&mut out, BLOCK as u64);
    varint(&mut out, MINI_BLOCKS as u64);
    varint(&mut out, values.len() as u64);
    varint(&mut out, zigzag(values.first().copied().unwrap_or(0)));
    let all: Vec<i64> = values.windows(2).map(|pair| wrap(pair[1].wrapping_sub(pair[0]))).collect();
    for block in all.chunks(BLOCK) {
        let least = block.iter().copied().min().unwrap_or(0);
        varint(&mut out, zigzag(least));
        let mask = if bits == 32 { u64::from(u32::MAX) } else { u64::MAX };
        let above = |&difference: &i64| difference.wrapping_sub(least).cast_unsigned() & mask;
        let minis: Vec<Vec<u64>> =
            block.chunks(MINI_BLOCK).map(|mini| mini.iter().map(above).collect()).collect();
        let widths: Vec<u32> =
            minis.iter().map(|mini| width(mini.iter().copied().max().unwrap_or(0))).collect();
        out.extend((0..MINI_BLOCKS).map(|i| widths.get(i).copied().unwrap_or(0) as u8));
        for (mut mini, width) in minis.into_iter().zip(widths) {
            mini.resize(MINI_BLOCK, 0);
            pack(&mut out, &mini, width);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads bytes and bits by the specification, one at a time.
    struct Reader<'a>(&'a [u8]);

    impl Reader<'_> {
        fn byte(&mut self) -> u8 {
            let byte = self.0[0];
            self.0 = &self.0[1..];
            byte
        }

        fn varint(&mut self) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = self.byte();
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }

        fn signed(&mut self) -> i64 {
            let value = self.varint();
            (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
        }

        fn packed(&mut self, count: usize, width: u32) -> Vec<u64> {
            let bytes = (count * width as usize).div_ceil(8);
            let bit = |i: usize| u64::from(self.0[i / 8] >> (i % 8) & 1);
            let value = |i: usize| (0..width as usize).map(|k| bit(i * width as usize + k) << k).sum();
            let values = (0..count).map(value).collect();
            self.0 = &self.0[bytes..];
            values
        }
    }

    fn read_runs(bytes: &[u8], width: u32, count: usize) -> Vec<u32> {
        let mut reader = Reader(bytes);
        let mut values = Vec::new();
        while values.len() < count {
            let head = reader.varint();
            if head & 1 == 1 {
                values.extend(reader.packed((head >> 1) as usize * 8, width).into_iter().map(|v| v as u32));
            } else {
                let value: u32 = (0..width.div_ceil(8)).map(|k| u32::from(reader.byte()) << (8 * k)).sum();
                values.extend(std::iter::repeat_n(value, (head >> 1) as usize));
            }
        }
        assert!(reader.0.is_empty(), "bytes are left");
        values.truncate(count);
        values
    }

    fn read_differences(bytes: &[u8], bits: u32) -> Vec<i64> {
        let mut reader = Reader(bytes);
        assert_eq!((reader.varint(), reader.varint()), (128, 4));
        let count = reader.varint() as usize;
        let mut values = vec![reader.signed()];
        while values.len() < count {
            let least = reader.signed();
            let widths: Vec<u8> = (0..4).map(|_| reader.byte()).collect();
            for width in widths {
                assert!(u32::from(width) <= bits);
                if values.len() < count {
                    for above in reader.packed(32, width.into()) {
                        let next =
                            values[values.len() - 1].wrapping_add(least).wrapping_add(above.cast_signed());
                        values.push(if bits == 32 { i64::from(next as i32) } else { next });
                    }
                }
            }
        }
        assert!(reader.0.is_empty(), "bytes are left");
        values.truncate(count);
        values
    }

    /// Pseudo-random numbers, the same in every run.
    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 11 ^ state << 43
        }
    }

    #[test]
    fn runs_of_any_length_read_back() {
        let mut next = random(1);
        for length in (0..70).chain([1000]) {
            for width in [0, 1, 2, 7, 8, 9, 17, 31, 32] {
                let mask = if width == 0 { 0 } else { u32::MAX >> (32 - width) };
                let mut values: Vec<u32> = Vec::new();
                while values.len() < length {
                    let (value, repeats) = (next() as u32 & mask, next() % 20 + 1);
                    values.extend(std::iter::repeat_n(value, repeats as usize));
                }
                values.truncate(length);
                assert_eq!(read_runs(&runs(&values, width), width, length), values, "{length} x {width}");
            }
        }
    }

    #[test]
    fn differences_of_any_size_read_back() {
        let mut next = random(2);
        for length in (1..70).chain([127, 128, 129, 130, 257, 1000]) {
            for bits in [0, 1, 5, 31, 32, 33, 63, 64] {
                let value = |raw: u64| if bits == 0 { 0 } else { (raw >> (64 - bits)).cast_signed() };
                let values: Vec<i64> = (0..length).map(|_| value(next())).collect();
                assert_eq!(read_differences(&differences(&values, 64), 64), values, "{length} x {bits}");
                let small: Vec<i64> = values.iter().map(|&value| i64::from(value as i32)).collect();
                assert_eq!(read_differences(&differences(&small, 32), 32), small, "{length} x {bits}");
            }
        }
        let extremes = [i64::MIN, i64::MAX, 0, -1, i64::MAX, i64::MIN];
        assert_eq!(read_differences(&differences(&extremes, 64), 64), extremes);
    }
}
