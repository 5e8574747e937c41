//! Blocks of deflate (RFC 1951) that have literals only: the bytes by their frequencies, no search for repetitions.

/// Symbols of a block: the bytes, and the end of the block.
const SYMBOLS: usize = 257;
const END: usize = 256;
/// Longest code of a symbol, and of a length of the table.
const LONGEST: u8 = 15;
const LONGEST_OF_TABLE: u8 = 7;
/// Bytes a block: short enough that the codes follow the data, long enough that their table hardly adds bytes.
const BLOCK: usize = 64 << 10;
/// The order in which the lengths of the table's own codes are written.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Writes `bytes` as blocks of literals, up to a whole byte. None of them is the last of its stream.
pub(crate) fn blocks(bytes: &[u8], out: &mut Vec<u8>) {
    let mut bits = Bits { out, word: 0, count: 0 };
    for piece in bytes.chunks(BLOCK) {
        block(piece, &mut bits);
    }
    // An empty stored block ends at a whole byte.
    bits.write(0, 3);
    bits.align();
    bits.out.extend_from_slice(&[0, 0, 0xff, 0xff]);
}

/// The last block of a stream, an empty one. The blocks before it end at a whole byte.
pub(crate) fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
}

fn block(bytes: &[u8], bits: &mut Bits<'_>) {
    // Four tables, so that equal neighbours do not wait for each other.
    let mut parts = [[0u32; 256]; 4];
    let mut fours = bytes.chunks_exact(4);
    for four in &mut fours {
        for (part, &byte) in parts.iter_mut().zip(four) {
            part[byte as usize] += 1;
        }
    }
    fours.remainder().iter().for_each(|&byte| parts[0][byte as usize] += 1);
    let mut counts = [0u32; SYMBOLS];
    for (symbol, count) in counts[..256].iter_mut().enumerate() {
        *count = parts.iter().map(|part| part[symbol]).sum();
    }
    counts[END] = 1;

    let lengths = lengths(&counts, LONGEST);
    // A block that is not the last, with codes of its own.
    bits.write(0b100, 3);
    table(&lengths, bits);
    let codes = codes(&lengths);
    // One look-up a byte. A word has room for three codes of at most 15 bits and seven bits before them.
    let mut of_byte = [(0, 0); 256];
    of_byte.copy_from_slice(&codes[..256]);
    bits.out.reserve(bytes.len() + 64);
    let mut threes = bytes.chunks_exact(3);
    for three in &mut threes {
        for &byte in three {
            let (code, length) = of_byte[byte as usize];
            bits.add(code, length);
        }
        bits.flush();
    }
    for &byte in threes.remainder() {
        let (code, length) = of_byte[byte as usize];
        bits.write(code, length);
    }
    bits.write(codes[END].0, codes[END].1);
}

/// Writes the lengths of the codes: no distances, and runs of equal lengths in short.
fn table(lengths: &[u8], bits: &mut Bits<'_>) {
    let mut rows: Vec<(u8, u32, u8)> = Vec::with_capacity(lengths.len() + 1);
    // One distance code of length 0 means that there are none.
    let all: Vec<u8> = lengths.iter().copied().chain([0]).collect();
    let mut rest = &all[..];
    while let Some(&length) = rest.first() {
        let run = rest.iter().take_while(|&&other| other == length).count();
        let taken = match (length, run) {
            (0, 11..) => {
                let taken = run.min(138);
                rows.push((18, taken as u32 - 11, 7));
                taken
            }
            (0, 3..) => {
                rows.push((17, run as u32 - 3, 3));
                run
            }
            (1.., 4..) => {
                let again = (run - 1).min(6);
                rows.extend([(length, 0, 0), (16, again as u32 - 3, 2)]);
                again + 1
            }
            _ => {
                rows.push((length, 0, 0));
                1
            }
        };
        rest = &rest[taken..];
    }
    let mut counts = [0u32; 19];
    rows.iter().for_each(|row| counts[row.0 as usize] += 1);
    let own = self::lengths(&counts, LONGEST_OF_TABLE);
    let codes = codes(&own);
    let used = ORDER.iter().rposition(|&symbol| own[symbol] > 0).map_or(4, |last| (last + 1).max(4));
    bits.write(lengths.len() as u32 - 257, 5);
    bits.write(0, 5);
    bits.write(used as u32 - 4, 4);
    for &symbol in &ORDER[..used] {
        bits.write(u32::from(own[symbol]), 3);
    }
    for (symbol, extra, width) in rows {
        let (code, length) = codes[symbol as usize];
        bits.write(code, length);
        bits.write(extra, width);
    }
}

/// The lengths of Huffman's codes for these counts, none longer than `longest`; 0 for symbols that do not occur.
fn lengths(counts: &[u32], longest: u8) -> Vec<u8> {
    let mut order: Vec<usize> = (0..counts.len()).filter(|&symbol| counts[symbol] > 0).collect();
    order.sort_by_key(|&symbol| (counts[symbol], symbol));
    let mut lengths = vec![0u8; counts.len()];
    if let [only] = order[..] {
        lengths[only] = 1;
        return lengths;
    }
    let n = order.len();
    // Leaves by count, then the inner nodes in the order in which they are made: their weights grow.
    let mut weights: Vec<u64> = order.iter().map(|&symbol| u64::from(counts[symbol])).collect();
    let mut parents = vec![0usize; (2 * n).saturating_sub(1)];
    let (mut leaf, mut inner) = (0, n);
    while weights.len() < 2 * n - 1 {
        let node = weights.len();
        let mut lightest = || {
            let is_leaf = leaf < n && (inner >= node || weights[leaf] <= weights[inner]);
            let next = if is_leaf { &mut leaf } else { &mut inner };
            *next += 1;
            *next - 1
        };
        let (a, b) = (lightest(), lightest());
        (parents[a], parents[b]) = (node, node);
        let weight = weights[a] + weights[b];
        weights.push(weight);
    }
    let mut depths = vec![0u32; weights.len()];
    for node in (0..weights.len() - 1).rev() {
        depths[node] = depths[parents[node]] + 1;
    }
    // By rising count, so lengths fall. Codes that are too long are cut, and the longest of the others grow for them.
    let mut own: Vec<u32> = depths[..n].iter().map(|&depth| depth.min(u32::from(longest))).collect();
    let unit = |length: u32| 1u64 << (u32::from(longest) - length);
    let mut taken = own.iter().map(|&length| unit(length)).sum::<u64>();
    while taken > unit(0) {
        // The longest code that can still grow gives half of its room, which is the smallest possible amount.
        let Some(at) = own.iter().position(|&length| length < u32::from(longest)) else { break };
        taken -= unit(own[at]) / 2;
        own[at] += 1;
    }
    // Readers require a complete code, so the most frequent of the longest codes become shorter.
    while taken < unit(0) {
        let Some(at) = own.iter().rposition(|&length| length == u32::from(longest)) else { break };
        taken += 1;
        own[at] -= 1;
    }
    for (&symbol, length) in order.iter().zip(own) {
        lengths[symbol] = length as u8;
    }
    lengths
}

/// The codes that go with these lengths, with their bits in the order in which they are written.
fn codes(lengths: &[u8]) -> Vec<(u32, u8)> {
    let mut next = [0u32; LONGEST as usize + 2];
    lengths.iter().filter(|&&length| length > 0).for_each(|&length| next[length as usize + 1] += 1);
    for length in 1..next.len() {
        next[length] = (next[length] + next[length - 1]) << 1;
    }
    lengths
        .iter()
        .map(|&length| {
            if length == 0 {
                return (0, 0);
            }
            let code = next[length as usize];
            next[length as usize] += 1;
            (code.reverse_bits() >> (32 - u32::from(length)), length)
        })
        .collect()
}

/// Collects bits into bytes, lowest first.
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    word: u64,
    count: u32,
}

impl Bits<'_> {
    /// After [`Bits::flush`], 56 bits have room.
    #[inline]
    fn add(&mut self, value: u32, width: u8) {
        self.word |= u64::from(value) << self.count;
        self.count += u32::from(width);
    }

    #[inline]
    fn flush(&mut self) {
        let whole = self.count / 8;
        self.out.extend_from_slice(&self.word.to_le_bytes());
        self.out.truncate(self.out.len() - 8 + whole as usize);
        self.word = if whole == 8 { 0 } else { self.word >> (8 * whole) };
        self.count %= 8;
    }

    fn write(&mut self, value: u32, width: u8) {
        self.add(value, width);
        self.flush();
    }

    fn align(&mut self) {
        self.count = self.count.next_multiple_of(8);
        self.flush();
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

    /// Kraft's sum in units of the longest code.
    fn room(lengths: &[u8], longest: u8) -> u64 {
        lengths.iter().filter(|&&length| length > 0).map(|&length| 1u64 << (longest - length)).sum()
    }

    #[test]
    fn codes_of_any_counts_fit_their_limit() {
        // Fibonacci's numbers make the deepest tree.
        let mut counts = vec![1u32, 1];
        while counts.len() < 40 {
            counts.push(counts[counts.len() - 1] + counts[counts.len() - 2]);
        }
        for used in 1..=counts.len() {
            let lengths = lengths(&counts[..used], LONGEST);
            assert!(lengths.iter().all(|length| (1..=LONGEST).contains(length)));
            assert_eq!(room(&lengths, LONGEST), 1 << LONGEST >> u32::from(used == 1), "{used} symbols");
        }
        for used in 1..=19 {
            let lengths = lengths(&counts[..used], LONGEST_OF_TABLE);
            assert_eq!(
                room(&lengths, LONGEST_OF_TABLE),
                1 << LONGEST_OF_TABLE >> u32::from(used == 1),
                "{used} symbols"
            );
        }
        assert!(lengths(&[0, 0, 3, 0], LONGEST) == [0, 0, 1, 0]);
    }

    #[test]
    fn the_deepest_trees_come_back() {
        let mut bytes = Vec::new();
        let (mut a, mut b) = (1usize, 1usize);
        for symbol in 0..22u8 {
            bytes.extend(std::iter::repeat_n(symbol * 11, a));
            (a, b) = (b, a + b);
        }
        // Interleaved, so that every block has all of them.
        let mixed: Vec<u8> = (0..bytes.len()).map(|i| bytes[i * 7919 % bytes.len()]).collect();
        let mut packed = Vec::new();
        blocks(&mixed, &mut packed);
        end(&mut packed);
        assert!(unpack(&packed) == mixed);
    }

    #[test]
    fn the_longest_codes_may_follow_each_other_at_any_bit() {
        // The rarest bytes side by side, behind none to eight codes of one bit.
        for shift in 0..=8 {
            let mut bytes = vec![242; shift];
            let (mut a, mut b) = (1usize, 1usize);
            for symbol in 0..22u8 {
                bytes.extend(std::iter::repeat_n(symbol * 11 + 11, a));
                (a, b) = (b, a + b);
            }
            let mut packed = Vec::new();
            blocks(&bytes, &mut packed);
            end(&mut packed);
            assert!(unpack(&packed) == bytes, "behind {shift} bits");
        }
    }

    #[test]
    fn blocks_of_one_byte_and_of_none_come_back() {
        for bytes in [&[][..], &[7], &[0; 100_000]] {
            let mut packed = Vec::new();
            blocks(bytes, &mut packed);
            end(&mut packed);
            assert!(unpack(&packed) == bytes);
        }
    }
}
