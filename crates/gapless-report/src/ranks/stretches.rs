//! Sizes of requests over a run, for runs whose steps are not known or differ between ranks.
//!
//! [`pieces`] keeps the requests of a run in order, bounded. Ranks that run the same program make the same requests
//! in the same order, even at other times. A comparison lays the requests of every rank over those of one of them
//! ([`aligned`]), so that requests that only one makes (a log, a leak) shift nothing, and looks at stretches of the
//! run. A longer batch makes most requests of its stretches larger; one buffer more does not.

use super::robust::median;

/// The most stretches of a run, and the fewest pieces of a stretch.
const MOST: usize = 128;
const FEWEST: usize = 16;
/// The most pieces of a run. Longer runs join requests, so that one extra request shifts the joints.
const PIECES: usize = 32_768;
/// Smaller requests are counters and scalars, whose sizes do not follow the batch.
const SMALL: u64 = 4096;
/// The cost of a request that the other run does not make. Two that differ by less than twice this factor, as a
/// logarithm, are taken for the same one.
const GAP: f32 = 1.5;
/// The distance in requests by which one run may be ahead of the other: its smallest and largest limit.
const AHEAD: (usize, usize) = (24, 256);
/// The factor, as a logarithm, above which larger requests of a stretch are not noise; and the same
/// for joined requests.
const LARGER: f64 = 0.1;
const LARGER_JOINED: f64 = 0.2;

/// One request, or a few that follow each other: the mean of the logarithms of their sizes, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Piece {
    size: f32,
    bytes: f32,
}

/// The requests of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pieces {
    all: Vec<Piece>,
    /// Requests of a piece: a power of two, so that runs with other powers can be compared.
    each: usize,
}

/// The requests of a run, as at most [`PIECES`] pieces.
pub(crate) fn pieces(requests: impl Iterator<Item = u64>) -> Pieces {
    let requests: Vec<u64> = requests.filter(|&size| size >= SMALL).collect();
    let each = requests.len().div_ceil(PIECES).max(1).next_power_of_two();
    let one = |&bytes: &u64| Piece { size: (bytes as f64).log2() as f32, bytes: bytes as f32 };
    let singles: Vec<Piece> = requests.iter().map(one).collect();
    Pieces { all: merged(&singles, each), each }
}

fn merged(pieces: &[Piece], each: usize) -> Vec<Piece> {
    let join = |some: &[Piece]| Piece {
        size: some.iter().map(|piece| piece.size).sum::<f32>() / some.len() as f32,
        bytes: some.iter().map(|piece| piece.bytes).sum(),
    };
    pieces.chunks(each.max(1)).map(join).collect()
}

/// The excess of a rank's requests over the usual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Larger {
    /// The largest factor, as a logarithm to base 2.
    pub(crate) most: f64,
    /// The share by which the bytes of that stretch exceed the usual.
    pub(crate) share: f64,
    /// Bytes requested beyond the usual in all stretches whose requests are larger.
    pub(crate) bytes: f64,
}

/// The factor from which on requests are larger, as a logarithm, and true if each request was compared alone.
pub(crate) fn threshold(ranks: &[&Pieces]) -> (f64, bool) {
    let alone = ranks.iter().all(|rank| rank.each <= 1);
    (if alone { LARGER } else { LARGER_JOINED }, alone)
}

/// Each rank against the typical one. Empty unless all ranks made about as many requests.
pub(crate) fn larger(ranks: &[&Pieces]) -> Vec<Larger> {
    let Some(cut) = cut(ranks) else { return Vec::new() };
    let usual = |i: usize| Stretch {
        size: median(&cut.iter().map(|rank| rank[i].size).collect::<Vec<_>>()),
        bytes: median(&cut.iter().map(|rank| rank[i].bytes).collect::<Vec<_>>()),
    };
    let usual: Vec<Stretch> = (0..cut[0].len()).map(usual).collect();
    cut.iter().map(|rank| above(rank, &usual)).collect()
}

/// The excess of `rank` over `other`, and of `other` over `rank`.
pub(crate) fn pair(rank: &Pieces, other: &Pieces) -> (Larger, Larger) {
    let cut = cut(&[rank, other]);
    cut.map_or_else(Default::default, |cut| (above(&cut[0], &cut[1]), above(&cut[1], &cut[0])))
}

/// A stretch of a run, against the same stretch of the rank that all are aligned with.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// The factor on a typical request: a mean of logarithms, without the eighth at either end.
    size: f64,
    /// Bytes of the requests that both make.
    bytes: f64,
}

/// The stretches of each rank, as many of one as of another.
fn cut(ranks: &[&Pieces]) -> Option<Vec<Vec<Stretch>>> {
    let each = ranks.iter().map(|rank| rank.each).max()?;
    let ranks: Vec<Vec<Piece>> =
        ranks.iter().map(|rank| merged(&rank.all, each / rank.each.max(1))).collect();
    let fewest = ranks.iter().map(Vec::len).min()?;
    let most = ranks.iter().map(Vec::len).max()?;
    if fewest < 2 * FEWEST || 4 * fewest < 3 * most {
        return None;
    }
    // All ranks are aligned with one of the usual length.
    let mut lengths: Vec<usize> = ranks.iter().map(Vec::len).collect();
    lengths.sort_unstable();
    let usual = lengths[(lengths.len() - 1) / 2];
    let base = ranks.iter().find(|rank| rank.len() == usual)?;
    let count = (usual / FEWEST).clamp(1, MOST);
    Some(ranks.iter().map(|rank| stretches(rank, base, count)).collect())
}

fn stretches(rank: &[Piece], base: &[Piece], count: usize) -> Vec<Stretch> {
    let partners = aligned(rank, base);
    let part = |i: usize| {
        let (from, to) = (i * base.len() / count, (i + 1) * base.len() / count);
        let pairs = (from..to).filter_map(|at| partners[at].map(|own| (rank[own], base[at])));
        let (mut sizes, mut bytes) = (Vec::new(), 0.0);
        for (own, base) in pairs {
            sizes.push(f64::from(own.size - base.size));
            bytes += f64::from(own.bytes);
        }
        sizes.sort_by(f64::total_cmp);
        let trimmed = sizes.len() / 8;
        let middle = &sizes[trimmed..sizes.len() - trimmed];
        Stretch { size: middle.iter().sum::<f64>() / middle.len().max(1) as f64, bytes }
    };
    (0..count).map(part).collect()
}

/// For each piece of `base` the one of `rank` that is the same request; `None` for one that `rank` does not make. The
/// cheapest way to turn one list into the other, with a shift of at most [`AHEAD`] between them.
fn aligned(rank: &[Piece], base: &[Piece]) -> Vec<Option<usize>> {
    let (n, m) = (rank.len(), base.len());
    let reach = (n.abs_diff(m) + AHEAD.0).clamp(AHEAD.0, AHEAD.1.max(n.abs_diff(m) + 1));
    let width = 2 * reach + 1;
    // Row i has the columns from `first(i)` on.
    let first = |i: usize| (i * m / n.max(1)).saturating_sub(reach);
    let (mut above, mut row) = (vec![f32::INFINITY; width + 1], vec![f32::INFINITY; width + 1]);
    let mut steps = vec![0u8; (n + 1) * width];
    for i in 0..=n {
        let (start, before) = (first(i), first(i.saturating_sub(1)));
        row.fill(f32::INFINITY);
        for j in start..=(start + width - 1).min(m) {
            let of_above = |j: usize| j.checked_sub(before).and_then(|at| above.get(at)).copied();
            let mut best = if i == 0 && j == 0 { (0.0, 0) } else { (f32::INFINITY, 0) };
            if i > 0 && j > 0 {
                let apart = (rank[i - 1].size - base[j - 1].size).abs().min(2.0 * GAP);
                best = (of_above(j - 1).unwrap_or(f32::INFINITY) + apart, 0);
            }
            let more = if i > 0 { of_above(j).unwrap_or(f32::INFINITY) + GAP } else { f32::INFINITY };
            let fewer = if j > start { row[j - 1 - start] + GAP } else { f32::INFINITY };
            if more < best.0 {
                best = (more, 1);
            }
            if fewer < best.0 {
                best = (fewer, 2);
            }
            row[j - start] = best.0;
            steps[i * width + j - start] = best.1;
        }
        std::mem::swap(&mut above, &mut row);
    }
    let mut partners = vec![None; m];
    let (mut i, mut j) = (n, m);
    while i > 0 || j > 0 {
        let Some(at) = j.checked_sub(first(i)).filter(|&at| at < width) else { break };
        match steps[i * width + at] {
            0 if i > 0 && j > 0 => {
                (i, j) = (i - 1, j - 1);
                partners[j] = Some(i);
            }
            1 if i > 0 => i -= 1,
            _ if j > 0 => j -= 1,
            _ => break,
        }
    }
    partners
}

fn above(own: &[Stretch], usual: &[Stretch]) -> Larger {
    let mut found = Larger::default();
    for (own, usual) in own.iter().zip(usual) {
        let (by, more) = (own.size - usual.size, own.bytes - usual.bytes);
        if by > found.most {
            (found.most, found.share) = (by, more / usual.bytes.max(1.0));
        }
        if by > LARGER {
            found.bytes += more;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty steps of 48 requests, those of `long` larger by `factor` tenths, with `extra` behind each step.
    fn run(long: Option<usize>, factor: u64, extra: Option<u64>) -> Pieces {
        let step = |step: usize| {
            let times = if long == Some(step) { factor } else { 10 };
            let layers = (0..48).map(move |i| (1 + i * i % 17) * (100 << 10) * times / 10);
            layers.chain(extra)
        };
        pieces((0..20).flat_map(step))
    }

    #[test]
    fn a_longer_batch_stands_out_in_its_stretch() {
        let (usual, long) = (run(None, 10, None), run(Some(7), 15, None));
        let found = larger(&[&usual, &long, &usual, &usual]);
        assert!(found[1].most > 0.5 && found[1].share > 0.3, "{found:?}");
        assert!(found[0].most < 1e-6, "{found:?}");
        // The others are aligned with the first rank, which may itself be the odd one.
        let found = larger(&[&long, &usual, &usual, &usual]);
        assert!(found[0].most > 0.5 && found[1].most < 1e-6, "{found:?}");
        let (up, down) = pair(&long, &usual);
        assert!(up.most > 0.5 && down.most < 1e-6);
    }

    #[test]
    fn a_request_more_in_every_step_shifts_nothing() {
        let usual = run(None, 10, None);
        for extra in [8 << 10, 1 << 20, 500 << 20] {
            let more = run(None, 10, Some(extra));
            for found in larger(&[&usual, &more, &usual]).iter().chain(&larger(&[&more, &usual, &usual])) {
                assert!(found.most < LARGER / 2.0, "{extra}: {found:?}");
            }
            let both = larger(&[&usual, &run(Some(3), 15, Some(extra)), &usual]);
            assert!(both[1].most > 0.4, "{extra}: {both:?}");
        }
    }

    #[test]
    fn runs_of_other_lengths_are_not_compared() {
        let of = |count: usize| pieces((0..count as u64).map(|i| (1 + i % 7) << 20));
        assert_eq!(larger(&[&of(900), &of(500)]), []);
        assert_eq!(pair(&of(900), &of(500)).0, Larger::default());
        assert_eq!(larger(&[&of(20), &of(20)]), [], "too few requests for two stretches");
        // One more than the pieces hold.
        let (few, many) = (of(PIECES), of(PIECES + 1));
        assert!(larger(&[&few, &many, &few]).iter().all(|found| found.most < LARGER));
        assert_eq!((threshold(&[&few]), threshold(&[&few, &many])), ((LARGER, true), (LARGER_JOINED, false)));
    }
}
