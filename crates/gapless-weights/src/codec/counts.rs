//! How often each byte occurs in a plane, and what that says about its size.

/// Values in one run of a sample: shorter runs miss the cache once each, and were a seventh slower.
const RUN: usize = 512;
/// A sample counts one run of this many.
const STEP: usize = 16;

/// Counts of the high and the low byte of 16-bit values after a rotation by one bit: for bf16 the exponent, and
/// mantissa with sign. Of a long chunk only every sixteenth run of 512 is counted unless `all` are asked for.
pub(super) fn of_pairs(values: &[u8], all: bool) -> ([u32; 256], [u32; 256]) {
    // Four tables: neighbours are often equal, and one counter cannot be raised twice in a cycle.
    let mut high = [[0u32; 256]; 4];
    let mut low = [[0u32; 256]; 4];
    for run in values.chunks(2 * RUN).step_by(step(values.len() / 2, all)) {
        let (fours, rest) = run.as_chunks::<8>();
        for four in fours {
            for k in 0..4 {
                let [h, l] = u16::from_le_bytes([four[2 * k], four[2 * k + 1]]).rotate_left(1).to_be_bytes();
                high[k][usize::from(h)] += 1;
                low[k][usize::from(l)] += 1;
            }
        }
        for value in rest.as_chunks::<2>().0 {
            let [h, l] = u16::from_le_bytes(*value).rotate_left(1).to_be_bytes();
            high[0][usize::from(h)] += 1;
            low[0][usize::from(l)] += 1;
        }
    }
    (sum(&high), sum(&low))
}

/// Counts of a plane of bytes.
pub(super) fn of_bytes(plane: &[u8], all: bool) -> [u32; 256] {
    let mut tables = [[0u32; 256]; 4];
    for run in plane.chunks(RUN).step_by(step(plane.len(), all)) {
        let (fours, rest) = run.as_chunks::<4>();
        for four in fours {
            for k in 0..4 {
                tables[k][usize::from(four[k])] += 1;
            }
        }
        for byte in rest {
            tables[0][usize::from(*byte)] += 1;
        }
    }
    sum(&tables)
}

fn step(values: usize, all: bool) -> usize {
    if all || values < 4 * RUN * STEP { 1 } else { STEP }
}

fn sum(tables: &[[u32; 256]; 4]) -> [u32; 256] {
    std::array::from_fn(|byte| tables.iter().map(|table| table[byte]).sum())
}

/// Bits a symbol by the frequencies alone. A sample shows fewer than there are; the correction is Miller's and Madow's.
pub(super) fn entropy(counts: &[u32; 256]) -> f64 {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if total == 0 {
        return 0.0;
    }
    let total = total as f64;
    let (mut bits, mut symbols) = (0.0, 0.0);
    for count in counts.iter().filter(|count| **count > 0) {
        let count = f64::from(*count);
        bits -= count * (count / total).log2();
        symbols += 1.0;
    }
    (bits / total + (symbols - 1.0) / (2.0 * total * std::f64::consts::LN_2)).min(8.0)
}
