//! Zeroed buffers: memory that a buffer has is cleared, or dropped if little of it was touched.

use super::{Large, bytes};
use crate::arena::Arena;
use crate::space::Placed;
use crate::sys;
use crate::units::GRANULE;

/// From this size on, zeroing a buffer drops the memory that it has instead of clearing it, because such buffers are
/// often tables of which few pages are touched.
const SPARSE: usize = 256 << 20;
/// Residence of this many pages is asked for in one call while a buffer is cleared.
const LOOKED_AT: usize = 2048;

impl Large {
    /// Clears the parts of a buffer that have memory.
    pub(super) fn clear(&self, arena: &Arena<GRANULE>, placed: Placed, size: usize) {
        let end = placed.start + placed.len;
        let mut at = placed.start;
        let run = |at| arena.space().as_ref().and_then(|space| space.backed_run(at, end));
        if placed.backed == 0 {
            return;
        }
        while let Some((from, to)) = run(at) {
            let start = arena.address(from);
            let length = bytes(to - from).min(size.saturating_sub(bytes(from - placed.start)));
            if size < SPARSE || !self.drop_memory(start, bytes(to - from)) {
                self.clear_part(start, length);
            }
            at = to;
        }
    }

    fn drop_memory(&self, start: *mut u8, length: usize) -> bool {
        self.pinned.let_go(start as usize, length);
        sys::keep_errno(|| sys::discard(start, length))
    }

    /// Clears a part of a buffer. A piece of which less than half was touched loses its memory instead, so that its
    /// next owner does not hold memory that it does not touch.
    pub(super) fn clear_part(&self, start: *mut u8, length: usize) {
        let mut pages = [0u8; LOOKED_AT];
        let mut at = 0;
        while at < length {
            let piece = (length - at).min(LOOKED_AT * sys::PAGE);
            // SAFETY: `at < length`, and the buffer has at least `length` bytes.
            let from = unsafe { start.add(at) };
            let pages = &mut pages[..piece / sys::PAGE];
            let is_known = !self.dense.is_stopped() && sys::keep_errno(|| sys::residence(from, pages));
            let found = pages.iter().filter(|page| **page & 1 == 1).count();
            let whole = pages.len() * sys::PAGE;
            let is_dropped = is_known && found < pages.len() / 2 && self.drop_memory(from, whole);
            let done = if is_dropped { whole } else { 0 };
            // SAFETY: a writable part of a buffer that this call is about to hand out, so no other thread uses it.
            unsafe { from.add(done).write_bytes(0, piece - done) };
            at += piece;
        }
    }
}
