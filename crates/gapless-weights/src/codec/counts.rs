//! Counts the bytes of a plane, and estimates its encoded size from them.

use super::ahead::Ahead;
use super::path::Path;
use std::sync::LazyLock;

/// Values in one run of a sample.
const RUN: usize = 128;
/// A sample counts one run of this many.
const STEP: usize = 32;
/// A quarter counts one run of this many.
const QUARTER: usize = 4;

/// Counts of the high and the low byte of 16-bit values after a rotation by one bit: for bf16 the exponent, and
/// mantissa with sign.
pub(super) fn of_pairs(values: &[u8]) -> ([u32; 256], [u32; 256]) {
    // Four tables: neighbours are often equal, and a core cannot increment one counter twice in a cycle.
    let mut high = [[0u32; 256]; 4];
    let mut low = [[0u32; 256]; 4];
    for (k, value) in values.as_chunks::<2>().0.iter().enumerate() {
        let [h, l] = u16::from_le_bytes(*value).rotate_left(1).to_be_bytes();
        high[k % 4][usize::from(h)] += 1;
        low[k % 4][usize::from(l)] += 1;
    }
    (sum(&high), sum(&low))
}

/// As `of_pairs`, of one run of 128 values in 32 if a chunk is long. Low bytes are counted in half of the runs,
/// because they only have to show whether they are evenly distributed.
pub(super) fn of_sample(values: &[u8], ahead: &mut Ahead) -> ([u32; 256], [u32; 256]) {
    let mut high = [[0u32; 256]; 4];
    let mut low = [[0u32; 256]; 4];
    let halves = |four: &[u8; 8], k: usize| {
        u16::from_le_bytes([four[2 * k], four[2 * k + 1]]).rotate_left(1).to_be_bytes().map(usize::from)
    };
    for (number, run) in values.chunks(2 * RUN).step_by(step(values.len() / 2, false)).enumerate() {
        let (fours, rest) = run.as_chunks::<8>();
        if number % 2 == 0 {
            for four in fours {
                ahead.fetch();
                for k in 0..4 {
                    let [h, l] = halves(four, k);
                    high[k][h] += 1;
                    low[k][l] += 1;
                }
            }
        } else {
            for four in fours {
                for k in 0..4 {
                    high[k][halves(four, k)[0]] += 1;
                }
            }
        }
        for value in rest.as_chunks::<2>().0 {
            let [h, l] = u16::from_le_bytes(*value).rotate_left(1).to_be_bytes().map(usize::from);
            high[0][h] += 1;
            low[0][l] += 1;
        }
    }
    (sum(&high), sum(&low))
}

/// The high bytes of 16-bit values after a rotation by one bit.
#[allow(unsafe_code)]
pub(super) fn exponents(values: &[u8], high: &mut [u8], path: Path) {
    #[inline(always)]
    fn all(values: &[u8], high: &mut [u8]) {
        for (high, value) in high.iter_mut().zip(values.as_chunks::<2>().0) {
            *high = (u16::from_le_bytes(*value) >> 7) as u8;
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn by_avx2(values: &[u8], high: &mut [u8]) {
        all(values, high);
    }
    match path {
        Path::Portable => all(values, high),
        // SAFETY: `Path::checked` saw that the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { by_avx2(values, high) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => all(values, high),
    }
}

/// Counts of every fourth run of a plane of bytes, four times: an estimate. For a short plane, the exact counts.
pub(super) fn of_quarter(plane: &[u8]) -> [u32; 256] {
    if plane.len() < 4 * RUN * STEP {
        return of_bytes(plane, true);
    }
    of_runs(plane, QUARTER).map(|count| count * QUARTER as u32)
}

/// Counts of a plane of bytes.
pub(super) fn of_bytes(plane: &[u8], all: bool) -> [u32; 256] {
    of_runs(plane, step(plane.len(), all))
}

fn of_runs(plane: &[u8], step: usize) -> [u32; 256] {
    let mut tables = [[0u32; 256]; 8];
    for run in plane.chunks(RUN).step_by(step) {
        let (eights, rest) = run.as_chunks::<8>();
        for eight in eights {
            // One load for eight bytes leaves the other loads to the counters.
            let word = u64::from_le_bytes(*eight);
            for k in 0..8 {
                tables[k][usize::from((word >> (8 * k)) as u8)] += 1;
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

fn sum(tables: &[[u32; 256]]) -> [u32; 256] {
    let mut sum = [0; 256];
    for table in tables {
        sum.iter_mut().zip(table).for_each(|(sum, count)| *sum += count);
    }
    sum
}

/// `count * log2(count)` of small counts, as a sample's low bytes have: 256 of them in each chunk.
static WEIGHTED: LazyLock<[f64; 64]> = LazyLock::new(|| std::array::from_fn(|count| weighted(count as u32)));

fn weighted(count: u32) -> f64 {
    if count == 0 { 0.0 } else { f64::from(count) * f64::from(count).log2() }
}

/// True if the symbols of a sample need fewer than `limit` bits each.
///
/// Pairs of equal symbols are counted first, which takes no logarithms. Renyi's entropy of order 2 is never above
/// Shannon's, so this decides for samples of evenly distributed bytes, as most are.
pub(super) fn is_below(counts: &[u32; 256], limit: f64) -> bool {
    let (mut total, mut squares) = (0u64, 0u64);
    for count in counts {
        total += u64::from(*count);
        squares += u64::from(*count) * u64::from(*count);
    }
    let pairs = total as f64 * (total as f64 - 1.0);
    let alike = (squares - total) as f64 / pairs;
    // No or one symbol gives no pairs: 0 / 0 is NaN, so the sample is not even, and its entropy of 0 decides.
    let is_even = alike < (-limit).exp2();
    !is_even && entropy(counts) < limit
}

/// Bits a symbol by the frequencies alone. A sample shows less than its plane has; Miller's and Madow's
/// correction is added.
pub(super) fn entropy(counts: &[u32; 256]) -> f64 {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if total == 0 {
        return 0.0;
    }
    let (total, small) = (total as f64, &*WEIGHTED);
    let known = |count: u32| small.get(count as usize).copied().unwrap_or_else(|| weighted(count));
    // Four sums, because additions to one sum would wait for each other.
    let mut sums = [0.0; 4];
    let mut symbols = 0;
    for four in counts.as_chunks::<4>().0 {
        if *four != [0; 4] {
            sums.iter_mut().zip(four).for_each(|(sum, count)| *sum += known(*count));
            symbols += four.iter().map(|count| u32::from(*count > 0)).sum::<u32>();
        }
    }
    let bits = total.log2() - sums.iter().sum::<f64>() / total;
    let symbols = f64::from(symbols);
    (bits + (symbols - 1.0) / (2.0 * total * std::f64::consts::LN_2)).clamp(0.0, 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_look_at_a_sample_says_what_its_entropy_says() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let (mut even, mut uneven) = (0, 0);
        for skew in 0..200 {
            for samples in [0, 1, 2, 1024, 4096] {
                let mut counts = [0; 256];
                for _ in 0..samples {
                    let symbol = next() % 256;
                    // The larger `skew` is, the more often the smaller one of two.
                    counts[if next() % 200 < skew { symbol.min(next() % 256) } else { symbol } as usize] += 1;
                }
                let (entropy, is_below) = (entropy(&counts), is_below(&counts, 7.9));
                // Both are estimates, so near the limit they may differ. Renyi's is the lower one.
                if is_below {
                    assert!(entropy < 7.9, "{samples} samples, skew {skew}: {entropy}");
                    uneven += 1;
                } else if samples > 2 {
                    assert!(entropy > 7.9 - 0.05, "{samples} samples, skew {skew}: {entropy}");
                    even += 1;
                }
            }
        }
        assert!(even > 50 && uneven > 50, "{even} and {uneven}");
    }
}
