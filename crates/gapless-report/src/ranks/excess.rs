//! Memory that a rank holds beyond its peers, by origin.
//!
//! An origin is a stack, or a size class if there are no stacks. The lack of a neighbouring class reduces the excess
//! of a class, because a size near an edge may fall into either.

use super::held::Held;
use super::robust::median;
use super::summary::Summary;
use rustc_hash::FxHashMap;

/// An origin that holds more here than on a typical peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Excess {
    pub(crate) label: String,
    pub(crate) kind: &'static str,
    /// Bytes above those of the typical peer.
    pub(crate) bytes: u64,
    /// Bytes that the typical peer holds.
    pub(crate) peers: u64,
    pub(crate) count: u64,
    pub(crate) lasting: bool,
    /// True if no peer holds a tenth of it.
    pub(crate) new: bool,
}

type Origin = (u64, bool);

/// Bytes of each origin on the ranks of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// In ascending order, without the ranks that hold nothing.
    held: FxHashMap<Origin, Vec<u64>>,
    ranks: usize,
    by_size: bool,
}

impl Origins {
    pub(crate) fn of(group: &[&Summary]) -> Origins {
        Origins::gathered(group, |rank| &rank.held)
    }

    /// The same by size alone, whether or not there are stacks.
    pub(crate) fn by_size(group: &[&Summary]) -> Origins {
        Origins { by_size: true, ..Origins::gathered(group, by_size) }
    }

    fn gathered(group: &[&Summary], of: impl Fn(&Summary) -> &Vec<Held>) -> Origins {
        let mut held: FxHashMap<Origin, Vec<u64>> = FxHashMap::default();
        for row in group.iter().flat_map(|rank| of(rank)) {
            held.entry((row.key, row.lasting)).or_default().push(row.bytes);
        }
        for values in held.values_mut() {
            values.sort_unstable();
        }
        Origins { held, ranks: group.len(), by_size: false }
    }

    /// The median and the maximum over all ranks except one that holds `own`.
    fn of_peers(&self, origin: Origin, own: u64) -> (f64, f64) {
        let empty = Vec::new();
        let values = self.held.get(&origin).unwrap_or(&empty);
        let peers = self.ranks.saturating_sub(1);
        let zeros = (self.ranks - values.len()).saturating_sub(usize::from(own == 0));
        let skipped = if own > 0 { values.partition_point(|&value| value < own) } else { usize::MAX };
        let at = |i: usize| match i.checked_sub(zeros) {
            None => 0.0,
            Some(i) => values.get(i + usize::from(i >= skipped)).copied().unwrap_or(0) as f64,
        };
        match peers {
            0 => (0.0, 0.0),
            _ => (f64::midpoint(at((peers - 1) / 2), at(peers / 2)), at(peers - 1)),
        }
    }

    /// Bytes that `rank`, one of the group, holds beyond the others, the most first.
    pub(crate) fn beyond(&self, rank: &Summary) -> Vec<Excess> {
        let rows_of = if self.by_size { by_size(rank) } else { &rank.held };
        let own: FxHashMap<Origin, u64> =
            rows_of.iter().map(|held| ((held.key, held.lasting), held.bytes)).collect();
        let mut rows: Vec<Excess> = Vec::new();
        for held in rows_of {
            let (typical, mut nearby) = self.of_peers((held.key, held.lasting), held.bytes);
            // If steps are cut differently, an origin may last on one rank only. So either way counts against "new".
            let other = (held.key, !held.lasting);
            nearby = nearby.max(self.of_peers(other, own.get(&other).copied().unwrap_or(0)).1);
            let mut excess = held.bytes as f64 - typical;
            if held.class.is_some() {
                for neighbour in [held.key.wrapping_sub(1), held.key + 1] {
                    let origin = (neighbour, held.lasting);
                    let here = own.get(&origin).copied().unwrap_or(0);
                    let (usual, most) = self.of_peers(origin, here);
                    excess -= (usual - here as f64).max(0.0);
                    nearby = nearby.max(most);
                }
            }
            if excess >= 1.0 {
                rows.push(row(held, excess, typical, nearby));
            }
        }
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.label.cmp(&b.label)));
        rows
    }
}

fn by_size(rank: &Summary) -> &Vec<Held> {
    if rank.held_by_size.is_empty() { &rank.held } else { &rank.held_by_size }
}

fn row(held: &Held, excess: f64, typical: f64, nearby: f64) -> Excess {
    Excess {
        label: held.label.clone(),
        kind: held.kind,
        bytes: excess as u64,
        peers: typical as u64,
        count: held.count,
        lasting: held.lasting,
        new: nearby < 0.1 * held.bytes as f64,
    }
}

/// The factor between the largest requests of a rank and those of a peer: 1 if the rank only has a few more, and the
/// factor if all are larger. Both lists are in descending order.
pub(crate) fn request_growth(rank: &[u64], peer: &[u64]) -> f64 {
    // This many requests of the rank may have no counterpart.
    const MORE: usize = 8;
    let shifted = |by: usize| {
        let pairs = rank.iter().skip(by).zip(peer);
        median(&pairs.map(|(&a, &b)| a as f64 / b.max(1) as f64).collect::<Vec<_>>())
    };
    let most = MORE.min(rank.len().div_ceil(8)).min(rank.len().saturating_sub(1));
    (0..=most).map(shifted).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(key: u64, class: Option<u16>, bytes: u64) -> Held {
        Held { key, class, lasting: false, bytes, count: 1, kind: "activations", label: format!("k{key}") }
    }

    fn with(held: Vec<Held>) -> Summary {
        Summary { held, ..Summary::default() }
    }

    #[test]
    fn a_class_takes_over_what_its_neighbour_lacks() {
        let peer = with(vec![held(80, Some(80), 1000)]);
        let beyond = |rank: &Summary| Origins::of(&[&peer, rank, &peer, &peer]).beyond(rank);
        let shifted = beyond(&with(vec![held(81, Some(81), 1030)]));
        assert_eq!((shifted[0].bytes, shifted[0].new), (30, false));
        let extra = beyond(&with(vec![held(80, Some(80), 1000), held(90, Some(90), 500)]));
        assert_eq!((extra.len(), extra[0].bytes, extra[0].new), (1, 500, true));
    }

    #[test]
    fn peers_are_all_but_the_rank_itself() {
        let ranks =
            [5, 1, 9, 0].map(|bytes| with(if bytes > 0 { vec![held(7, None, bytes)] } else { vec![] }));
        let origins = Origins::of(&ranks.iter().collect::<Vec<_>>());
        assert_eq!(origins.of_peers((7, false), 9), (1.0, 5.0), "of 0, 1 and 5");
        assert_eq!(origins.of_peers((7, false), 0), (5.0, 9.0), "of 1, 5 and 9");
        assert_eq!(origins.of_peers((8, false), 0), (0.0, 0.0));
    }

    #[test]
    fn one_more_request_keeps_the_others_and_a_larger_batch_does_not() {
        let peer = [900, 800, 700, 650, 600, 550, 500];
        let one_more = [1200, 900, 800, 700, 650, 600, 550];
        assert!((request_growth(&one_more, &peer) - 1.0).abs() < 0.09);
        let layers = [vec![4000; 2], vec![1000; 40], vec![500; 20]].concat();
        let larger: Vec<u64> = layers.iter().map(|size| size * 13 / 10).collect();
        assert!((request_growth(&larger, &layers) - 1.3).abs() < 0.01);
        let more = [vec![9000; 3], layers.clone()].concat();
        assert_eq!(request_growth(&more, &layers), 1.0);
    }
}
