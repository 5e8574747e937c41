//! Meters: the memory in use, in the five senses of the word, now and at most.

use crate::words::{Bytes, Tick};

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    pub current: Bytes,
    pub peak: Bytes,
    /// The first tick with the peak.
    pub peak_at: Tick,
}

impl Meter {
    #[inline]
    pub(crate) fn add(&mut self, bytes: Bytes, now: Tick) {
        self.current += bytes;
        if self.current > self.peak {
            self.peak = self.current;
            self.peak_at = now;
        }
    }

    #[inline]
    pub(crate) fn sub(&mut self, bytes: Bytes) {
        debug_assert!(self.current >= bytes);
        self.current = self.current.saturating_sub(bytes);
    }
}

/// The figures of one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub live: Bytes,
    pub allocated: Bytes,
    pub requested: Bytes,
    pub active: Bytes,
    pub reserved: Bytes,
}

/// Memory in use, in the five senses of [`crate::words`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub live: Meter,
    pub allocated: Meter,
    pub requested: Meter,
    pub active: Meter,
    pub reserved: Meter,
}

impl Usage {
    #[must_use]
    pub fn now(&self) -> Figures {
        Figures {
            live: self.live.current,
            allocated: self.allocated.current,
            requested: self.requested.current,
            active: self.active.current,
            reserved: self.reserved.current,
        }
    }

    /// 1 - peak allocated / peak reserved; `None` if nothing was reserved.
    #[must_use]
    pub fn fragmentation(&self) -> Option<f64> {
        (self.reserved.peak.0 > 0).then(|| (1.0 - self.allocated.peak.share_of(self.reserved.peak)).max(0.0))
    }

    #[inline]
    pub(crate) fn alloc(&mut self, requested: Bytes, block: Bytes, now: Tick) {
        self.live.add(requested, now);
        self.allocated.add(block, now);
        self.requested.add(requested, now);
        self.active.add(block, now);
    }

    #[inline]
    pub(crate) fn free_requested(&mut self, requested: Bytes, block: Bytes) {
        self.live.sub(requested);
        self.allocated.sub(block);
    }

    #[inline]
    pub(crate) fn free_completed(&mut self, requested: Bytes, block: Bytes) {
        self.requested.sub(requested);
        self.active.sub(block);
    }
}
