//! Guesses if the next buffer will be filled. A huge page for each touch would clear 2 MiB and need 512 times the
//! memory, so only buffers that will be filled get huge pages.
//!
//! No call says how a buffer will be used. So for each power of two, Gapless looks at the pages of the last two buffers
//! that needed fresh memory, when one is freed or the next one comes. If both were filled, the next one gets huge
//! pages.

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of places in a buffer, and of pages at each, that are looked at.
const LOOKS: usize = 8;
const PAGES: usize = 64;
/// A place is filled if this many of its pages have memory.
const FILLED: usize = 60;
/// The low bits of a word have the last two answers, and the others the address of the next buffer to look at.
const ANSWERS: u64 = 3;

#[derive(Debug)]
pub struct Dense {
    /// One word for each power of two.
    last: [AtomicU64; 64],
    is_stopped: AtomicBool,
}

impl Dense {
    #[must_use]
    pub const fn new() -> Dense {
        Dense { last: [const { AtomicU64::new(0) }; 64], is_stopped: AtomicBool::new(false) }
    }

    /// Stops looking at buffers, because the program may forbid the system call.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn class(&self, length: usize) -> (&AtomicU64, usize) {
        let power = length.max(1).ilog2();
        (&self.last[power as usize], 1 << power)
    }

    /// Notes a buffer with fresh memory. Returns true if it will probably be filled.
    pub fn begins(&self, start: *mut u8, length: usize) -> bool {
        if self.is_stopped() {
            return false;
        }
        let (last, least) = self.class(length);
        let answers = after(last.load(Ordering::Relaxed), least);
        last.store(start as u64 | answers, Ordering::Relaxed);
        answers == ANSWERS
    }

    /// Looks at a buffer that is freed.
    pub fn ends(&self, start: *mut u8, length: usize) {
        let (last, least) = self.class(length);
        let word = last.load(Ordering::Relaxed);
        if word & !ANSWERS == start as u64 && !self.is_stopped() {
            last.store(after(word, least), Ordering::Relaxed);
        }
    }
}

impl Default for Dense {
    fn default() -> Dense {
        Dense::new()
    }
}

/// The answers after a look at the word's buffer, if it has one.
fn after(word: u64, least: usize) -> u64 {
    let start = word & !ANSWERS;
    if start == 0 {
        return word & ANSWERS;
    }
    let is_filled = sys::keep_errno(|| is_filled(start as *mut u8, least));
    (word << 1 & ANSWERS) | u64::from(is_filled)
}

/// True if nearly all pages have memory, at some places spread over the buffer.
fn is_filled(start: *mut u8, length: usize) -> bool {
    let part = length / LOOKS;
    let mut pages = [0u8; PAGES];
    (0..LOOKS).all(|look| {
        // Not always at the same offset, because a program may touch one page in so many.
        let moved = (look * 0x9E37 + (length >> 16)) % 16 * sys::PAGE;
        let at = (look * part + moved) / sys::PAGE * sys::PAGE;
        at + PAGES * sys::PAGE <= length
            && sys::residence(start.wrapping_add(at), &mut pages)
            && pages.iter().filter(|page| **page & 1 == 1).count() >= FILLED
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 8 << 20;

    /// Touches one page in `every`, as the owner of the buffer would.
    fn touch(start: *mut u8, every: usize) {
        for at in (0..LENGTH).step_by(every * sys::PAGE) {
            // SAFETY: `at < LENGTH`, and the test's mapping has `LENGTH` bytes from `start` on.
            unsafe { start.add(at).write_volatile(1) };
        }
    }

    #[test]
    fn only_after_two_that_were_filled_the_next_is_expected_to_be() {
        let all = sys::reserve(8 * LENGTH, 2 << 20).expect("addresses");
        assert!(sys::commit(all, 8 * LENGTH));
        // SAFETY: `number < 8`, and the mapping has `8 * LENGTH` bytes.
        let at = |number: usize| unsafe { all.add(number * LENGTH) };
        let dense = Dense::new();
        assert!(!dense.begins(at(0), LENGTH), "the first");
        touch(at(0), 1);
        assert!(!dense.begins(at(1), LENGTH), "one was filled");
        touch(at(1), 1);
        dense.ends(at(1), LENGTH);
        assert!(dense.begins(at(2), LENGTH), "two were filled");
        assert!(!dense.begins(at(3), LENGTH), "nothing of the last one was touched yet");
        touch(at(3), 16);
        assert!(!dense.begins(at(4), LENGTH), "one page in 16");
        touch(at(4), 2);
        assert!(!dense.begins(at(5), LENGTH), "one page in two");
        dense.stop();
        touch(at(5), 1);
        assert!(!dense.begins(at(6), LENGTH), "nothing is looked at");
        sys::unmap(all, 8 * LENGTH);
    }
}
