//! Memory that is scarce: what the pool does differently when it comes near the most that it may hold.
//!
//! What a page lacks to be wholly free cannot be mended when a request is about to fail, since live blocks do not move.
//! So the pool begins before that: it takes **finer pages**, of which fewer bytes lie in pages that are free in part,
//! and it **harvests at once** instead of growing a little beyond the peak. Both cost driver calls, which a program far
//! below its limit need not pay.

use super::Pool;
use crate::device::Device;

/// Pages are at most this part of what may still be taken. With pages of 32 MiB that begins at 64 GiB.
const ROOM_PART: u64 = 2048;
/// Of a limit that somebody set, memory is scarce from half of it on. A card is there whether its memory is needed or
/// not: of that it is scarce in the last eighth.
const LIMIT_PART: u64 = 2;
const CARD_PART: u64 = 8;

impl<D: Device> Pool<D> {
    /// Whether the pool comes near the most that it may hold. What other processes hold of a card does not count: a
    /// driver takes too long to say it.
    pub(super) fn is_scarce(&self) -> bool {
        match self.options.limit {
            Some(limit) => self.room_below(limit) < limit / LIMIT_PART,
            None => self.room_below(self.card) < self.card / CARD_PART,
        }
    }

    /// The largest page to take from the device now.
    pub(super) fn largest_page(&self) -> u64 {
        let largest = self.options.largest_page;
        match self.options.limit {
            Some(limit) => largest.min(self.room_below(limit) / ROOM_PART),
            None if self.is_scarce() => largest.min(self.room_below(self.card) / ROOM_PART),
            None => largest,
        }
    }

    fn room_below(&self, most: u64) -> u64 {
        most.saturating_sub(self.stats.reserved.current)
    }
}
