//! A budget: the most block bytes that what is charged to it may be, at once, in callers' hands.
//!
//! An allocation is charged to at most one budget, from its request until it is given back, whoever does that. Shards
//! charge on their own: a request that would pass the limit, or the soft limit for the first time, goes through the
//! pool, which has the last word. While the pool is gathered nobody else charges, so that it may look first and charge
//! later. Peaks are exact.

use crate::sync::{AtomicU64, Ordering};

/// How a budget stands to its soft limit.
mod press {
    /// The limit is not passed.
    pub(super) const CALM: u64 = 0;
    /// It is passed, and work still used what was free: the next request asks the pool again.
    pub(super) const OWED: u64 = 1;
    /// It is passed, and what was free went back.
    pub(super) const DONE: u64 = 2;
}

/// What has a limit and is charged.
#[derive(Debug)]
#[repr(align(64))]
pub struct Budget {
    live: AtomicU64,
    peak: AtomicU64,
    limit: AtomicU64,
    soft: AtomicU64,
    /// One of [`press`].
    press: AtomicU64,
    /// How often the soft limit was passed.
    pressed: AtomicU64,
    /// Requests that were refused.
    refused: AtomicU64,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetStats {
    pub live: u64,
    pub peak: u64,
    pub limit: u64,
    /// `u64::MAX`: there is none.
    pub soft: u64,
    pub pressed: u64,
    pub refused: u64,
}

/// Whether there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Enough,
    /// Enough, and the soft limit is passed: memory should be given back.
    Pressed,
    /// Pressed before, and memory that work used then is still to be given back.
    PressedAgain,
    None,
}

/// A budget is equal to itself alone.
impl PartialEq for Budget {
    fn eq(&self, other: &Budget) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Budget {}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(u64::MAX, u64::MAX)
    }
}

impl Budget {
    #[must_use]
    pub fn new(limit: u64, soft: u64) -> Budget {
        Budget {
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            soft: AtomicU64::new(soft),
            press: AtomicU64::new(press::CALM),
            pressed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Sets what may be held; what is held already stays. `u64::MAX`: no such limit.
    pub fn set_limits(&self, limit: u64, soft: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.soft.store(soft, Ordering::Relaxed);
        let is_passed = self.live.load(Ordering::Relaxed) > soft;
        let press = match self.press.load(Ordering::Relaxed) {
            _ if !is_passed => press::CALM,
            press::OWED => press::OWED,
            // A limit below what is held already presses at the next crossing.
            _ => press::DONE,
        };
        self.press.store(press, Ordering::Relaxed);
    }

    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        BudgetStats {
            live: get(&self.live),
            peak: get(&self.peak),
            limit: get(&self.limit),
            soft: get(&self.soft),
            pressed: get(&self.pressed),
            refused: get(&self.refused),
        }
    }

    /// The peak starts again from what is charged now.
    pub fn reset_peak(&self) {
        self.peak.store(self.live.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Charges `size` bytes where that passes nothing. Whether it did.
    #[inline]
    pub(crate) fn take(&self, size: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let is_settled = self.press.load(Ordering::Relaxed) == press::DONE;
        let most = if is_settled { limit } else { limit.min(self.soft.load(Ordering::Relaxed)) };
        let more = |live: u64| live.checked_add(size).filter(|&sum| sum <= most);
        match self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(before) => {
                self.peak.fetch_max(before + size, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Whether `size` bytes could be charged: asked by the gathered pool, while nobody else charges.
    pub(crate) fn room(&self, size: u64) -> Room {
        let sum = self.live.load(Ordering::Relaxed).saturating_add(size);
        if sum > self.limit.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Room::None;
        }
        if sum <= self.soft.load(Ordering::Relaxed) {
            return Room::Enough;
        }
        match self.press.swap(press::DONE, Ordering::Relaxed) {
            press::CALM => {
                self.pressed.fetch_add(1, Ordering::Relaxed);
                Room::Pressed
            }
            press::OWED => Room::PressedAgain,
            _ => Room::Enough,
        }
    }

    /// What is free could not all be given back: the next request above the soft limit asks again.
    pub(crate) fn owe(&self) {
        self.press.store(press::OWED, Ordering::Relaxed);
    }

    /// Charges `size` bytes whatever the limits say.
    pub(crate) fn charge(&self, size: u64) {
        let before = self.live.fetch_add(size, Ordering::Relaxed);
        self.peak.fetch_max(before + size, Ordering::Relaxed);
    }

    /// Takes `size` bytes back that were charged.
    #[inline]
    pub(crate) fn give(&self, size: u64) {
        let left = self.live.fetch_sub(size, Ordering::Relaxed) - size;
        if self.press.load(Ordering::Relaxed) != press::CALM {
            let soft = self.soft.load(Ordering::Relaxed);
            // Well below, so that a size that comes and goes at the limit does not press each time.
            if left < soft - soft / 8 {
                self.press.store(press::CALM, Ordering::Relaxed);
            }
        }
    }
}
