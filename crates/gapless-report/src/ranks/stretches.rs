//! Sizes of requests over a run, for runs whose steps are not known or differ between ranks.
//!
//! [`pieces`] keeps the requests of a run in order, bounded. A comparison cuts the pieces of all ranks into the same
//! number of stretches. Ranks that run the same program make the same requests in the same order, so stretch i of one
//! rank is the work of stretch i of another, whatever the clock says. If a rank makes some requests more (a log, a
//! leak), equal shares of its requests still lie nearly over each other. A longer batch makes most requests of its
//! stretches larger; one buffer more does not.

use super::robust::median;

/// Stretches of a run at most, and pieces of a stretch at least.
const MOST: usize = 64;
const FEWEST: usize = 32;
/// Pieces of a run at most.
const PIECES: usize = MOST * FEWEST;
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

/// One request, or a few that follow each other: the mean of the logarithms of their sizes, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    size: f32,
    bytes: u64,
}

/// The requests of a run, as at most [`PIECES`] pieces.
pub(crate) fn pieces(requests: impl Iterator<Item = u64>) -> Vec<Piece> {
    let requests: Vec<u64> = requests.filter(|&size| size >= SMALL).collect();
    let each = requests.len().div_ceil(PIECES).max(1);
    let piece = |some: &[u64]| Piece {
        size: (some.iter().map(|&size| (size as f64).log2()).sum::<f64>() / some.len() as f64) as f32,
        bytes: some.iter().sum(),
    };
    requests.chunks(each).map(piece).collect()
}

/// The stretches of each rank, as many of one as of another; none where the runs are too short, or of other lengths.
fn cut(ranks: &[&[Piece]]) -> Option<Vec<Vec<Stretch>>> {
    let fewest = ranks.iter().map(|rank| rank.len()).min()?;
    let most = ranks.iter().map(|rank| rank.len()).max()?;
    let count = (fewest / FEWEST).min(MOST);
    if count < 2 || 4 * fewest < 3 * most {
        return None;
    }
    let part = |rank: &[Piece], i: usize| {
        stretch(&rank[i * rank.len() / count..(i + 1) * rank.len() / count])
    };
    Some(ranks.iter().map(|rank| (0..count).map(|i| part(rank, i)).collect()).collect())
}

fn stretch(pieces: &[Piece]) -> Stretch {
    let mut sizes: Vec<f32> = pieces.iter().map(|piece| piece.size).collect();
    sizes.sort_by(f32::total_cmp);
    let trimmed = sizes.len() / 8;
    let middle = &sizes[trimmed..sizes.len() - trimmed];
    let sum: f64 = middle.iter().map(|&size| f64::from(size)).sum();
    Stretch { size: sum / middle.len().max(1) as f64, bytes: pieces.iter().map(|piece| piece.bytes).sum() }
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

/// Each rank against the typical one, stretch by stretch. Empty unless all ranks made about as many requests.
pub(crate) fn larger(ranks: &[&[Piece]]) -> Vec<Larger> {
    let Some(cut) = cut(ranks) else { return Vec::new() };
    let usual = |i: usize| Stretch {
        size: median(&cut.iter().map(|rank| rank[i].size).collect::<Vec<_>>()),
        bytes: median(&cut.iter().map(|rank| rank[i].bytes as f64).collect::<Vec<_>>()) as u64,
    };
    let usual: Vec<Stretch> = (0..cut[0].len()).map(usual).collect();
    cut.iter().map(|rank| most(rank, &usual)).collect()
}

/// Where `rank` is above `other`, and where `other` is above `rank`.
pub(crate) fn pair(rank: &[Piece], other: &[Piece]) -> (Larger, Larger) {
    let cut = cut(&[rank, other]);
    cut.map_or_else(Default::default, |cut| (most(&cut[0], &cut[1]), most(&cut[1], &cut[0])))
}

fn most(own: &[Stretch], usual: &[Stretch]) -> Larger {
    own.iter().zip(usual).map(|(own, usual)| above(*own, *usual)).fold(Larger::default(), more)
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
    fn run(long: Option<usize>, factor: u64, extra: Option<u64>) -> Vec<Piece> {
        let step = |step: usize| {
            let times = if long == Some(step) { factor } else { 10 };
            let layers = (0..48).map(move |i| (1 + i % 7) * (100 << 10) * times / 10);
            layers.chain(extra)
        };
        pieces((0..20).flat_map(step))
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
        assert_eq!(larger(&[&usual, &usual[..usual.len() / 2]]), []);
        assert_eq!(pair(&usual, &usual[..usual.len() / 2]).0, Larger::default());
        assert_eq!(larger(&[&usual[..40], &usual[..40]]), [], "too few requests for two stretches");
    }
}
