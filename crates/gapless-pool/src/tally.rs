//! What one shard counted on its own since the pool last looked, within the room it was given.
//!
//! The pool's peaks are exact although shards count apart: the room below the peaks is divided among them, so as long
//! as each keeps to its share the sums stay below. A request that would exceed its shard's share goes through the pool,
//! which adds everything up. What a shard had and gave back is its own to take again, whoever looked meanwhile: a loop
//! of equal steps at the very peak stays within its shares.

use crate::shard::Shard;
use crate::stats::{ClassStats, Gauge, Stats};

/// Allocations, their block bytes, and what was asked for: in all, of small requests, of large ones.
pub(crate) type Amounts = [[u64; 3]; 3];

/// Amounts made of other amounts, each by itself.
fn each(of: impl Fn(usize, usize) -> u64) -> Amounts {
    std::array::from_fn(|kind| std::array::from_fn(|what| of(kind, what)))
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    given: Amounts,
    /// What may still be added, and the least that this ever was.
    room: Amounts,
    low: Amounts,
    /// All that was added, by size class.
    added: [[u64; 3]; 2],
    /// By how much it is below the most that it ever had: it will ask for as much again.
    due: Amounts,
    /// Bytes in heaps of large blocks that small ones gave back.
    left: u64,
    /// It did something since the pool looked before.
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

    /// A small block that lay between large ones was given back.
    #[inline]
    pub(crate) fn guest_left(&mut self, size: u64) {
        self.left += size;
    }

    /// How far block bytes ever were above what they were when room was given.
    pub(crate) fn rise(&self) -> u64 {
        self.given[0][1] - self.low[0][1]
    }

    /// Adds what was counted to the pool's own, and starts again with no room.
    pub(crate) fn settle(&mut self, stats: &mut Stats) {
        // Most lanes do nothing between two looks.
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
            // The most that it had, above where it was when room was given; and where it is.
            let (most, now) = ((given - low).max(due), given.wrapping_sub(room));
            most.wrapping_sub(now)
        });
        *self = Tally { due, is_busy: true, ..Tally::default() };
    }

    /// The whole pool served one of its requests.
    #[inline]
    pub(crate) fn took(&mut self, class: usize, size: u64, requested: u64) {
        self.is_busy = true;
        for (what, amount) in [1, size, requested].into_iter().enumerate() {
            for kind in [0, 1 + class] {
                self.due[kind][what] = self.due[kind][what].saturating_sub(amount);
            }
        }
    }

    /// The whole pool took one of its requests back.
    #[inline]
    pub(crate) fn gave(&mut self, class: usize, size: u64, requested: u64) {
        self.is_busy = true;
        for (what, amount) in [1, size, requested].into_iter().enumerate() {
            for kind in [0, 1 + class] {
                self.due[kind][what] += amount;
            }
        }
    }

    /// What it has now is the most that it ever had.
    pub(crate) fn reset(&mut self) {
        self.due = Amounts::default();
    }

    fn give(&mut self, room: Amounts) {
        self.given = room;
        self.room = room;
        self.low = room;
    }
}

/// What is left below the peaks.
fn below_peaks(stats: &Stats) -> Amounts {
    let Stats { allocations, allocated, requested, active_blocks, active, classes, .. } = *stats;
    let left = |a: Gauge, b: Gauge| (a.peak - a.current).min(b.peak - b.current);
    let of = |c: ClassStats| {
        [left(c.allocations, c.active_blocks), left(c.allocated, c.active), left(c.requested, c.requested)]
    };
    let all = [left(allocations, active_blocks), left(allocated, active), left(requested, requested)];
    [all, of(classes[0]), of(classes[1])]
}

/// Divides what is left below the peaks: to each what it is due, and of the rest the same. Where less is left than is
/// due in all, since not everybody had most at once, those who do something have theirs before those who do not, and
/// the first ones all of it: who has none will ask, not everybody.
pub(crate) fn divide(stats: &Stats, shards: &mut [Box<Shard>]) {
    let count = shards.len().max(1) as u64;
    let mut left = below_peaks(stats);
    let mut due = Amounts::default();
    for shard in &*shards {
        due = each(|kind, what| due[kind][what] + shard.tally.due[kind][what]);
    }
    let rest = each(|kind, what| left[kind][what].saturating_sub(due[kind][what]) / count);
    for is_busy in [true, false] {
        for tally in shards.iter_mut().map(|shard| &mut shard.tally).filter(|tally| tally.is_busy == is_busy)
        {
            let room = each(|kind, what| (tally.due[kind][what] + rest[kind][what]).min(left[kind][what]));
            left = each(|kind, what| left[kind][what] - room[kind][what]);
            tally.give(room);
        }
    }
}
