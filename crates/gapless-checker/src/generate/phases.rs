//! Longer parts of a program: lanes, loans and steps that repeat.

use super::super::ops::{DEFAULT_SLOT, OWN_SLOTS, Op};
use super::{Generator, MIB};
use gapless_pool::pool::UNIT;

impl Generator {
    pub(super) fn new_shape(&mut self) -> Vec<(u64, usize)> {
        let length = 17 + self.random.below(10) as usize;
        let most = (self.capacity / 3 / length as u64 / MIB).max(1);
        let mut request = |at: usize| {
            let size = MIB + 512 + self.random.below(2 * most) * MIB + self.random.below(8) * 4096;
            let end = if self.random.one_in(3) { length } else { at + 1 + self.random.below(6) as usize };
            (size, end)
        };
        (0..length).map(&mut request).collect()
    }

    /// Replaces a stream by another with a new handle, or a private pool by another, and uses the new lane.
    pub(super) fn new_lane(&mut self) {
        let (stream, pool) = (self.random.pick(&OWN_SLOTS), 1 + self.random.below(2) as u8);
        let is_private = self.random.one_in(3);
        if is_private {
            self.ops.push(Op::ReleasePool { pool });
            self.ops.push(Op::UsePool { pool, again: false });
        } else {
            self.ops.push(Op::Destroy { stream });
            self.ops.push(Op::Create { stream, reuse: false });
        }
        for _ in 0..1 + self.random.below(3) {
            let size = self.size().min(self.capacity / 16);
            let id = self.alloc_sized(stream, size, if is_private { pool } else { 0 }, None);
            if self.random.one_in(4) {
                let stream = self.any_slot();
                self.ops.push(Op::Announce { id, stream });
            }
            if !self.random.one_in(4) {
                self.free_named(id);
            }
        }
        if self.random.one_in(3) {
            self.ops.push(Op::Run { stream, most: u16::MAX });
        }
    }

    /// Large blocks come and go beside small ones that stay, and free memory is given back each time. So holes must be
    /// filled again, or the heap's end moves on for ever.
    pub(super) fn creep(&mut self) {
        self.free_all();
        let stream = OWN_SLOTS[0];
        let mut pins = Vec::new();
        // Half of the time it goes to the limit, with nothing else held: the last small block fits, and nothing more.
        let is_exact = self.random.one_in(2);
        let limit = self.capacity / 8 * 6;
        self.ops.push(Op::Limit { eighths: 6 });
        for _ in 0..40 + self.random.below(120) {
            let held: u64 = self.live.iter().map(|(_, size, _)| size.div_ceil(2 * MIB) * 2 * MIB).sum();
            let room = limit.saturating_sub(held + 4 * MIB);
            let size =
                if is_exact { room + 2 * MIB } else { room / 16 * (6 + self.random.below(10)) + 2 * MIB };
            let large = self.alloc_sized(stream, size, 0, None);
            pins.push(self.alloc_sized(stream, 2 * MIB, 0, None));
            self.free_named(large);
            self.ops.push(Op::Trim);
            if pins.len() > 3 {
                let at = self.random.below(pins.len() as u64) as usize;
                self.free_named(pins.swap_remove(at));
            }
            if !is_exact && self.random.one_in(8) {
                self.calm();
            }
        }
        pins.into_iter().for_each(|id| self.free_named(id));
    }

    /// A stream frees most of its memory. Another one, which has no new turns, borrows from it, frees and requests
    /// other sizes many times: natively it has what it freed. Then the first one requests all of its own.
    pub(super) fn loans(&mut self) {
        if self.is_capturing.is_some() || self.stepping.is_some() {
            return;
        }
        self.free_all();
        let part = self.capacity / 32;
        let (owner, borrower) = (OWN_SLOTS[0], DEFAULT_SLOT);
        self.ops.extend([Op::Limit { eighths: 0 }, Op::SyncDevice, Op::Trim, Op::ResetPeaks]);
        let first = self.alloc_sized(borrower, 512, 0, None);
        let size = part * (15 + self.random.below(3));
        let all = self.alloc_sized(owner, size, 0, None);
        self.free_named(all);
        // The owner's next request is the turn that lets its freed memory settle.
        let second = self.alloc_sized(owner, 512, 0, None);
        self.ops.push(Op::SyncDevice);
        let lent = part * (4 + self.random.below(3));
        for turn in 0..2 + self.random.below(4) {
            let size = lent - turn * self.random.below(part / 4).max(UNIT);
            let id = self.alloc_sized(borrower, size, 0, None);
            // Parts of what it freed, side by side.
            if self.random.one_in(3) {
                self.free_named(id);
                let halves = [0, 1].map(|_| self.alloc_sized(borrower, size / 2 - UNIT, 0, None));
                halves.into_iter().for_each(|half| self.free_named(half));
            } else {
                self.free_named(id);
            }
        }
        let last = self.alloc_sized(borrower, lent / 2, 0, None);
        let again = self.alloc_sized(owner, size, 0, None);
        for id in [again, last, first, second] {
            self.free_named(id);
        }
    }

    /// Makes free memory in pieces, and large requests of many sizes over it.
    pub(super) fn scatter(&mut self) {
        self.free_all();
        let stream = OWN_SLOTS[0];
        let (piece, pieces) = (self.capacity / 32, 28);
        let ids: Vec<u32> = (0..pieces).map(|_| self.alloc_sized(stream, piece, 0, None)).collect();
        ids.iter().step_by(2).for_each(|&id| self.free_named(id));
        for _ in 0..60 + self.random.below(200) {
            let parts = 2 + self.random.below(pieces / 2);
            let size = piece * parts - self.random.below(4) * MIB / 2;
            let large = self.alloc_sized(stream, size, 0, None);
            if self.random.one_in(3) {
                self.ops.push(Op::Touch { id: large });
            }
            self.free_named(large);
            if self.random.one_in(6) {
                self.calm();
            }
        }
        ids.into_iter().for_each(|id| self.free_named(id));
    }

    /// A step that repeats, with work of other streams in between.
    pub(super) fn steps(&mut self) {
        if self.is_capturing.is_some() || self.stepping.is_some() {
            return;
        }
        let stream = OWN_SLOTS[0];
        // Mostly the same step as before, because a step that never comes near the lane's peak is not planned.
        if self.shape.is_empty() || self.random.one_in(4) {
            self.shape = self.new_shape();
        }
        let shape = self.shape.clone();
        let noise = self.random.pick(&[2, 4, 12]);
        self.stepping = Some(stream);
        for _ in 0..4 + self.random.below(4) {
            let mut mine: Vec<(u32, usize)> = Vec::new();
            for (at, &(size, end)) in shape.iter().enumerate() {
                for (id, _) in mine.extract_if(.., |(_, end)| *end <= at).collect::<Vec<_>>() {
                    self.free_named(id);
                }
                mine.push((self.alloc_sized(stream, size, 0, None), end));
                if self.random.one_in(noise) {
                    self.any();
                }
            }
            for (id, _) in mine {
                if let Some(at) = self.live.iter().position(|(other, ..)| *other == id) {
                    self.let_go(at);
                }
            }
            if !self.random.one_in(5) {
                self.ops.push(Op::MarkStep);
            }
            if self.random.one_in(2) {
                self.any();
            }
            if self.random.one_in(2) {
                self.ops.push(Op::Install);
            }
            // To put a plan in place takes many device calls.
            if self.has_faults && self.random.one_in(3) {
                self.ops.push(Op::Fault { after: self.random.below(24) as u16 });
            }
            if !self.random.one_in(4) {
                self.ops.push(Op::Pause);
            }
        }
        self.stepping = None;
    }
}
