//! A budget limits the block bytes that its allocations may have at once in callers' hands.
//!
//! An allocation is charged to at most one budget, from its request until it is freed, by whichever thread. Shards
//! charge on their own, except for a request that would exceed the limit, or the soft limit for the first time: that
//! one goes through the pool. While the pool is gathered no other thread charges, so the pool may check first and
//! charge later. Peaks are exact.

use crate::sync::{AtomicU64, Ordering};

/// The state of a budget with regard to its soft limit.
mod press {
    /// The soft limit is not exceeded.
    pub(super) const CALM: u64 = 0;
    /// It is exceeded, and work still used free memory: the next request asks the pool again.
    pub(super) const OWED: u64 = 1;
    /// It is exceeded, and the free memory went back.
    pub(super) const DONE: u64 = 2;
}

/// A limit, and the bytes that are charged to it.
#[derive(Debug)]
#[repr(align(64))]
pub struct Budget {
    live: AtomicU64,
    peak: AtomicU64,
    limit: AtomicU64,
    soft: AtomicU64,
    /// One of [`press`].
    press: AtomicU64,
    /// The number of times that the soft limit was exceeded.
    pressed: AtomicU64,
    /// Requests that were refused.
    refused: AtomicU64,
}

/// The figures of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetStats {
    pub live: u64,
    pub peak: u64,
    pub limit: u64,
    /// `u64::MAX` if there is none.
    pub soft: u64,
    pub pressed: u64,
    pub refused: u64,
}

/// The room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Enough,
    /// Enough, but the soft limit is exceeded: free memory should go back.
    Pressed,
    /// The soft limit was exceeded before, and memory that work used then still has to go back.
    PressedAgain,
    None,
}

/// A budget is equal only to itself.
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

    /// Sets the limits; `u64::MAX` for none. Memory that is held already stays.
    pub fn set_limits(&self, limit: u64, soft: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.soft.store(soft, Ordering::Relaxed);
        let is_passed = self.live.load(Ordering::Relaxed) > soft;
        let press = match self.press.load(Ordering::Relaxed) {
            _ if !is_passed => press::CALM,
            press::OWED => press::OWED,
            // If a limit is below what is held already, the next crossing counts.
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

    /// Sets the peak to the bytes that are charged now.
    pub fn reset_peak(&self) {
        self.peak.store(self.live.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Charges `size` bytes if they exceed no limit. True if it did.
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

    /// Checks that `size` bytes could be charged. Only the gathered pool asks, while no other thread charges.
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

    /// Notes that some free memory could not be given back: the next request above the soft limit asks again.
    pub(crate) fn owe(&self) {
        self.press.store(press::OWED, Ordering::Relaxed);
    }

    /// Charges `size` bytes, even beyond the limits.
    pub(crate) fn charge(&self, size: u64) {
        let before = self.live.fetch_add(size, Ordering::Relaxed);
        self.peak.fetch_max(before + size, Ordering::Relaxed);
    }

    /// Ends the charge of `size` bytes.
    #[inline]
    pub(crate) fn give(&self, size: u64) {
        let left = self.live.fetch_sub(size, Ordering::Relaxed) - size;
        if self.press.load(Ordering::Relaxed) != press::CALM {
            let soft = self.soft.load(Ordering::Relaxed);
            // Well below the limit, so that a size that comes and goes at the limit does not press each time.
            if left < soft - soft / 8 {
                self.press.store(press::CALM, Ordering::Relaxed);
            }
        }
    }
}
