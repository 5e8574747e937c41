//! Bytes by size class, for comparisons that forgive small differences of sizes.
//!
//! A class is a quarter of an octave. A size near the edge of a class may fall into the next one on another rank, so
//! neighbouring classes count as one if two histograms are compared.

/// Bytes by class, in order of the class.
pub(crate) type BySize = Vec<(u16, u64)>;

/// The class of a size.
pub(crate) fn class(size: u64) -> u16 {
    if size == 0 { 0 } else { ((size as f64).log2() * 4.0).floor() as u16 + 1 }
}

pub(crate) fn total(sizes: &BySize) -> u64 {
    sizes.iter().map(|(_, bytes)| bytes).sum()
}

/// Bytes that both have, in the same class or the next.
pub(crate) fn common(a: &BySize, b: &BySize) -> u64 {
    let (mut left, mut right) = (a.clone(), b.clone());
    let mut matched = 0;
    // Equal classes match first, so that a neighbour takes only the rest.
    for reach in [0i32, 1, -1] {
        for (class, bytes) in &mut left {
            let wanted = i32::from(*class) + reach;
            let Ok(at) = right.binary_search_by_key(&wanted, |&(class, _)| i32::from(class)) else {
                continue;
            };
            let both = (*bytes).min(right[at].1);
            *bytes -= both;
            right[at].1 -= both;
            matched += both;
        }
    }
    matched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_at_the_edge_of_its_class_still_matches() {
        let (low, high) = (class((1 << 20) - 512), class(1 << 20));
        assert_eq!(high, low + 1);
        let a = vec![(low, 100), (90, 7)];
        let b = vec![(high, 80), (90, 5)];
        assert_eq!(common(&a, &b), 85);
        assert_eq!(common(&b, &a), 85);
        assert_eq!(common(&a, &a), total(&a));
    }
}
