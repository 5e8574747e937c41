//! Half of a matrix's values are dropped, the smaller ones, and the others are stored with a bit mask, as
//! compressed-tensors 0.11 did; later releases have no code for it.
//!
//! `sparse-24` keeps two of each four values. `sparse-bitmask` keeps the larger half of each row; zeros are never
//! stored. Bit k of byte b of a mask is column 8 * b + k.

use super::number::Value;
use super::scheme::Scheme;

/// Rows that a scheme made sparse: bytes of the kept values and of the masks, the number kept of each row, and the
/// sums of squares of the dropped values and of all.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    pub(super) values: Vec<u8>,
    pub(super) masks: Vec<u8>,
    pub(super) kept: Vec<u64>,
    pub(super) dropped: f64,
    pub(super) all: f64,
}

/// The number of values of a row that are kept: half of them, rounded up.
pub(super) fn kept_of(columns: usize) -> usize {
    columns - columns / 2
}

/// The number of values that `sparse-bitmask` stores: those that are kept and not zero. `None` if one is not finite.
pub(super) fn stored<V: Value>(bytes: &[u8], columns: usize) -> Option<u64> {
    let mut sum = 0;
    for row in bytes.chunks_exact(columns * V::WIDTH) {
        let (mut there, mut most) = (0, 0);
        for value in row.chunks_exact(V::WIDTH) {
            let magnitude = V::load(value).abs().to_bits();
            there += usize::from(magnitude > 0);
            most = most.max(magnitude);
        }
        if most >= f32::INFINITY.to_bits() {
            return None;
        }
        sum += there.min(kept_of(columns)) as u64;
    }
    Some(sum)
}

/// Rows as a sparse scheme stores them. `None` if a value is not finite.
pub(super) fn rows<V: Value>(scheme: Scheme, bytes: &[u8], columns: usize) -> Option<Sparse> {
    let mut out = Sparse::default();
    let mut keys: Vec<u64> = Vec::with_capacity(columns);
    for row in bytes.chunks_exact(columns * V::WIDTH) {
        let magnitudes: Vec<u32> =
            row.chunks_exact(V::WIDTH).map(|value| V::load(value).abs().to_bits()).collect();
        if magnitudes.iter().any(|magnitude| *magnitude >= f32::INFINITY.to_bits()) {
            return None;
        }
        let first = out.masks.len();
        out.masks.resize(first + columns.div_ceil(8), 0);
        let mask = &mut out.masks[first..];
        if scheme == Scheme::Sparse24 {
            for (group, four) in magnitudes.as_chunks::<4>().0.iter().enumerate() {
                for at in larger_two(four).map(|at| 4 * group + at) {
                    mask[at / 8] |= 1 << (at % 8);
                }
            }
        } else {
            keys.clear();
            // Of equal values the first ones are kept.
            let ranked = magnitudes.iter().zip((0..columns as u32).rev());
            keys.extend(ranked.map(|(magnitude, later)| u64::from(*magnitude) << 32 | u64::from(later)));
            let (_, least, _) = keys.select_nth_unstable(columns / 2);
            let least = *least;
            for (at, magnitude) in magnitudes.iter().enumerate() {
                let key = u64::from(*magnitude) << 32 | (columns - 1 - at) as u64;
                mask[at / 8] |= u8::from(key >= least && *magnitude > 0) << (at % 8);
            }
        }
        let mut kept = 0;
        for (at, value) in row.chunks_exact(V::WIDTH).enumerate() {
            let square = f64::from(V::load(value)).powi(2);
            out.all += square;
            if mask[at / 8] >> (at % 8) & 1 == 1 {
                out.values.extend_from_slice(value);
                kept += 1;
            } else {
                out.dropped += square;
            }
        }
        out.kept.push(kept);
    }
    Some(out)
}

/// The places of the two largest of four. Among equal ones it takes those of torch's `topk`, which is
/// `std::nth_element` of the GNU library: a partition by the median of the last three, then an insertion sort.
fn larger_two(four: &[u32; 4]) -> [usize; 2] {
    let mut order = [0usize, 1, 2, 3];
    let above = |order: &[usize; 4], a: usize, b: usize| four[order[a]] > four[order[b]];
    let median = match (above(&order, 1, 2), above(&order, 2, 3), above(&order, 1, 3)) {
        (true, true, _) => 2,
        (true, false, true) => 3,
        (true, false, false) => 1,
        (false, _, true) => 1,
        (false, true, false) => 3,
        (false, false, false) => 2,
    };
    order.swap(0, median);
    let (mut low, mut high) = (1, 4);
    loop {
        while low < 4 && above(&order, low, 0) {
            low += 1;
        }
        high -= 1;
        while above(&order, 0, high) {
            high -= 1;
        }
        if low >= high {
            break;
        }
        order.swap(low, high);
        low += 1;
    }
    let rest = if low <= 1 { &mut order[low..] } else { &mut order[..low.min(4)] };
    // The sort is stable, so equal values keep their order.
    rest.sort_by(|a, b| four[*b].cmp(&four[*a]));
    [order[0], order[1]]
}

#[cfg(test)]
mod tests {
    use super::larger_two;

    #[test]
    fn the_two_that_are_kept_are_never_smaller_than_the_two_that_are_not() {
        for pattern in 0..256u32 {
            let four = [pattern & 3, pattern >> 2 & 3, pattern >> 4 & 3, pattern >> 6];
            let kept = larger_two(&four);
            assert_ne!(kept[0], kept[1]);
            let least = kept.iter().map(|at| four[*at]).min();
            let most = (0..4).filter(|at| !kept.contains(at)).map(|at| four[at]).max();
            assert!(least >= most, "{four:?}: {kept:?}");
        }
    }
}
