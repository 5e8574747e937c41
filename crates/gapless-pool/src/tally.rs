//! Counters of one shard since the pool last added them up, within the room that the shard was given.
//!
//! The pool's peaks are exact although shards count apart: the pool divides the room below the peaks among them, so
//! while each shard keeps to its share the sums stay below the peaks. A request that would exceed its shard's share
//! goes through the pool, which adds everything up. A shard may take again what it had and gave back, even if the pool
//! added up meanwhile. So a loop of equal steps at the very peak stays within its shares.

use crate::stats::{ClassStats, Gauge, Stats};

/// Allocations, their block bytes and their requested bytes: in all, of small requests, of large ones.
pub(crate) type Amounts = [[u64; 3]; 3];

/// Computes each amount with `of`.
fn each(of: impl Fn(usize, usize) -> u64) -> Amounts {
    std::array::from_fn(|kind| std::array::from_fn(|what| of(kind, what)))
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    given: Amounts,
    /// The amounts that may still be added, and their lowest values.
    room: Amounts,
    low: Amounts,
    /// Sums of everything added, by size class.
    added: [[u64; 3]; 2],
    /// The shard's distance below its own peaks: it will probably need as much again.
    due: Amounts,
    /// Bytes of small blocks that were freed in heaps of large ones.
    left: u64,
    /// True if the shard did anything since the pool last added up.
    is_busy: bool,
}

impl Tally {
    #[inline]
    pub(crate) fn has_room(&self, class: usize, size: u64, requested: u64) -> bool {
        let fits = |room: &[u64; 3]| room[0] >= 1 && room[1] >= size && room[2] >= requested;
        fits(&self.room[0]) && fits(&self.room[1 + class])
    }

    #[inline]
    pub(crate) fn out(&mut self, class: usize, size: u64, requested: u64) {
        for (what, amount) in [1, size, requested].into_iter().enumerate() {
            for kind in [0, 1 + class] {
                self.room[kind][what] -= amount;
                self.low[kind][what] = self.low[kind][what].min(self.room[kind][what]);
            }
            self.added[class][what] += amount;
        }
    }

    #[inline]
    pub(crate) fn back(&mut self, class: usize, size: u64, requested: u64) {
        for (what, amount) in [1, size, requested].into_iter().enumerate() {
            self.room[0][what] += amount;
            self.room[1 + class][what] += amount;
        }
    }

    /// Counts a small block between large ones that was freed.
    #[inline]
    pub(crate) fn guest_left(&mut self, size: u64) {
        self.left += size;
    }

    /// The highest rise of block bytes above their value when the room was given.
    pub(crate) fn rise(&self) -> u64 {
        self.given[0][1] - self.low[0][1]
    }

    /// Adds the counters to the pool's statistics, and starts again without room.
    pub(crate) fn settle(&mut self, stats: &mut Stats) {
        // Most lanes do nothing between two calls.
        if self.room == self.given && self.added == [[0; 3]; 2] && self.left == 0 {
            *self = Tally { due: self.due, ..Tally::default() };
            return;
        }
        stats.move_reserved(self.left, 0, 1);
        let Stats { allocations, allocated, requested, active_blocks, active, classes, .. } = stats;
        for (class, c) in classes.iter_mut().enumerate() {
            let now = |what: usize| {
                let kind = 1 + class;
                (self.given[kind][what].wrapping_sub(self.room[kind][what]), self.added[class][what])
            };
            let (blocks, bytes, asked) = (now(0), now(1), now(2));
            for (gauge, (more, added)) in [
                (&mut c.allocations, blocks),
                (&mut c.active_blocks, blocks),
                (&mut c.allocated, bytes),
                (&mut c.active, bytes),
                (&mut c.requested, asked),
                (&mut *allocations, blocks),
                (&mut *active_blocks, blocks),
                (&mut *allocated, bytes),
                (&mut *active, bytes),
                (&mut *requested, asked),
            ] {
                gauge.current = gauge.current.wrapping_add(more);
                gauge.total += added;
            }
        }
        let due = each(|kind, what| {
            let [given, room, low, due] =
                [&self.given, &self.room, &self.low, &self.due].map(|of| of[kind][what]);
            // The highest rise above the value when the room was given, and the present one.
            let (most, now) = ((given - low).max(due), given.wrapping_sub(room));
            most.wrapping_sub(now)
        });
        *self = Tally { due, is_busy: true, ..Tally::default() };
    }

    /// Counts a request of the shard that the whole pool served.
    #[inline]
    pub(crate) fn took(&mut self, class: usize, size: u64, requested: u64) {
        self.is_busy = true;
        for (what, amount) in [1, size, requested].into_iter().enumerate() {
            for kind in [0, 1 + class] {
                self.due[kind][what] = self.due[kind][what].saturating_sub(amount);
            }
        }
    }

    /// Counts a free of the shard that the whole pool did.
    #[inline]
    pub(crate) fn gave(&mut self, class: usize, size: u64, requested: u64) {
        self.is_busy = true;
        for (what, amount) in [1, size, requested].into_iter().enumerate() {
            for kind in [0, 1 + class] {
                self.due[kind][what] += amount;
            }
        }
    }

    /// Makes the present values the shard's peaks.
    pub(crate) fn reset(&mut self) {
        self.due = Amounts::default();
    }

    fn give(&mut self, room: Amounts) {
        self.given = room;
        self.room = room;
        self.low = room;
    }
}

/// The room that is left below the peaks.
fn below_peaks(stats: &Stats) -> Amounts {
    let Stats { allocations, allocated, requested, active_blocks, active, classes, .. } = *stats;
    let left = |a: Gauge, b: Gauge| (a.peak - a.current).min(b.peak - b.current);
    let of = |c: ClassStats| {
        [left(c.allocations, c.active_blocks), left(c.allocated, c.active), left(c.requested, c.requested)]
    };
    let all = [left(allocations, active_blocks), left(allocated, active), left(requested, requested)];
    [all, of(classes[0]), of(classes[1])]
}

/// Divides the room below the peaks: each shard gets what it is due, and the same part of the rest. The shards' peaks
/// may lie at different times, so less may be left than is due in all. Then busy shards come before idle ones, and the
/// first shards get all that they are due: so only the last ones have to go through the pool.
pub(crate) fn divide<S>(stats: &Stats, shards: &mut [S], tally: impl Fn(&mut S) -> &mut Tally) {
    let count = shards.len().max(1) as u64;
    let mut left = below_peaks(stats);
    let mut due = Amounts::default();
    for tally in shards.iter_mut().map(&tally) {
        due = each(|kind, what| due[kind][what] + tally.due[kind][what]);
    }
    let rest = each(|kind, what| left[kind][what].saturating_sub(due[kind][what]) / count);
    for is_busy in [true, false] {
        for tally in shards.iter_mut().map(&tally).filter(|tally| tally.is_busy == is_busy) {
            let room = each(|kind, what| (tally.due[kind][what] + rest[kind][what]).min(left[kind][what]));
            left = each(|kind, what| left[kind][what] - room[kind][what]);
            tally.give(room);
        }
    }
}
