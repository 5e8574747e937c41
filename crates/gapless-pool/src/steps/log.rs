//! The log of a lane's large requests: their sizes, the live bytes before each, and the end of each. Finds repetitions.

use super::{Gram, Recurring};
use crate::heap::UNIT;
use rustc_hash::FxHashMap;

/// This number of requests identifies a place in a sequence.
pub(super) const GRAM: usize = 8;
/// A longer log starts anew, because steps are shorter.
const LONGEST: usize = 1 << 17;
/// Entries of the table of recent sequences.
const SEEN: usize = 1 << 11;
/// Marks that are remembered.
const BOUNDARIES: usize = 16;
/// At most this many places are compared with a step. With equal sizes each comparison takes a whole step.
const PLACES: usize = 64;
/// Places are searched this many steps back. In between, this many others may come at once, and this part of the step
/// in all.
const REACH: usize = 8;
const BETWEEN: usize = 4;
const BETWEEN_PART: usize = 16;
/// The end of a request that has not ended.
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

/// A step, which begins at its least live bytes.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) recurring: Vec<Recurring>,
    /// The index of the request that comes next.
    pub(super) next: usize,
    /// The highest live bytes of the step, and the live bytes before its first request.
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
    /// The last sizes, logged or not, and their hash.
    recent: [u32; GRAM],
    rolled: usize,
    hash: u64,
    /// By hash and live bytes: the last entry at which such a sequence ended.
    seen: Box<[(u64, u32)]>,
    /// Entries that follow a mark.
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
    /// Adds a request to the last sizes, logged or not.
    #[inline]
    pub(super) fn roll(&mut self, units: u32) {
        let place = &mut self.recent[self.rolled % GRAM];
        let oldest = std::mem::replace(place, units);
        self.rolled += 1;
        self.hash = rolled(self.hash, oldest, units);
    }

    /// The hash of the last sizes.
    #[inline]
    pub(super) fn gram(&self) -> Gram {
        self.hash
    }

    /// Starts the log anew, because the next request does not follow the last entry.
    pub(super) fn restart(&mut self) {
        self.base = self.base.wrapping_add(self.sizes.len() as u32);
        self.sizes.clear();
        self.lives.clear();
        self.ends.clear();
        self.boundaries.clear();
    }

    /// Logs the last request. Returns its number, and how far back the same sequence last ended with equal live bytes.
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

    /// True if the sequences that end at two entries are the same, with as many live bytes.
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

    /// True if an entry is one of the last `length`.
    pub(super) fn is_within(&self, number: u32, length: usize) -> bool {
        let at = number.wrapping_sub(self.base) as usize;
        at < self.sizes.len() && at + length >= self.sizes.len()
    }

    /// The last `length` sizes.
    pub(super) fn last(&self, length: usize) -> Option<Box<[u32]>> {
        Some(self.sizes.get(self.sizes.len().checked_sub(length)?..)?.into())
    }

    /// Sets a mark before the next request.
    pub(super) fn mark(&mut self) {
        if self.boundaries.len() == BOUNDARIES {
            self.boundaries.remove(0);
        }
        self.boundaries.push(self.sizes.len() as u32);
    }

    /// The step since an earlier mark, if the next request follows a mark now and everything was the same then: its
    /// size `units`, if known, and `live` bytes. The first half of the step must have come before too.
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

    /// True if the `length` sizes from an entry on came before it in the same order, with few others in between. In a
    /// first step, requests that come only once are in between, such as optimizer states or workspaces of libraries.
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

    /// The last `length` requests as a step. For a request that has not ended, the end of the same request one step
    /// before counts; if that is unknown too, it lives for a whole step.
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

    /// For each sequence that occurs once in the step, the request that follows it.
    pub(super) fn grams(&self, recurring: &[Recurring]) -> FxHashMap<Gram, u32> {
        let units = |at: usize| super::units(recurring[at % recurring.len()].size);
        let mut hash = 0;
        let mut recent = [0; GRAM];
        let mut found: FxHashMap<Gram, u32> = FxHashMap::default();
        let mut twice: Vec<Gram> = Vec::new();
        // Goes on beyond the end, because the first requests only fill the hash.
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

/// True if `before` begins with `sizes`, with few others in between.
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
    // Each size is multiplied first, because sums of small numbers collide too easily. An empty place counts as 0.
    let spread = |units: u32| u64::from(units).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash.wrapping_mul(FACTOR).wrapping_add(spread(newest)).wrapping_sub(spread(oldest).wrapping_mul(OLDEST))
}
