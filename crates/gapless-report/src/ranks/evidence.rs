//! Finds the recordings of a group that can be compared by origin and by time.
//!
//! Recorders may have different settings: one rank records stacks, another none or other frames. The same bytes then
//! have other origins, and steps take longer. Such a rank is compared by the sizes of its requests, and not by time.
//!
//! A recording may also begin late, because its ring of events was too short, or have no history at all. A rank that
//! saw another part of its run than most others is compared by nothing but its failed requests and its settings.

use super::held::Held;
use super::summary::{Seen, Summary};
use rustc_hash::FxHashMap;

/// Two recordings are alike if this share of each rank's bytes has an origin that other ranks have too.
const SHARED: f64 = 0.5;

/// For each rank of a group: true if it was recorded as most others were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    alike: Vec<bool>,
    /// True if it saw the part of its run that most others saw.
    covers: Vec<bool>,
}

impl Evidence {
    pub(crate) fn of(group: &[&Summary]) -> Evidence {
        let stacked: Vec<bool> = group.iter().map(|rank| is_stacked(rank)).collect();
        let with = stacked.iter().filter(|&&stacked| stacked).count();
        let usual = 2 * with > group.len();
        let mut alike: Vec<bool> = stacked.iter().map(|&stacked| stacked == usual).collect();
        if usual {
            let mut ranks: FxHashMap<u64, u32> = FxHashMap::default();
            for (rank, _) in group.iter().zip(&alike).filter(|(_, alike)| **alike) {
                let mut keys: Vec<u64> = rank.held.iter().map(|held| held.key).collect();
                keys.sort_unstable();
                keys.dedup();
                keys.into_iter().for_each(|key| *ranks.entry(key).or_default() += 1);
            }
            for (rank, alike) in group.iter().zip(&mut alike).filter(|(_, alike)| **alike) {
                *alike = share(rank, |held| ranks[&held.key] > 1) >= SHARED;
            }
        }
        let least = group.len() / 2 + 1;
        if alike.iter().filter(|alike| **alike).count() < least {
            alike.fill(false);
        }
        let usual = [Seen::FromItsStart, Seen::Later, Seen::TheEnd]
            .into_iter()
            .find(|seen| group.iter().filter(|rank| rank.seen == *seen).count() >= least);
        let covers = group.iter().map(|rank| usual == Some(rank.seen)).collect();
        Evidence { alike, covers }
    }

    /// True if the rank at `at` was recorded from where most others were.
    pub(crate) fn covers(&self, at: usize) -> bool {
        self.covers[at]
    }

    /// Positions of the ranks that were recorded from elsewhere.
    pub(crate) fn elsewhere(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.covers.len()).filter(|&at| !self.covers[at])
    }

    /// True if the rank at `at` can be compared with most others by origins and by time.
    pub(crate) fn is_alike(&self, at: usize) -> bool {
        self.alike[at]
    }

    /// The ranks of `group` that can be compared so.
    pub(crate) fn alike<'a>(&self, group: &[&'a Summary]) -> Vec<&'a Summary> {
        group.iter().zip(&self.alike).filter(|(_, alike)| **alike).map(|(&rank, _)| rank).collect()
    }

    /// Positions of the ranks that cannot be compared so.
    pub(crate) fn unlike(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.alike.len()).filter(|&at| !self.alike[at])
    }
}

/// True if most bytes that a rank holds have a stack.
pub(crate) fn is_stacked(rank: &Summary) -> bool {
    !rank.held.is_empty() && share(rank, |held| held.class.is_none()) > 0.5
}

/// The share of bytes whose origins are `wanted`; 1 if the rank holds nothing.
fn share(rank: &Summary, wanted: impl Fn(&Held) -> bool) -> f64 {
    let sum = |held: &[&Held]| held.iter().map(|held| held.bytes as f64).sum::<f64>();
    let all = sum(&rank.held.iter().collect::<Vec<_>>());
    let found = sum(&rank.held.iter().filter(|held| wanted(held)).collect::<Vec<_>>());
    if all > 0.0 { found / all } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that holds so many bytes of each origin; origins below 100 are size classes.
    fn rank(origins: &[(u64, u64)]) -> Summary {
        let held = |&(key, bytes): &(u64, u64)| Held {
            key,
            class: (key < 100).then_some(key as u16),
            lasting: false,
            bytes,
            count: 1,
            kind: "activations",
            label: String::new(),
        };
        Summary { held: origins.iter().map(held).collect(), ..Summary::default() }
    }

    fn alike(ranks: &[Summary]) -> Vec<bool> {
        Evidence::of(&ranks.iter().collect::<Vec<_>>()).alike
    }

    #[test]
    fn a_recording_covers_what_most_others_cover() {
        use Seen::{FromItsStart as Whole, Later, TheEnd as End};
        for (seen, expected) in [
            (vec![Whole, Whole], vec![true, true]),
            (vec![Later, Later, Later], vec![true, true, true]),
            (vec![Whole, Later], vec![false, false]),
            (vec![Whole, Whole, Later], vec![true, true, false]),
            (vec![Later, Whole, Later], vec![true, false, true]),
            (vec![End, Whole, Whole, Whole], vec![false, true, true, true]),
            (vec![Whole, Later, End], vec![false, false, false]),
        ] {
            let ranks: Vec<Summary> = seen.iter().map(|&seen| Summary { seen, ..rank(&[(7, 90)]) }).collect();
            let found = Evidence::of(&ranks.iter().collect::<Vec<_>>());
            assert_eq!(found.covers, expected, "{seen:?}");
        }
    }

    #[test]
    fn recordings_are_alike_if_most_origins_are_shared() {
        let by_size = || rank(&[(7, 90), (9, 10)]);
        let by_stack = || rank(&[(101, 60), (102, 40)]);
        let other_frames = || rank(&[(201, 60), (202, 40)]);
        let one_more = || rank(&[(101, 60), (102, 40), (103, 90)]);
        let other_classes = || rank(&[(3, 500)]);
        for (ranks, expected) in [
            (vec![by_size(), by_size()], vec![true, true]),
            (vec![by_stack(), by_stack()], vec![true, true]),
            (vec![by_size(), by_stack()], vec![false, false]),
            (vec![by_stack(), other_frames()], vec![false, false]),
            (vec![by_stack(), by_size(), by_size()], vec![false, true, true]),
            (vec![by_stack(), by_stack(), by_size()], vec![true, true, false]),
            (vec![by_stack(), by_stack(), other_frames()], vec![true, true, false]),
            (vec![by_stack(), other_frames(), by_size()], vec![false, false, false]),
            (vec![by_stack(), by_stack(), one_more()], vec![true, true, true]),
            (vec![by_size(), by_size(), other_classes()], vec![true, true, true]),
            (vec![by_stack(), by_stack(), rank(&[])], vec![true, true, false]),
            (vec![rank(&[])], vec![true]),
        ] {
            assert_eq!(alike(&ranks), expected);
        }
    }
}
