//! Sizes of requests over a run, for runs whose steps are not known or differ between ranks.
//!
//! The requests of a run, in order, are cut into stretches with equal numbers of them. Ranks that run the same program
//! make the same requests in the same order, so stretch i of one rank is the work of stretch i of another, whatever the
//! clock says. If a rank makes some requests more (a log, a leak), equal shares of its requests still lie nearly over
//! each other. A longer batch makes most requests of its stretches larger; one buffer more does not.

use super::robust::median;

/// Stretches of a run at most, and requests of a stretch at least.
const MOST: usize = 64;
const FEWEST: usize = 32;
/// Smaller requests are counters and scalars, which follow nothing.
const SMALL: u64 = 4096;
/// From this factor on, the requests of a stretch are larger and not just noise, as a logarithm.
pub(crate) const LARGER: f64 = 0.11;

/// The requests of one part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stretch {
    /// The typical size: the mean of the logarithms to base 2, without the eighth at either end.
    pub(crate) size: f64,
    /// Bytes requested in all.
    pub(crate) bytes: u64,
}

/// The stretches of a run that made these requests.
pub(crate) fn of(requests: impl Iterator<Item = u64>) -> Vec<Stretch> {
    let requests: Vec<u64> = requests.filter(|&size| size >= SMALL).collect();
    let count = (requests.len() / FEWEST).min(MOST);
    let part = |i: usize| &requests[i * requests.len() / count..(i + 1) * requests.len() / count];
    (0..count).map(|i| stretch(part(i))).collect()
}

fn stretch(requests: &[u64]) -> Stretch {
    let mut sorted = requests.to_vec();
    sorted.sort_unstable();
    let trimmed = sorted.len() / 8;
    let middle = &sorted[trimmed..sorted.len() - trimmed];
    let logs: f64 = middle.iter().map(|&size| (size as f64).log2()).sum();
    Stretch { size: logs / middle.len().max(1) as f64, bytes: requests.iter().sum() }
}

/// Where a rank's requests are larger than elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Larger {
    /// By how much at most, as a logarithm to base 2.
    pub(crate) most: f64,
    /// Bytes requested in that stretch beyond the usual, and as a share of the usual.
    pub(crate) bytes: f64,
    pub(crate) share: f64,
}

/// Each rank against the typical one, stretch by stretch. Empty unless all ranks have about as many stretches.
pub(crate) fn larger(ranks: &[&[Stretch]]) -> Vec<Larger> {
    let count = ranks.iter().map(|rank| rank.len()).min().unwrap_or(0);
    let most = ranks.iter().map(|rank| rank.len()).max().unwrap_or(0);
    if count < 2 || 4 * count < 3 * most {
        return Vec::new();
    }
    // A stretch of a rank that has more of them is cut to the same places: the nearest one stands for it.
    let at = |rank: &[Stretch], i: usize| rank[i * rank.len() / count];
    let usual: Vec<Stretch> = (0..count)
        .map(|i| Stretch {
            size: median(&ranks.iter().map(|rank| at(rank, i).size).collect::<Vec<_>>()),
            bytes: median(&ranks.iter().map(|rank| at(rank, i).bytes as f64).collect::<Vec<_>>()) as u64,
        })
        .collect();
    ranks.iter().map(|rank| (0..count).map(|i| above(at(rank, i), usual[i])).fold(Larger::default(), more)).collect()
}

/// Where `rank` is above `other`, and where `other` is above `rank`.
pub(crate) fn pair(rank: &[Stretch], other: &[Stretch]) -> (Larger, Larger) {
    let count = rank.len().min(other.len());
    if 4 * count < 3 * rank.len().max(other.len()) {
        return (Larger::default(), Larger::default());
    }
    let at = |all: &[Stretch], i: usize| all[i * all.len() / count];
    let most = |a: &[Stretch], b: &[Stretch]| {
        (0..count).map(|i| above(at(a, i), at(b, i))).fold(Larger::default(), more)
    };
    (most(rank, other), most(other, rank))
}

fn above(own: Stretch, usual: Stretch) -> Larger {
    let bytes = own.bytes as f64 - usual.bytes as f64;
    Larger { most: own.size - usual.size, bytes, share: bytes / (usual.bytes as f64).max(1.0) }
}

fn more(a: Larger, b: Larger) -> Larger {
    if b.most > a.most { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty steps of 48 requests, those of `long` larger by `factor`.
    fn run(long: Option<usize>, factor: u64, extra: Option<u64>) -> Vec<Stretch> {
        let step = |step: usize| {
            let times = if long == Some(step) { factor } else { 10 };
            let layers = (0..48).map(move |i| (1 + i % 7) * (100 << 10) * times / 10);
            layers.chain(extra)
        };
        of((0..20).flat_map(step))
    }

    #[test]
    fn a_longer_batch_stands_out_in_its_stretch() {
        let usual = run(None, 10, None);
        let long = run(Some(7), 15, None);
        let found = larger(&[&usual, &long, &usual, &usual]);
        assert!(found[1].most > 0.4 && found[1].share > 0.3, "{found:?}");
        assert!(found[0].most < 1e-9, "{found:?}");
        let (up, down) = pair(&long, &usual);
        assert!(up.most > 0.4 && down.most < 1e-9);
    }

    #[test]
    fn a_buffer_in_every_step_does_not_make_requests_larger() {
        let usual = run(None, 10, None);
        let more = run(None, 10, Some(50 << 20));
        let found = larger(&[&usual, &more, &usual]);
        assert!(found[1].most < LARGER, "{found:?}");
    }

    #[test]
    fn runs_of_other_lengths_are_not_compared() {
        let usual = run(None, 10, None);
        assert_eq!(larger(&[&usual, &usual[..10]]), []);
        assert_eq!(pair(&usual, &usual[..10]).0, Larger::default());
        assert_eq!(of([1 << 20; 20].into_iter()), []);
    }
}
