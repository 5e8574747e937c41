//! The size of pages below buffers: huge ones where they pay and the buffer will be filled.

use super::Large;
use crate::units::{GRANULE, HUGE};
use crate::{huge, sys};
use std::sync::atomic::Ordering;

pub(super) const UNKNOWN: u32 = 0;
const SMALL_PAGES: u32 = 1;
/// For buffers that will probably be filled.
const HUGE_PAGES: u32 = 2;
/// For all buffers, because an option asked for it.
const ALL_HUGE: u32 = 3;

impl Large {
    /// Sets policies for memory that becomes writable.
    pub(super) fn advise(&self, start: *mut u8, length: usize) {
        if self.nodes() > 1 {
            (self.topology.prefer)(start, length, self.of(start));
        }
        sys::advise_huge(start, length, self.pages.load(Ordering::Relaxed) == ALL_HUGE);
    }

    /// True if huge pages pay here. Measured for the first buffer that will be filled.
    fn try_huge_pages(&self) -> bool {
        if self.pages.load(Ordering::Relaxed) == UNKNOWN {
            let found = if huge::is_offered() && huge::pays() { HUGE_PAGES } else { SMALL_PAGES };
            let _ = self.pages.compare_exchange(UNKNOWN, found, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.has_huge_pages()
    }

    /// Turns huge pages on for all buffers, if `wanted`, or off. Holds for memory that is not there yet.
    pub fn use_huge_pages(&self, wanted: bool) {
        for arena in &self.arenas {
            arena.with_writable(|start, length| {
                self.pages.store(if wanted { ALL_HUGE } else { SMALL_PAGES }, Ordering::Relaxed);
                if length > 0 {
                    sys::advise_huge(start, length, wanted);
                    self.thick.clear(self.offset(start), self.offset(start) + (length / GRANULE) as u32);
                }
            });
        }
    }

    #[must_use]
    pub fn has_huge_pages(&self) -> bool {
        matches!(self.pages.load(Ordering::Relaxed), HUGE_PAGES | ALL_HUGE)
    }

    /// Asks for huge pages for a buffer with fresh memory that will be filled, and for small ones for all others.
    pub(super) fn choose_pages(&self, start: *mut u8, length: usize) {
        if length < 2 * HUGE || matches!(self.pages.load(Ordering::Relaxed), SMALL_PAGES | ALL_HUGE) {
            return;
        }
        let will_fill = self.dense.begins(start, length) && length < self.half.load(Ordering::Relaxed);
        let (from, to) = (self.offset(start), self.offset(start) + (length / GRANULE) as u32);
        if will_fill && self.try_huge_pages() && self.thick.has_room() {
            if self.thick.set(from, to, self.units()) {
                sys::keep_errno(|| sys::advise_huge(start, length, true));
            }
        } else if self.thick.clear(from, to) {
            sys::keep_errno(|| sys::advise_huge(start, length, false));
        }
    }
}
