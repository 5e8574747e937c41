//! Decides by a measurement if huge pages pay on this machine, and watches the machine afterwards.
//!
//! A huge page saves 511 faults, but the kernel may have to move other pages for it (compaction), and then the fault
//! waits. The trial touches fresh memory both ways and takes the faster one. Afterwards the helper looks at the
//! machine's counters: if programs are stalled by compaction, Gapless stops asking for huge pages.

use crate::sys;
use crate::units::HUGE;
use std::time::Duration;

/// The trial touches this many huge pages each way.
const PAGES: usize = 2;
/// From this number of stalls between two looks on, huge pages hurt.
const STALLS: u64 = 64;

/// True if the kernel gives huge pages to programs that ask for them.
#[must_use]
pub fn is_offered() -> bool {
    let mut buffer = [0; 128];
    let text = sys::read_file(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut buffer);
    contains(text, b"[always]") || contains(text, b"[madvise]")
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Touches fresh memory with small pages and with huge ones. True if these took less time. About a millisecond.
#[must_use]
pub fn pays() -> bool {
    let bytes = PAGES * HUGE;
    let Some(start) = sys::reserve(2 * bytes, HUGE) else { return false };
    let faster = sys::commit(start, 2 * bytes) && {
        // SAFETY: `start` has `2 * bytes`.
        let second = unsafe { start.add(bytes) };
        sys::advise_huge(start, bytes, false);
        sys::advise_huge(second, bytes, true);
        let small = touch(start, bytes);
        let huge = touch(second, bytes);
        huge < small
    };
    sys::unmap(start, 2 * bytes);
    faster
}

fn touch(start: *mut u8, bytes: usize) -> Duration {
    // A stall shows in the clock, and a fault's work in the thread's time, so the larger one counts.
    let (clock, thread) = (sys::time(), sys::thread_time());
    for at in (0..bytes).step_by(4096) {
        // SAFETY: `at < bytes`, and the caller's mapping has `bytes` from `start` on.
        unsafe { start.add(at).write_volatile(1) };
    }
    (sys::thread_time() - thread).max((sys::time() - clock) / 4)
}

/// The machine's counters of stalls by huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    stalls: u64,
}

impl Trouble {
    #[must_use]
    pub fn now() -> Trouble {
        let mut buffer = [0; 16 << 10];
        Trouble::of(sys::read_file(c"/proc/vmstat", &mut buffer))
    }

    fn of(text: &[u8]) -> Trouble {
        let line = |name: &[u8]| {
            let line = text.split(|&b| b == b'\n').find(|line| line.starts_with(name));
            line.and_then(|line| sys::number(&line[name.len()..])).unwrap_or(0)
        };
        Trouble { stalls: line(b"compact_stall ") }
    }

    /// True if so many stalls came since `before` that huge pages hurt.
    #[must_use]
    pub fn hurts(self, before: Trouble) -> bool {
        self.stalls.saturating_sub(before.stalls) >= STALLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_read_and_many_of_them_hurt() {
        let before = Trouble::of(b"pgfault 1\ncompact_stall 10\ncompact_stall_x 900\n");
        assert_eq!(before, Trouble { stalls: 10 });
        assert!(!Trouble::of(b"compact_stall 73\n").hurts(before));
        assert!(Trouble::of(b"compact_stall 74\n").hurts(before));
        assert_eq!(Trouble::of(b""), Trouble::default());
        assert!(!Trouble::default().hurts(before), "counters of a kernel that does not tell");
    }
}
