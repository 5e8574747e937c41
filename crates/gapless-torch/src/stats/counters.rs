//! Figures of a card that are counted only when the program asks: segments and free blocks beside others, as a snapshot
//! shows them, of the card and of each private pool.

use crate::overlay::layout::{Stat, StatArray};
use gapless_pool::{Gauge, PoolKey, SegmentCounts};

/// A quantity, with its totals counted from `since`.
pub(super) fn stat(now: Gauge, since: Gauge) -> Stat {
    let freed = |gauge: Gauge| gauge.total - gauge.current;
    Stat {
        current: now.current as i64,
        peak: now.peak as i64,
        allocated: (now.total - since.total) as i64,
        freed: (freed(now) - freed(since)) as i64,
    }
}

/// Counts of the card as a snapshot shows it: in all, small, large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub(super) segments: [Gauge; 3],
    /// Free blocks in segments of several blocks, and their bytes.
    pub(super) split: [Gauge; 3],
    pub(super) split_bytes: [Gauge; 3],
}

impl Shown {
    /// Looks at a card's segments.
    pub(super) fn look(&mut self, counts: SegmentCounts) {
        settle(&mut self.segments, counts.segments);
        settle(&mut self.split, counts.split);
        settle(&mut self.split_bytes, counts.split_bytes);
    }

    pub(super) fn restart_peaks(&mut self) {
        for gauge in self.segments.iter_mut().chain(&mut self.split).chain(&mut self.split_bytes) {
            gauge.peak = gauge.current;
        }
    }
}

/// Sets small and large to what was seen. The first gauge is their sum.
fn settle([all, small, large]: &mut [Gauge; 3], seen: [u64; 2]) {
    let seen = [(small, seen[0]), (large, seen[1])];
    // Decreases before increases: a segment that changed its kind must not count twice in the peak.
    for (gauge, now) in &seen {
        all.sub(gauge.current.saturating_sub(*now));
    }
    for (gauge, now) in seen {
        let more = now.saturating_sub(gauge.current);
        gauge.sub(gauge.current.saturating_sub(now));
        gauge.add(more);
        all.add(more);
    }
}

/// Reserved bytes of each private pool that ever existed, as the segments of a snapshot show them.
#[derive(Clone, Debug, Default)]
pub struct ByPool {
    pools: Vec<OnePool>,
}

/// Reserved bytes of a pool, now and when totals were last reset: in all, small, large.
#[derive(Clone, Copy, Debug)]
struct OnePool {
    key: PoolKey,
    reserved: [Gauge; 3],
    since: [Gauge; 3],
}

impl ByPool {
    pub(super) fn look(&mut self, reserved: &[(PoolKey, [u64; 2])]) {
        for &(key, bytes) in reserved {
            if bytes != [0, 0] && self.pools.iter().all(|pool| pool.key != key) {
                let none = [Gauge::default(); 3];
                self.pools.push(OnePool { key, reserved: none, since: none });
            }
        }
        for pool in &mut self.pools {
            let seen = reserved.iter().find(|(key, _)| *key == pool.key);
            settle(&mut pool.reserved, seen.map_or([0, 0], |(_, bytes)| *bytes));
        }
    }

    pub(super) fn restart_peaks(&mut self) {
        for gauge in self.pools.iter_mut().flat_map(|pool| &mut pool.reserved) {
            gauge.peak = gauge.current;
        }
    }

    pub(super) fn restart_totals(&mut self) {
        for pool in &mut self.pools {
            pool.since = pool.reserved;
        }
    }

    pub(super) fn stats(&self) -> Vec<([u64; 2], StatArray)> {
        let of = |pool: &OnePool| [0, 1, 2].map(|at| stat(pool.reserved[at], pool.since[at]));
        self.pools.iter().map(|pool| ([pool.key.0, pool.key.1], of(pool))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(segments: [u64; 2], split: [u64; 2]) -> SegmentCounts {
        SegmentCounts { segments, split, split_bytes: split.map(|blocks| 512 * blocks) }
    }

    #[test]
    fn what_is_looked_up_has_totals_and_peaks_that_fit_what_is_there() {
        let mut shown = Shown::default();
        let pictures = [
            counts([1, 2], [0, 2]),
            counts([2, 0], [1, 0]),
            SegmentCounts::default(),
            counts([0, 1], [0, 0]),
        ];
        for (at, picture) in pictures.iter().enumerate() {
            shown.look(*picture);
            for [all, small, large] in [shown.segments, shown.split, shown.split_bytes] {
                assert_eq!(all.current, small.current + large.current, "{at}");
                assert_eq!(all.total, small.total + large.total, "{at}");
                assert!([all, small, large].iter().all(|gauge| gauge.peak >= gauge.current), "{at}");
            }
            assert_eq!(shown.segments[0].current, picture.segments.iter().sum::<u64>());
        }
        assert_eq!((shown.segments[0].peak, shown.segments[0].total), (3, 5));
        assert_eq!((shown.split[2].peak, shown.split_bytes[2].peak, shown.split[1].peak), (2, 1024, 1));
        shown.restart_peaks();
        assert_eq!((shown.segments[0].peak, shown.split[2].peak), (1, 0));
    }
}
