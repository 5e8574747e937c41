//! Medians and spreads that one bad value does not move.

/// The median; of an even number, the mean of the middle two. 0 for none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => sorted[n / 2],
        _ => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// A value against those of its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Against {
    /// The median of the peers.
    pub(crate) typical: f64,
    /// The distance of the value above it.
    pub(crate) excess: f64,
    /// The excess that the spread among the peers explains.
    pub(crate) allowed: f64,
}

/// Standard deviations of the peers that still count as noise.
const DEVIATIONS: f64 = 6.0;
/// Up to this many peers their whole range counts as well: the median distance of so few says little on their spread.
const FEW: usize = 6;

/// `values[at]` against all others.
pub(crate) fn against(values: &[f64], at: usize) -> Against {
    let peers: Vec<f64> =
        values.iter().enumerate().filter(|&(i, _)| i != at).map(|(_, &value)| value).collect();
    let typical = median(&peers);
    let distances: Vec<f64> = peers.iter().map(|value| (value - typical).abs()).collect();
    // The factor makes the median distance an estimate of the standard deviation.
    let mut allowed = DEVIATIONS * 1.4826 * median(&distances);
    if peers.len() <= FEW {
        let most = peers.iter().copied().fold(f64::MIN, f64::max);
        let least = peers.iter().copied().fold(f64::MAX, f64::min);
        allowed = allowed.max(2.0 * (most - least).max(0.0));
    }
    Against { typical, excess: values[at] - typical, allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_value_does_not_move_the_typical_one() {
        let values = [10.0, 10.1, 9.9, 10.0, 50.0, 10.05, 9.95, 10.0];
        let odd = against(&values, 4);
        assert!((odd.typical - 10.0).abs() < 1e-9 && odd.excess > 39.0 && odd.allowed < 1.0, "{odd:?}");
        let fine = against(&values, 1);
        assert!(fine.excess < fine.allowed, "{fine:?}");
    }

    #[test]
    fn few_peers_count_with_their_whole_range() {
        let odd = against(&[1.0, 2.0, 5.0], 2);
        assert_eq!((odd.typical, odd.excess), (1.5, 3.5));
        assert!(odd.allowed >= 2.0);
        assert_eq!(median(&[]), 0.0);
    }
}
