//! A lane's large requests as they came: sizes, what was live before each, and when each ended. What recurs is looked
//! for here.

use super::{Gram, Recurring};
use crate::pool::UNIT;
use rustc_hash::FxHashMap;

/// Requests that name a place in a sequence.
pub(super) const GRAM: usize = 8;
/// A longer log begins again: whatever recurs is shorter.
const LONGEST: usize = 1 << 17;
/// Sequences that are remembered.
const SEEN: usize = 1 << 11;
/// Marked places that are remembered.
const BOUNDARIES: usize = 16;
/// Places that are compared with a step, at most: where all sizes are alike, each takes as long as the step is.
const PLACES: usize = 64;
/// How far back they are looked for, in steps; and how many requests may come in between two at once, and in all, in
/// parts of the step.
const REACH: usize = 8;
const BETWEEN: usize = 4;
const BETWEEN_PART: usize = 16;
/// It has not ended.
const OPEN: u32 = u32::MAX;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// `FACTOR` to the power of [`GRAM`].
const OLDEST: u64 = {
    let mut power = 1u64;
    let mut i = 0;
    while i < GRAM {
        power = power.wrapping_mul(FACTOR);
        i += 1;
    }
    power
};

/// A step, from where least is live.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) recurring: Vec<Recurring>,
    /// Which of them comes next.
    pub(super) next: usize,
    /// The most that was live, and the least, before the first of them.
    pub(super) peak: u64,
    pub(super) least: u64,
}

#[derive(Debug)]
pub(super) struct Log {
    /// The number of the first entry.
    base: u32,
    sizes: Vec<u32>,
    lives: Vec<u64>,
    ends: Vec<u32>,
    /// The last sizes, written or not, and their hash.
    recent: [u32; GRAM],
    rolled: usize,
    hash: u64,
    /// By hash and live bytes: the last entry that ended such a sequence.
    seen: Box<[(u64, u32)]>,
    /// Entries before which a mark was.
    boundaries: Vec<u32>,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            base: 0,
            sizes: Vec::new(),
            lives: Vec::new(),
            ends: Vec::new(),
            recent: [0; GRAM],
            rolled: 0,
            hash: 0,
            seen: vec![(0, 0); SEEN].into_boxed_slice(),
            boundaries: Vec::new(),
        }
    }
}

impl Log {
    /// A request came, written down or not.
    #[inline]
    pub(super) fn roll(&mut self, units: u32) {
        let place = &mut self.recent[self.rolled % GRAM];
        let oldest = std::mem::replace(place, units);
        self.rolled += 1;
        self.hash = rolled(self.hash, oldest, units);
    }

    /// The last sizes.
    #[inline]
    pub(super) fn gram(&self) -> Gram {
        self.hash
    }

    /// Begins again: what comes next does not follow what is written.
    pub(super) fn restart(&mut self) {
        self.base = self.base.wrapping_add(self.sizes.len() as u32);
        self.sizes.clear();
        self.lives.clear();
        self.ends.clear();
        self.boundaries.clear();
    }

    /// Writes down the request that came last. Its number, and how long ago the same sequence ended with as much live.
    #[inline]
    pub(super) fn add(&mut self, units: u32, live: u64) -> (u32, Option<usize>) {
        if self.sizes.len() >= LONGEST {
            self.restart();
        }
        let at = self.sizes.len();
        self.sizes.push(units);
        self.lives.push(live);
        self.ends.push(OPEN);
        let key = (self.hash ^ live.rotate_left(17)).wrapping_mul(FACTOR);
        let now = self.number(at);
        let (before, number) = std::mem::replace(&mut self.seen[(key >> 32) as usize % SEEN], (key, now));
        let then = number.wrapping_sub(self.base) as usize;
        let recurs = before == key && then < at && self.same(then, at);
        (now, recurs.then(|| at - then))
    }

    fn number(&self, at: usize) -> u32 {
        self.base.wrapping_add(at as u32)
    }

    /// Whether the sequences that end at two entries are the same, with as much live.
    fn same(&self, one: usize, other: usize) -> bool {
        let ending = |at: usize| (at + 1).checked_sub(GRAM).map(|from| &self.sizes[from..=at]);
        self.lives[one] == self.lives[other] && ending(one).is_some() && ending(one) == ending(other)
    }

    #[inline]
    pub(super) fn ended(&mut self, number: u32) {
        let now = self.sizes.len() as u32;
        if let Some(end) = self.ends.get_mut(number.wrapping_sub(self.base) as usize) {
            *end = now;
        }
    }

    /// Whether an entry is one of the last `length`.
    pub(super) fn is_within(&self, number: u32, length: usize) -> bool {
        let at = number.wrapping_sub(self.base) as usize;
        at < self.sizes.len() && at + length >= self.sizes.len()
    }

    /// The last sizes.
    pub(super) fn last(&self, length: usize) -> Option<Box<[u32]>> {
        Some(self.sizes.get(self.sizes.len().checked_sub(length)?..)?.into())
    }

    /// A mark is before the request that comes next.
    pub(super) fn mark(&mut self) {
        if self.boundaries.len() == BOUNDARIES {
            self.boundaries.remove(0);
        }
        self.boundaries.push(self.sizes.len() as u32);
    }

    /// What comes next, of `units` where that is known, is behind a mark, with `live` bytes live: the step since an
    /// earlier mark that was so too, where the first half of it was not new then.
    pub(super) fn since_mark(&self, units: Option<u32>, live: u64, shortest: usize) -> Option<Found> {
        let now = self.sizes.len();
        let is_same = |&&at: &&u32| {
            self.lives[at as usize] == live && units.is_none_or(|units| self.sizes[at as usize] == units)
        };
        let long = self.boundaries.iter().rev().filter(|&&at| now - at as usize >= shortest);
        let before = *long.into_iter().find(is_same)? as usize;
        let length = now - before;
        if self.has_come_before(before, length / 2) { self.period(length) } else { None }
    }

    /// Whether the `length` sizes from an entry on came before it, in the same order, with little in between: what
    /// comes once, such as the states of an optimizer or the workspaces of libraries, comes in between in a first step.
    fn has_come_before(&self, at: usize, length: usize) -> bool {
        let sizes = &self.sizes[at..at + length];
        let Some((&first, earliest)) = sizes.first().zip(at.checked_sub(length)) else { return false };
        let before = (earliest.saturating_sub(REACH * length)..=earliest)
            .rev()
            .filter(|&from| self.sizes[from] == first);
        let alike = before
            .map(|from| &self.sizes[from..at])
            .filter(|before| contains(before, &sizes[..length.min(GRAM)]));
        alike.take(PLACES).any(|before| contains(before, sizes))
    }

    /// The last `length` requests as a step. One that has not ended does so as the one a step before did; where that is
    /// not known either, it lives for a whole step.
    pub(super) fn period(&self, length: usize) -> Option<Found> {
        let now = self.sizes.len();
        let from = now.checked_sub(length).filter(|_| length > 0)?;
        let lifetime = |at: usize| {
            if self.ends[at] != OPEN {
                return self.ends[at] as usize - at;
            }
            let before =
                at.checked_sub(length).filter(|&b| self.sizes[b] == self.sizes[at] && self.ends[b] != OPEN);
            before.map(|b| self.ends[b] as usize - b).filter(|&lived| lived > now - at).unwrap_or(length)
        };
        let cut = (from..now).min_by_key(|&at| self.lives[at])? - from;
        let recurring = (0..length).map(|position| {
            let at = from + (position + cut) % length;
            let lived = lifetime(at).min(length) as u32;
            let start = position as u32;
            Recurring { size: u64::from(self.sizes[at]) * UNIT, start, end: start + lived }
        });
        let peak = (from..now).map(|at| self.lives[at] + u64::from(self.sizes[at]) * UNIT).max()?;
        let least = self.lives[from + cut];
        Some(Found { recurring: recurring.collect(), next: (length - cut) % length, peak, least })
    }

    /// Where each sequence that occurs once ends: which request comes after it.
    pub(super) fn grams(&self, recurring: &[Recurring]) -> FxHashMap<Gram, u32> {
        let units = |at: usize| super::units(recurring[at % recurring.len()].size);
        let mut hash = 0;
        let mut recent = [0; GRAM];
        let mut found: FxHashMap<Gram, u32> = FxHashMap::default();
        let mut twice: Vec<Gram> = Vec::new();
        // Twice around: the first time fills the hash.
        for i in 0..recurring.len() + GRAM {
            let oldest = std::mem::replace(&mut recent[i % GRAM], units(i));
            hash = rolled(hash, oldest, units(i));
            if i >= GRAM && found.insert(hash, (i % recurring.len()) as u32 + 1).is_some() {
                twice.push(hash);
            }
        }
        for gram in twice {
            found.remove(&gram);
        }
        found
    }
}

/// Whether `before` begins with `sizes`, with little in between.
fn contains(before: &[u32], sizes: &[u32]) -> bool {
    let mut left = BETWEEN + sizes.len() / BETWEEN_PART;
    let mut rest = before;
    sizes.iter().all(|size| {
        let Some(skipped) = rest.iter().take(1 + BETWEEN.min(left)).position(|s| s == size) else {
            return false;
        };
        left -= skipped;
        rest = &rest[skipped + 1..];
        true
    })
}

#[inline]
fn rolled(hash: u64, oldest: u32, newest: u32) -> u64 {
    // Each size is made large first: sums of small numbers meet too easily. What is not there yet counts nothing.
    let spread = |units: u32| u64::from(units).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash.wrapping_mul(FACTOR).wrapping_add(spread(newest)).wrapping_sub(spread(oldest).wrapping_mul(OLDEST))
}
